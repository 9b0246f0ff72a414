"""The verbs of an endpoint on a mesh: call, call_one, choose, broadcast, stream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

from monarch.endpoint import EndpointInfo, checker
from monarch.engine.calls import Gather, Outcome, Sink
from monarch.engine.framing import Kind
from monarch.engine.pickling import Packed, dumps
from monarch.engine.reactor import running_loop
from monarch.errors import BadArguments, DirectCall
from monarch.future import Future
from monarch.values import ValueMesh

if TYPE_CHECKING:
    from monarch.crew import Crew
    from monarch.shape import Selection

P = ParamSpec("P")
R = TypeVar("R")


class Verbs(Generic[P, R]):
    """One endpoint on the ranks of a mesh. Arguments are checked here, before anything is sent."""

    def __init__(self, crew: Crew, selection: Selection, info: EndpointInfo) -> None:
        self._crew, self._selection, self._ranks = crew, selection, selection.ranks()
        self._endpoint = info.name
        self._check = checker(crew.name, info)
        self._name = f"{crew.name}.{info.name}"
        self._turn = 0

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Run on all ranks; a value from each. Over several, raises CallFailed at the first death or at the end."""
        gather = Gather(self._ranks)
        name = f"{self._name}.call"
        future: Future[ValueMesh[R]] = Future(self._crew.reactor, partial(self._gathered, gather), name)
        self._post_all(Kind.CALL, self._pack(args, kwargs), gather, future)
        return future

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run on the one rank that this mesh has; BadArguments where it has several: slice it, or use call."""
        if len(self._ranks) != 1:
            raise BadArguments(
                f"{self._name}.call_one needs a mesh of one rank, this one is {self._selection.extent};"
                " slice it to one rank, or use call"
            )
        return self._on_one(self._ranks[0], "call_one", self._pack(args, kwargs))

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run on one rank: the one with the fewest calls under way, in turn among equals."""
        links, first = self._crew.links, self._turn % len(self._ranks)
        self._turn += 1
        rank = min(self._ranks[first:] + self._ranks[:first], key=lambda rank: links[rank].load)
        return self._on_one(rank, "choose", self._pack(args, kwargs))

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Run on all ranks; as many futures, the first of which has the first answer, and so on."""
        message = self._pack(args, kwargs)
        arrived: list[tuple[int, Outcome]] = []
        name = f"{self._name}.stream"
        futures = [Future(self._crew.reactor, partial(self._nth, arrived, n), name) for n, _ in enumerate(self._ranks)]

        def settle(rank: int, outcome: Outcome) -> None:
            arrived.append((rank, outcome))
            futures[len(arrived) - 1].settle()

        for rank in self._ranks:
            self._post(Kind.CALL, message, rank, partial(settle, rank))
        return iter(futures)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> Future[None]:
        """Hand over to all ranks, without an answer; in order with the other calls of this process.

        Flow-controlled: a sender past its credit waits here, or, on an event loop, in the await of the future. An
        error in the endpoint goes to the actor's standard error.
        """
        gather = Gather(self._ranks)
        name = f"{self._name}.broadcast"
        future: Future[None] = Future(self._crew.reactor, partial(self._handed_over, gather), name)
        self._post_all(Kind.CAST, self._pack(args, kwargs), gather, future)
        return future

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise DirectCall(
            f"{self._name} runs in other processes; use a verb: .call(…) on all ranks, .call_one(…) on a mesh of one,"
            " .choose(…) on any one, .broadcast(…) without an answer, .stream(…) as they finish"
        )

    # --- sending -----------------------------------------------------------------------------------------------

    def _pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
        self._check(args, kwargs)
        return dumps((self._endpoint, args, kwargs), self._name)

    def _post(self, kind: Kind, message: Packed, rank: int, sink: Sink) -> None:
        link = self._crew.links[rank]
        link.post(kind, message, self._endpoint, sink)
        if link.blocked and running_loop() is None:
            self._crew.reactor.drive(lambda: not link.blocked)

    def _on_one(self, rank: int, verb: str, message: Packed) -> Future[R]:
        arrived: list[tuple[int, Outcome]] = []
        future: Future[R] = Future(self._crew.reactor, partial(self._nth, arrived, 0), f"{self._name}.{verb}")

        def settle(outcome: Outcome) -> None:
            arrived.append((rank, outcome))
            future.settle()

        self._post(Kind.CALL, message, rank, settle)
        return future

    def _post_all(self, kind: Kind, message: Packed, gather: Gather, future: Future[Any]) -> None:
        def settle(rank: int, outcome: Outcome) -> None:
            if gather.put(rank, outcome):
                future.settle()

        for rank in gather.ranks:
            self._post(kind, message, rank, partial(settle, rank))

    # --- receiving ---------------------------------------------------------------------------------------------

    def _nth(self, arrived: list[tuple[int, Outcome]], position: int) -> R:
        rank, outcome = arrived[position]
        return self._value(outcome, rank)

    def _value(self, outcome: Outcome, rank: int) -> R:
        value: R = self._crew.value_of(outcome, rank, self._endpoint)
        return value

    def _gathered(self, gather: Gather) -> ValueMesh[R]:
        results = self._crew.results(gather, self._name, self._endpoint)
        return ValueMesh(self._selection, [results[rank] for rank in gather.ranks])

    def _handed_over(self, gather: Gather) -> None:
        self._crew.results(gather, self._name, self._endpoint)
