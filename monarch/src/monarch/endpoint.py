"""Endpoints: the decorator that marks a method as callable from elsewhere, and what is known of each."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from monarch.errors import BadArguments, SpecError, UnknownEndpoint

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Endpoint(Generic[P, R_co]):
    """A method marked as an endpoint. On an instance it is the plain method; the class gives this, for typed calls."""

    def __init__(self, function: Callable[..., Any], concurrent: bool) -> None:
        if not inspect.isfunction(function):
            raise TypeError(f"@endpoint takes a method, not {type(function).__name__}; put it under other decorators")
        if concurrent and not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is concurrent and so must be async")
        self.function, self.concurrent = function, concurrent
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    @overload
    def __get__(self, instance: None, owner: type) -> Endpoint[P, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[P, Any]: ...
    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else self.function.__get__(instance, owner)


@overload
def endpoint(method: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Endpoint[P, R]: ...
@overload
def endpoint(method: Callable[Concatenate[Any, P], R], /) -> Endpoint[P, R]: ...
@overload
def endpoint(*, concurrent: bool = False) -> Callable[[Callable[Concatenate[Any, P], Any]], Endpoint[P, Any]]: ...
def endpoint(method: Callable[..., Any] | None = None, /, *, concurrent: bool = False) -> Any:
    """Mark a method, sync or async, as an endpoint of its actor class.

    Sync endpoints run one at a time in the actor's thread. Async ones run on its loop, one at a time too unless
    `concurrent`: those start in order but do not wait for each other.
    """
    if method is None:
        return lambda function: Endpoint(function, concurrent)
    return Endpoint(method, concurrent)


def concurrent_endpoint(method: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Endpoint[P, R]:
    """`@endpoint(concurrent=True)`."""
    return Endpoint(method, True)


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """What callers know of an endpoint: enough to check their arguments without its class."""

    name: str
    signature: str
    parameters: tuple[tuple[str, int, bool], ...]  # name, kind, has a default
    is_async: bool
    concurrent: bool


def describe(cls: type, names: tuple[str, ...] | None = None) -> dict[str, EndpointInfo]:
    """The endpoints of a class: those marked, or the methods called `names`; SpecError where there are none such."""
    marked = {n: m for n in dir(cls) if isinstance(m := inspect.getattr_static(cls, n, None), Endpoint)}
    if names is None and not marked:
        raise SpecError(
            f"{cls.__qualname__} has no endpoint; mark methods with @endpoint, or list them in the spec's endpoints",
            field="endpoints",
        )
    return {name: _info(cls, name) for name in (marked if names is None else names)}


def _info(cls: type, name: str) -> EndpointInfo:
    member = inspect.getattr_static(cls, name, None)
    function = member.function if isinstance(member, Endpoint) else member
    if not inspect.isfunction(function):
        methods = [n for n in dir(cls) if inspect.isfunction(getattr(cls, n, None)) and not n.startswith("_")]
        raise SpecError(f"{cls.__qualname__} has no method {name!r}{_nearest(name, methods)}", field="endpoints")
    _self, *parameters = inspect.signature(function).parameters.values()
    return EndpointInfo(
        name,
        f"{name}{inspect.Signature(parameters)}",
        tuple((p.name, p.kind.value, p.default is not p.empty) for p in parameters),
        inspect.iscoroutinefunction(function),
        isinstance(member, Endpoint) and member.concurrent,
    )


def find(table: Mapping[str, EndpointInfo], actor: str, name: str) -> EndpointInfo:
    """The endpoint called `name`; UnknownEndpoint with the nearest name and the list."""
    if name in table:
        return table[name]
    raise UnknownEndpoint(
        f"{actor} has no endpoint {name!r}{_nearest(name, list(table))}", name=name, endpoints=sorted(table)
    )


def checker(actor: str, info: EndpointInfo) -> Callable[[tuple[Any, ...], Mapping[str, Any]], None]:
    """A fast check of arguments against the signature: BadArguments names the endpoint and its signature."""
    probe = _probe(info)

    def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            probe(*args, **kwargs)
        except TypeError as error:
            raise BadArguments(f"{actor}: {error}; its signature is {info.signature}") from None

    return check


def _probe(info: EndpointInfo) -> Callable[..., None]:
    """A function of the same parameters that does nothing: calling it is the cheapest full check that Python has."""
    kinds = inspect._ParameterKind
    default = {True: None, False: inspect.Parameter.empty}
    parameters = [inspect.Parameter(n, kinds(k), default=default[has]) for n, k, has in info.parameters]
    # Parameters that were validated as identifiers, and None as the only default: nothing else gets into the code.
    probe: Any = eval(f"lambda {str(inspect.Signature(parameters))[1:-1]}: None", {})
    probe.__name__ = probe.__qualname__ = info.name
    return probe  # type: ignore[no-any-return]


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return f"{hint} There are: {', '.join(sorted(known)) or 'none'}"
