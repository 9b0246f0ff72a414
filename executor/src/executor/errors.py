"""Every error of executor: what went wrong, the value seen, what to do.

ExecutorError
├── ProgramFileError (ValueError)      a program file that cannot be used
│   ├── DamagedFileError               truncated, altered or malformed
│   ├── FileVersionError               not a program file, or of a major version unknown here
│   └── TargetMismatchError            holds no code that this machine can run
├── ManifestError (ValueError)         a description of a program that contradicts itself
├── TreeError (TypeError)              a value whose structure is not the one due
├── InputError (ValueError)            an argument of the wrong shape, dtype or name
├── MethodError (AttributeError)       a method that the program does not have
├── StateError (KeyError)              a snapshot that does not fit the program's state
├── ProgramRunError (RuntimeError)     compiled code reported an error
├── CompileError                       a model that cannot be compiled
│   ├── UnsupportedError (TypeError)   an operation, dtype or shape that this version has no loops for
│   ├── KernelError (LookupError)      a custom kernel that cannot be had, or whose provider breaks the contract
│   ├── ToolchainError (RuntimeError)  no C compiler, or one that fails
│   └── UnsupportedTargetError (ValueError)  a machine that this version does not compile for
├── VerificationError (AssertionError) outputs differ from those expected
├── RuntimeClosedError (RuntimeError)  used after close
└── CommandError (ValueError)          a command line that cannot be carried out
"""

from __future__ import annotations


class ExecutorError(Exception):
    """Root of all errors raised by executor on purpose."""


class ProgramFileError(ExecutorError, ValueError):
    """A program file cannot be used.

    `path` is the file, `what` the finding, `cure` what to do about it.
    """

    def __init__(self, path: str, what: str, cure: str) -> None:
        super().__init__(f"{path}: {what}; {cure}")
        self.path = path
        self.what = what
        self.cure = cure


class DamagedFileError(ProgramFileError):
    """The file is truncated, was altered or is malformed: fetch or compile it again."""


class FileVersionError(ProgramFileError):
    """The file is no program file, or one of a format that this version does not know."""


class TargetMismatchError(ProgramFileError):
    """The file holds no code for this machine: compile for it, or load with `allow_code=False`."""


class ManifestError(ExecutorError, ValueError):
    """A description of a program contradicts itself; the message names the entry."""


class TreeError(ExecutorError, TypeError):
    """A value has another structure than the one due; the message names the place."""


class InputError(ExecutorError, ValueError):
    """An argument does not fit.

    `name` is the input, `came` what was given and `due` what the program takes.
    """

    def __init__(self, name: str, came: str, due: str) -> None:
        super().__init__(f"input {name!r}: came {came}; due {due}")
        self.name = name
        self.came = came
        self.due = due


class MethodError(ExecutorError, AttributeError):
    """The program has no method of that name; the message lists those that it has."""


class StateError(ExecutorError, KeyError):
    """A snapshot does not fit the program's state; the message names the entry."""

    def __str__(self) -> str:
        # KeyError would show the message in quotes.
        return str(self.args[0])


class ProgramRunError(ExecutorError, RuntimeError):
    """Compiled code returned an error: `method` and `code`; the message has the program's own text for it."""

    def __init__(self, method: str, code: int, text: str) -> None:
        super().__init__(f"method {method!r} stopped with error {code}: {text}")
        self.method = method
        self.code = code


class CompileError(ExecutorError):
    """A model cannot be compiled."""


class UnsupportedError(CompileError, TypeError):
    """The model uses something that this version has no loops for.

    `what` is it, `source` the line of the model that uses it ("" if unknown), `cure` what to do.
    """

    def __init__(self, what: str, source: str, cure: str) -> None:
        super().__init__(f"{what}{f' at {source}' if source else ''}; {cure}")
        self.what = what
        self.source = source
        self.cure = cure


class KernelError(CompileError, LookupError):
    """A custom kernel cannot be had, or what its provider gave breaks the contract: `kernel` and `problem`."""

    def __init__(self, kernel: str, problem: str) -> None:
        super().__init__(f"kernel {kernel!r}: {problem}")
        self.kernel = kernel
        self.problem = problem


class ToolchainError(CompileError, RuntimeError):
    """There is no C compiler, or it fails: the message has its own words."""


class UnsupportedTargetError(CompileError, ValueError):
    """This version does not compile for `target`; `host` is this machine."""

    def __init__(self, target: str, host: str) -> None:
        super().__init__(
            f"no compiler for target {target!r}; this version compiles for the machine that it runs on, {host!r}, "
            "or the same with fewer features"
        )
        self.target = target
        self.host = host


class VerificationError(ExecutorError, AssertionError):
    """Outputs differ from those expected by more than the tolerance."""


class RuntimeClosedError(ExecutorError, RuntimeError):
    """The runtime was closed: load the file again."""


class CommandError(ExecutorError, ValueError):
    """A command line cannot be carried out; the message says what to give instead."""
