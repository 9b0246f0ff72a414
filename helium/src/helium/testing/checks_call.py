"""Checks of a kernel as a callable: its name, its result, its meaning, and what it says about shapes."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from helium.contract import INTERFACE, evaluate, is_name
from helium.testing.case import dtype_name
from helium.testing.subject import Broken, Check, Subject, Unclaimed, tensors


def interface(subject: Subject) -> None:
    value = getattr(subject.kernel, "interface", None)
    if not (isinstance(value, tuple) and len(value) == 2 and all(type(part) is int and part >= 0 for part in value)):
        raise Broken(f"interface is {value!r}, not two numbers")
    if value[0] != INTERFACE[0]:
        raise Broken(f"interface {value} has another major than {INTERFACE}")


def name_grammar(subject: Subject) -> None:
    name = getattr(subject.kernel, "name", None)
    if not isinstance(name, str) or not is_name(name):
        raise Broken(f'name is {name!r}, not "namespace::kernel"')


def signatures(subject: Subject) -> None:
    for member, kwargs in (("__call__", {}), ("abstract", {}), ("reference", {}), ("artifact", {"target": ""})):
        function = getattr(subject.kernel, member, None)
        if not callable(function):
            raise Broken(f"there is no method {member}")
        try:
            inspect.signature(function).bind(*subject.case.args, **kwargs)
        except TypeError as error:
            raise Broken(f"{member}: {error}") from error


def reference_agrees(subject: Subject) -> None:
    expected = tensors(subject.kernel.reference(*subject.case.fresh()))
    subject.compare(tensors(subject.kernel(*subject.case.fresh())), expected, "call and reference differ")


def abstract_agrees(subject: Subject) -> None:
    said = [_plain(spec) for spec in subject.kernel.abstract(*subject.case.specs())]
    seen = [(tuple(t.shape), dtype_name(t.dtype), _strides(t)) for t in subject.outputs]
    if said != seen:
        raise Broken(f"abstract says (shape, dtype, strides) {said}, a call gives {seen}")


def abstract_symbolic(subject: Subject) -> None:
    if not subject.case.symbolic:
        raise Unclaimed("the cases are not symbolic")
    sizes = subject.case.sizes()
    concrete = [_plain(spec) for spec in subject.kernel.abstract(*subject.case.specs())]
    symbolic = [_plain(spec, sizes) for spec in subject.kernel.abstract(*subject.case.symbolic_specs())]
    if symbolic != concrete:
        raise Broken(f"with the symbols {sizes} abstract comes to {symbolic}, without them it is {concrete}")


def inputs_unchanged(subject: Subject) -> None:
    args = subject.case.fresh()
    before = [arg.clone() for arg in args if isinstance(arg, torch.Tensor)]
    subject.kernel(*args)
    for i, old in enumerate(before):
        if not torch.equal([arg for arg in args if isinstance(arg, torch.Tensor)][i].nan_to_num(), old.nan_to_num()):
            raise Broken(f"a call changed its tensor argument {i}")


def outputs_fresh(subject: Subject) -> None:
    args = subject.case.fresh()
    first, second = tensors(subject.kernel(*args)), tensors(subject.kernel(*args))
    owned = [arg for arg in args if isinstance(arg, torch.Tensor)]
    places = [tensor.untyped_storage().data_ptr() for tensor in (*owned, *first, *second) if tensor.numel()]
    if len(set(places)) != len(places):
        raise Broken("an output shares memory with an argument, or with an output of another call")


def noncontiguous(subject: Subject) -> None:
    args = subject.case.with_tensors(map(_spread, subject.case.tensors))
    subject.compare(tensors(subject.kernel(*args)), subject.outputs, "strided and contiguous arguments differ")


def operation(subject: Subject) -> None:
    if not is_name(subject.kernel.name):
        raise Unclaimed("see name-grammar")
    fakes = tensors(subject.kernel(*_meta(subject)))  # a kernel may register at the first call that is traced
    namespace, _, name = subject.kernel.name.partition("::")
    registered = getattr(getattr(torch.ops, namespace), name, None)
    if registered is None:
        raise Broken(f"there is no operation torch.ops.{namespace}.{name}")
    actual = tensors(registered(*subject.case.fresh()))
    subject.compare(actual, subject.expected, f"torch.ops.{namespace}.{name} and reference differ")
    for result in (fakes, tensors(registered(*_meta(subject)))):
        if [(t.shape, t.dtype) for t in result] != [(t.shape, t.dtype) for t in actual]:
            raise Broken(f"on meta tensors the kernel or its operation gives other shapes or dtypes: {result}")


def _meta(subject: Subject) -> tuple[Any, ...]:
    return subject.case.with_tensors(tensor.to("meta") for tensor in subject.case.tensors)


def _plain(spec: Any, sizes: dict[str, int] | None = None) -> tuple[Any, ...]:
    """Shape, dtype, and strides of the dimensions where a stride matters, as numbers."""
    shape = tuple(evaluate(extent, sizes or {}) for extent in spec.shape)
    strides = tuple(evaluate(extent, sizes or {}) for extent in spec.strides)
    return shape, spec.dtype, _significant(shape, strides)


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return _significant(tuple(tensor.shape), tensor.stride())


def _significant(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(stride for size, stride in zip(shape, strides, strict=True) if size > 1)


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    """An equal tensor with other strides: column-major, or every second element."""
    if tensor.dim() >= 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    return tensor.repeat_interleave(2)[::2] if tensor.dim() else tensor


CHECKS = (
    Check("interface", "interface is (major, minor); an equal major is understood", interface),
    Check("name-grammar", 'name is "namespace::kernel"', name_grammar),
    Check("signatures", "abstract, reference and artifact(…, target=…) take the arguments of a call", signatures),
    Check("reference-agrees", "reference is what the kernel means, within the dtype's tolerance", reference_agrees),
    Check("abstract-agrees", "abstract gives the shapes, dtypes and strides of a call's outputs", abstract_agrees),
    Check("abstract-symbolic", "symbols in abstract's arguments are carried into its results", abstract_symbolic),
    Check("inputs-unchanged", "a call leaves its inputs as they are", inputs_unchanged),
    Check("outputs-fresh", "a call makes fresh outputs", outputs_fresh),
    Check("noncontiguous", "tensors of any strides are taken", noncontiguous),
    Check("operation", "traced, the kernel is a torch.library operation of its name, with a fake", operation),
)
