"""Every error that helium raises.

HeliumError
├── KernelError                 a mistake in a kernel's source; has code, location, cause and fix
│   ├── UnsupportedSyntax       H101 (also SyntaxError)     Python that a kernel cannot hold
│   ├── UnknownName             H102 (also NameError)       a name without a value here
│   ├── UnknownOperation        H103 (also AttributeError)  a function, method or attribute that tiles do not have
│   ├── WrongArguments          H104 (also TypeError)       an operation called with arguments that it does not take
│   ├── ShapeMismatch           H201 (also ValueError)      extents that do not fit each other
│   ├── UnpackMismatch          H202 (also ValueError)      more or fewer names than tiles
│   ├── IndexMismatch           H203 (also IndexError)      more or fewer indices than dimensions
│   ├── DTypeMismatch           H204 (also TypeError)       an operation that the dtype does not have
│   ├── CarriedChange           H205 (also TypeError)       a loop changes the type of a variable that it carries
│   ├── HostOnly                H301 (also TypeError)       a host tensor or call used inside a tile loop
│   ├── TileOnly                H302 (also TypeError)       a tile operation used outside a tile loop
│   └── EvaluationFailed        H303 (also ValueError)      plain Python inside the kernel raised
├── SourceUnavailable           (also OSError)              the function's text cannot be read
├── OutsideKernel               (also RuntimeError)         a word of helium.language called as plain Python
├── CallError                   a call that does not fit a kernel
│   ├── ArgumentMismatch        (also TypeError)            wrong number or kind of arguments
│   ├── SizeMismatch            (also ValueError)           sizes that the kernel requires to agree do not
│   └── DeviceMismatch          (also ValueError)           tensors on a device, or on devices, that cannot run it
├── ConfigError                 (also ValueError)           a config that names no loop of the kernel
├── UnsupportedTarget           (also ValueError)           a target that no emitter can make code for
└── UnsupportedKernel           (also ValueError)           a kernel that an emitter cannot express
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's source: 1-based line, 0-based columns, and the text of the line."""

    file: str
    line: int
    column: int
    end_column: int
    text: str

    def __str__(self) -> str:
        width = max(1, min(self.end_column, len(self.text)) - self.column)
        number = f"{self.line:>5} | "
        bar = " " * (len(number) - 2) + "| "
        return f"  --> {self.file}:{self.line}\n{number}{self.text}\n{bar}{' ' * self.column}{'^' * width}"


class HeliumError(Exception):
    """The root of helium's errors."""


class KernelError(HeliumError):
    """A mistake in a kernel's source.

    Attributes:
        code: A stable identifier of the kind of mistake.
        what: The mistake, with the values seen.
        fix: What to do.
        location: Where, once known.
    """

    code = "H100"

    def __init__(self, what: str, *, fix: str) -> None:
        self.what, self.fix = what, fix
        self.location: Location | None = None
        super().__init__(what)

    def __str__(self) -> str:
        place = f"\n{self.location}" if self.location else ""
        return f"{self.code} {type(self).__name__}: {self.what}{place}\n  fix: {self.fix}"


class UnsupportedSyntax(KernelError, SyntaxError):
    """Python that a kernel cannot hold."""

    code = "H101"


class UnknownName(KernelError, NameError):
    """A name without a value here."""

    code = "H102"


class UnknownOperation(KernelError, AttributeError):
    """A function, method or attribute that tiles do not have."""

    code = "H103"


class WrongArguments(KernelError, TypeError):
    """An operation called with arguments that it does not take."""

    code = "H104"


class ShapeMismatch(KernelError, ValueError):
    """Extents that do not fit each other."""

    code = "H201"


class UnpackMismatch(KernelError, ValueError):
    """More or fewer names than there are values to unpack."""

    code = "H202"


class IndexMismatch(KernelError, IndexError):
    """More or fewer indices than dimensions, or a dimension that is not there."""

    code = "H203"


class DTypeMismatch(KernelError, TypeError):
    """An operation that the dtype does not have."""

    code = "H204"


class CarriedChange(KernelError, TypeError):
    """A loop changes the type of a variable that it carries."""

    code = "H205"


class HostOnly(KernelError, TypeError):
    """A host tensor or host call used inside a tile loop."""

    code = "H301"


class TileOnly(KernelError, TypeError):
    """A tile operation used outside a tile loop."""

    code = "H302"


class EvaluationFailed(KernelError, ValueError):
    """Plain Python inside the kernel raised; the cause is chained."""

    code = "H303"


class SourceUnavailable(HeliumError, OSError):
    """The function's text cannot be read, so it cannot be compiled."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(
            f"the source of kernel {name!r} cannot be read ({reason}); define it in a file or a notebook cell, "
            f"or give its text: helium.kernel(source=text)"
        )


class OutsideKernel(HeliumError, RuntimeError):
    """A word of :mod:`helium.language` called as plain Python."""

    def __init__(self, word: str) -> None:
        self.word = word
        super().__init__(f"hl.{word} means something only inside a kernel; put it in a function under @helium.kernel()")


class CallError(HeliumError):
    """A call that does not fit a kernel."""


class ArgumentMismatch(CallError, TypeError):
    """Wrong number or kind of arguments."""

    def __init__(self, kernel: str, what: str, fix: str) -> None:
        self.kernel, self.what, self.fix = kernel, what, fix
        super().__init__(f"{kernel}: {what}; {fix}")


class SizeMismatch(CallError, ValueError):
    """Sizes that the kernel requires to agree do not."""

    def __init__(self, kernel: str, condition: str, values: str, line: int) -> None:
        self.kernel, self.condition, self.values, self.line = kernel, condition, values, line
        super().__init__(f"{kernel}: line {line} needs {condition}, but {values}; pass tensors whose sizes agree")


class DeviceMismatch(CallError, ValueError):
    """Tensors on a device, or on several devices, that cannot run the kernel."""

    def __init__(self, kernel: str, devices: Sequence[str], usable: Sequence[str]) -> None:
        self.kernel, self.devices, self.usable = kernel, tuple(devices), tuple(usable)
        super().__init__(
            f"{kernel}: tensors on {', '.join(devices)}; all must be on one of {', '.join(usable)}: use .to()"
        )


class ConfigError(HeliumError, ValueError):
    """A config that names no loop of the kernel, or a loop whose block size the kernel fixes at `fixed`."""

    def __init__(self, kernel: str, name: str, axes: Sequence[str], fixed: int | None = None) -> None:
        self.kernel, self.name, self.axes, self.fixed = kernel, name, tuple(axes), fixed
        reason = f"which is no loop of it; its loops are {', '.join(axes)}"
        if fixed is not None:
            reason = f"whose block size the kernel fixes at {fixed}; leave it out of the config"
        super().__init__(f"{kernel}: the config names {name!r}, {reason}")


class UnsupportedTarget(HeliumError, ValueError):
    """A target that no emitter can make code for."""

    def __init__(self, target: str, known: Sequence[str]) -> None:
        self.target, self.known = target, tuple(known)
        super().__init__(f"target {target!r} is not known; use one of {', '.join(known)}")


class UnsupportedKernel(HeliumError, ValueError):
    """A kernel that an emitter cannot express."""

    def __init__(self, kernel: str, reason: str, line: int, fix: str) -> None:
        self.kernel, self.reason, self.line, self.fix = kernel, reason, line, fix
        super().__init__(f"{kernel}: line {line}: {reason}; {fix}")
