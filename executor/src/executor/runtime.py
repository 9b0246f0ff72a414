"""Load a program file and call its methods, with the standard library alone until the first call, then numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import RLock
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from executor import trees
from executor.errors import InputError, MethodError, RuntimeClosedError
from executor.file import Path, ProgramFile
from executor.manifest import Manifest, Method

if TYPE_CHECKING:
    from executor.engine import Engine, Run
    from executor.native import Library
    from executor.state import StateBuffers
    from executor.vectors import Case


def load(path: Path, *, threads: int | None = None, allow_code: bool = True) -> Runtime:
    """Load the program file at `path`, every byte of it checked.

    Its compiled code is run as it is, so load files that you trust, or pass `allow_code=False` to have its loops
    interpreted with numpy instead: same results, much slower, nothing in the file executed. `threads` is the most
    that a call may use; this version runs each call on the caller's thread.

    Raises ProgramFileError (see executor.errors) for a file that cannot be used, OSError for one that is not there.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}: give the number of threads a call may use, 1 or more")
    file = ProgramFile(path)
    try:
        return Runtime(file, _library(file) if allow_code else None)
    except BaseException:
        file.close()
        raise


class Runtime:
    """A program that can be called: its only method, or `forward`, directly; each method by its name.

    Arguments are numpy arrays or whatever gives DLPack, by position or by name, in the structure that the model
    takes; results are new numpy arrays (0-d ones too) in the structure that it returns. bfloat16 tensors come out as
    their bits in uint16. Calls from several threads take turns. A context manager.
    """

    def __init__(self, file: ProgramFile, library: Library | None) -> None:
        self._file = file
        self._library = library
        self._lock = RLock()
        self._engine: Engine | None = None
        self._closed = False
        self.methods = MappingProxyType({method.name: BoundMethod(self, method) for method in self.manifest.methods})
        self._default = self.methods.get("forward") or next(iter(self.methods.values()))

    @property
    def manifest(self) -> Manifest:
        """What the file says of itself: methods, shapes, state, weights."""
        return self._file.manifest

    @property
    def state(self) -> StateBuffers:
        """The buffers that live from call to call: `names()`, `snapshot()`, `restore(snapshot)`, `reset()`."""
        return self._started().state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `forward`, or the only method."""
        if len(self.methods) > 1 and "forward" not in self.methods:
            raise MethodError(f"{self!r} has several methods and none is 'forward': call one by its name")
        return self._default(*args, **kwargs)

    def __getattr__(self, name: str) -> BoundMethod:
        methods = self.__dict__.get("methods", {})
        if name not in methods:
            raise MethodError(f"no method {name!r} in this program; it has {sorted(methods)}")
        return methods[name]  # type: ignore[no-any-return]

    def __dir__(self) -> Iterator[str]:
        return iter({*super().__dir__(), *self.methods})

    def __repr__(self) -> str:
        how = "closed" if self._closed else "compiled" if self._library else "interpreted"
        return f"<executor.Runtime {self._file.path!r}: {', '.join(self.methods)} ({how})>"

    def cases(self) -> list[Case]:
        """The test vectors that the file holds, for `executor.vectors.replay`; none if it was made without."""
        from executor.vectors import decode

        with self._lock:
            self._check_open()
            return [case for _, data in self._file.find("vectors") for case in decode(data)]

    def close(self) -> None:
        """Give code, state and mapping back, once no call is in progress. Idempotent; calls then raise an error."""
        with self._lock:
            self._closed = True
            for method in self.methods.values():
                method.forget()
            self._engine = None
            if self._library is not None:
                self._library.close()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeClosedError(f"{self._file.path}: this runtime is closed; load the file again")

    def _started(self) -> Engine:
        with self._lock:
            self._check_open()
            if self._engine is None:
                from executor.engine import Engine

                self._engine = Engine(self._file, self._library, self._lock)
            return self._engine


class BoundMethod:
    """One method of a loaded program; `method` describes its inputs, outputs and symbols."""

    def __init__(self, runtime: Runtime, method: Method) -> None:
        self._runtime = runtime
        self._lock = runtime._lock
        self.method = method
        self._run: Run | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it; see Runtime for what goes in and out. InputError or TreeError for what does not fit."""
        with self._lock:
            run = self._run or self._start()
            return self._result(run(*self._bind(args, kwargs)))

    def flat(self, inputs: Sequence[Any]) -> list[Any]:
        """Run it on its inputs' flat leaves, in the order of `method.inputs`, and return its outputs' likewise."""
        if len(inputs) != len(self.method.inputs):
            raise InputError(self.method.name, f"{len(inputs)} flat inputs", str(len(self.method.inputs)))
        result = self(**trees.unflatten(self.method.input_tree, inputs))
        outputs: list[Any] = [None] * len(self.method.outputs)
        for index, leaf in trees.match(self.method.output_tree, result, "result"):
            outputs[index] = leaf
        return outputs

    def forget(self) -> None:
        """Let go of the engine: the next call asks the runtime for it."""
        self._run = None

    def _start(self) -> Run:
        """Keep what a call needs where a call finds it fastest."""
        engine = self._runtime._started()
        binder = engine.binders[self.method.name]
        self._bind, self._result = binder.bind, binder.result
        self._run = engine.runs[self.method.name]
        return self._run

    def __repr__(self) -> str:
        inputs, outputs = (
            ", ".join(f"{leaf.name}: {leaf}" for leaf in leaves) for leaves in (self.method.inputs, self.method.outputs)
        )
        return f"{self.method.name}({inputs}) -> ({outputs})"


def _library(file: ProgramFile) -> Library:
    from executor.native import Library, choose

    return Library(file.path, choose(file))
