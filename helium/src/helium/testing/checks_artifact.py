"""Checks of what a kernel compiles to: its fields, its object file, and what it computes without torch."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from helium.contract import Target, digest_of, symbols
from helium.testing.case import dtype_name
from helium.testing.elf import Elf
from helium.testing.native import Run
from helium.testing.subject import Broken, Check, Subject, Unclaimed, is_unsupported, undefined

_NOWHERE = "pdp11-unix"


def unsupported_target(subject: Subject) -> None:
    try:
        subject.kernel.artifact(*subject.case.specs(), target=_NOWHERE)
    except Exception as error:
        if not is_unsupported(error):
            raise Broken(f"target {_NOWHERE!r} raised {type(error).__name__}, not UnsupportedTarget") from error
        known = getattr(error, "known", None)
        if not known or not all(isinstance(target, str) and target in str(error) for target in known):
            raise Broken(f"UnsupportedTarget does not name what the kernel can do: known={known!r}, {error}") from error
    else:
        raise Broken(f"target {_NOWHERE!r} was compiled for")


def artifact_compiles(subject: Subject) -> None:
    subject.compile(subject.case.specs())


def artifact_fields(subject: Subject) -> None:
    artifact, specs = subject.concrete, [s for s in subject.case.specs() if hasattr(s, "shape")]
    outputs = [(tuple(t.shape), dtype_name(t.dtype)) for t in subject.outputs]
    problems = {
        "target": str(Target.parse(artifact.target)) != str(Target.parse(subject.target)),
        "form": artifact.form not in ("c", "object"),
        "code": not isinstance(artifact.code, bytes) or not artifact.code,
        "symbol": re.fullmatch(r"[A-Za-z_]\w*", artifact.symbol, re.ASCII) is None,
        "inputs": _fields(artifact.inputs) != _fields(specs),
        "outputs": [(tuple(s.shape), s.dtype) for s in artifact.outputs] != outputs,
        "symbols": set(symbols((*artifact.inputs, *artifact.outputs))) != set(artifact.symbols),
        "workspace": type(artifact.workspace) is not int or artifact.workspace < 0,
        "digest": artifact.digest != digest_of(artifact),
    }
    if wrong := [f"{name}={getattr(artifact, name)!r}"[:200] for name, bad in problems.items() if bad]:
        raise Broken(f"fields that are not what was asked for: {'; '.join(wrong)}")


def artifact_digest_stable(subject: Subject) -> None:
    first, again = subject.concrete.digest, subject.compile(subject.case.specs()).digest
    if again != first:
        raise Broken(f"compiled twice, two digests: {first}, {again}")


def artifact_no_undefined_symbols(subject: Subject) -> None:
    if subject.concrete.form != "object":
        raise Unclaimed("the artifact is not an object")
    if names := undefined(subject.concrete):
        raise Broken(f"the object wants {', '.join(names)} from elsewhere")


def artifact_links(subject: Subject) -> None:
    subject.link(subject.concrete)


def artifact_runs(subject: Subject) -> None:
    _succeeded(subject.run)
    subject.compare(subject.run.outputs, subject.expected, "artifact and reference differ")


def artifact_symbolic(subject: Subject) -> None:
    if not subject.case.symbolic:
        raise Unclaimed("the cases are not symbolic")
    assert subject.library, "what does not link with numbers is the matter of another check"
    library = subject.link(subject.compile(subject.case.symbolic_specs()))
    run = library(subject.case_tensors(), subject.case.sizes())
    _succeeded(run)
    subject.compare(run.outputs, subject.expected, "artifact of symbolic sizes and reference differ")


def artifact_in_bounds(subject: Subject) -> None:
    before, inputs = subject.case_tensors(), subject.case_tensors()
    run = subject.library(inputs, {})
    if not run.intact:
        raise Broken("the code wrote beside its outputs or its workspace")
    if not all(torch.equal(_bytes(new), _bytes(old)) for new, old in zip(inputs, before, strict=True)):
        raise Broken("the code wrote to its inputs")


def artifact_reentrant(subject: Subject) -> None:
    artifact = subject.concrete
    if artifact.form == "object" and (writable := Elf(artifact.code).writable):
        raise Broken(f"the object has memory of its own that calls share: {writable}")
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: subject.library(subject.case_tensors(), {}), range(16)))
    for run in runs:
        if any(map(_differ, run.outputs, subject.run.outputs)):
            raise Broken("calls from two threads at once do not give what one call gives")


def _differ(left: torch.Tensor, right: torch.Tensor) -> bool:
    return not torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _fields(specs: Any) -> list[tuple[Any, ...]]:
    return [(tuple(spec.shape), spec.dtype, tuple(spec.strides)) for spec in specs]


def _succeeded(run: Run) -> None:
    if run.code:
        raise Broken(f"the code returned {run.code} instead of 0")


CHECKS = (
    Check("unsupported-target", "UnsupportedTarget names what the kernel can do", unsupported_target),
    Check("artifact-compiles", "artifact compiles for a target, or raises UnsupportedTarget", artifact_compiles),
    Check("artifact-fields", "an artifact states its target, form, symbol, specs, symbols, digest", artifact_fields),
    Check("artifact-digest-stable", "the same code has the same digest", artifact_digest_stable),
    Check("artifact-no-undefined-symbols", "an object has no undefined symbols", artifact_no_undefined_symbols),
    Check("artifact-links", "code is position independent and defines its symbol", artifact_links),
    Check("artifact-runs", "buffers are inputs then outputs; 0 is success", artifact_runs),
    Check("artifact-symbolic", "sizes hold a number for each of symbols", artifact_symbolic),
    Check("artifact-in-bounds", "code writes its outputs and its workspace only", artifact_in_bounds),
    Check("artifact-reentrant", "code is reentrant", artifact_reentrant),
)
