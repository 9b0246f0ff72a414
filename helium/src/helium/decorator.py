"""The kernel object: what ``@helium.kernel()`` makes of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args, overload

import torch
from torch import Tensor
from torch.nn import Parameter

from helium import contract_adapter, custom_op, ir, reference, symbolic
from helium.config import Config
from helium.contract import INTERFACE, Artifact, TensorSpec
from helium.emit import triton
from helium.explain import Explanation, Stage, explain, stage
from helium.frontend import lower
from helium.frontend.source import Source, read
from helium.provider import provider
from helium.runtime.compile import Compiled
from helium.runtime.launch import Launcher
from helium.schedule import given
from helium.specialise import Bound, Key, bind

_INDIRECT = (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
"""How many dispatch modes are active (make_fx, flop counting): torch offers no public way to ask."""


class Kernel:
    """A compiled function on tensors; call it like the function. Fresh outputs belong to the caller.

    It fulfils :class:`helium.contract.KernelCallable`.

    Attributes:
        name: "namespace::kernel", also its torch.library operation.
        config: The schedule asked for; axes that it does not name get the default.
        signature: The function's.
    """

    interface = INTERFACE

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        backward: Any = None,
        config: Config | None = None,
        meaning: Callable[..., Any] | None = None,
        source: str | None = None,
    ) -> None:
        self.name = name
        self.config = config or Config()
        self.signature = inspect.signature(function)
        self.backward = backward
        self._function, self._meaning, self._text = function, meaning, source
        self._kernels: dict[Key, ir.Kernel] = {}
        self._launcher = Launcher(self)
        self._known = self._launcher.known
        self._arity = len(self.signature.parameters)
        self._operation: Any = None
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel.

        Plain CPU tensors go straight to compiled code, found by their dtypes, shapes and strides. Under tracing, for
        fake and subclassed tensors, and where autograd records, the call goes through the torch.library operation.

        Raises:
            KernelError: The function is not a kernel.
            CallError: The arguments do not fit it.
        """
        if kwargs or len(args) != self._arity:
            args = self._positional(args, kwargs)
        key: list[Any] = []
        direct = not torch.compiler.is_compiling() and not _modes()
        for arg in args:
            kind = type(arg)
            if kind is Tensor or kind is Parameter:
                direct = direct and arg.is_cpu and not (arg.requires_grad and torch.is_grad_enabled())
                key += (arg.dtype, arg.shape, arg.stride())
            else:
                direct = direct and not isinstance(arg, _INDIRECT)
                key += (kind, arg)
        if not direct:
            return self.operation(*args)(*args)
        return self._launch(tuple(key), args)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        bound = self.bind(*args, **kwargs)
        given = {**bound.tensors, **bound.scalars, **bound.constants}
        return tuple(given[name] for name in self.signature.parameters)

    def run(self, *args: Any) -> Any:
        """Run compiled code, past torch's dispatcher."""
        key = tuple((a.device, a.dtype, a.shape, a.stride()) if isinstance(a, Tensor) else (type(a), a) for a in args)
        return self._launch(key, args)

    def _launch(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        try:
            launch = self._known.get(key)
        except TypeError:  # an argument that cannot be hashed is none that a kernel takes: preparing says so
            launch = None
        return (launch or self._launcher.prepare(key, args))(args)

    def operation(self, *args: Any) -> Any:
        """The kernel's torch.library operation, registered at the first need; `args` tell its parameters' kinds."""
        if self._operation is None:
            self._operation = custom_op.register(self, self.bind(*args))
        return self._operation

    @functools.cached_property
    def source(self) -> Source:
        """The function's text and tree."""
        return read(self._function, self._text)

    def bind(self, *args: Any, **kwargs: Any) -> Bound:
        """The arguments sorted; tensors may be specs."""
        return bind(self.name, self.signature, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> ir.Kernel:
        """The IR for arguments of these dtypes and ranks; tensors may be specs.

        Raises:
            KernelError: The function is not a kernel.
            ArgumentMismatch: The arguments are not the function's.
        """
        return self.lower_bound(self.bind(*args, **kwargs))

    def lower_bound(self, bound: Bound) -> ir.Kernel:
        """The IR for arguments already sorted."""
        kernel = self._kernels.get(bound.key)
        if kernel is None:
            kernel = self._kernels[bound.key] = lower(self.source, bound.params, bound.constants)
        return kernel

    def abstract(self, *args: Any) -> tuple[TensorSpec, ...]:
        """The specs of what is returned, in order, over the symbols of the arguments' specs."""
        bound = self.bind(*args)
        kernel = self.lower_bound(bound)
        shapes = {name: tuple(spec.shape) for name, spec in bound.tensors.items()}
        made = {
            o.name: TensorSpec.contiguous(
                (symbolic.extent(self.name, s, shapes, bound.scalars) for s in o.shape),
                o.dtype,
            )
            for o in kernel.outputs
        }
        return tuple(made[name] if name in made else bound.tensors[name] for name in kernel.returns)

    def artifact(self, *args: Any, target: str) -> Artifact:
        """Compile for `target` into an object with a C symbol; tensors are given by specs, scalars are baked in.

        Raises:
            UnsupportedTarget: No code can be made for it.
            UnsupportedKernel: The kernel cannot do without memory of a size that only symbols give.
        """
        return contract_adapter.artifact(self, args, target)

    def to_triton(self, *args: Any, config: Config | None = None) -> str:
        """The kernel as a Triton module that stands alone; tensors may be specs, and triton need not be installed."""
        return triton.source(self, *args, config=config)

    def compiled(self, *args: Any) -> Compiled:
        """The native code for CPU tensors of these dtypes, ranks and kinds of strides."""
        return self._launcher.compiled(self.bind(*args))

    def stages(self, *args: Any) -> dict[str, str]:
        """Every stage of compilation as text: source, ir, llvm, optimised, assembly."""
        return {name: stage(self, name, args) for name in get_args(Stage)}

    def debug(self, name: Stage, *args: Any) -> str:
        """One stage of compilation as text."""
        return stage(self, name, args)

    def explain(self, *args: Any) -> Explanation:
        """Run on these CPU tensors and say how it went: config, bytes, operations, time, share of the roofline.

        `print` the result for a report; measuring the machine's limits takes half a second once.
        """
        return explain(self, args)

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """What the kernel means in plain torch: its `meaning` where it has one, else `interpret`."""
        return (self._meaning or self.interpret)(*args, **kwargs)

    def interpret(self, *args: Any, **kwargs: Any) -> Any:
        """Run the reference executor: tile by tile in plain torch, on the CPU, with this kernel's config."""
        bound = self.bind(*args, **kwargs)
        kernel = self.lower_bound(bound)
        blocks = dict.fromkeys([axis.name for axis in ir.axes(kernel.loops)], 16) | given(kernel, self.config)
        results = reference.run(kernel, bound.tensors, bound.scalars, blocks)
        return pack(kernel, results)


def pack(kernel: ir.Kernel, results: tuple[Any, ...]) -> Any:
    """Results as the function returns them: alone, in a tuple, or None."""
    if kernel.returns_tuple:
        return results
    return results[0] if results else None


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    *,
    backward: Any = None,
    config: Config | None = None,
    meaning: Callable[..., Any] | None = None,
    name: str | None = None,
    source: str | None = None,
) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    backward: Any = None,
    config: Config | None = None,
    meaning: Callable[..., Any] | None = None,
    name: str | None = None,
    source: str | None = None,
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Make a kernel of a function.

    Args:
        backward: ``backward(grads, args, outputs) -> gradients``, one per argument of the function (None where there is
            none); makes the kernel differentiable.
        config: Block sizes by loop variable; a good default is chosen otherwise.
        meaning: A plain torch function of the same arguments that says what the kernel computes. Give one where other
            packages should compile the kernel's meaning too; the reference executor stands in otherwise.
        name: "namespace::kernel"; ``helium::<module>__<function>`` otherwise.
        source: The function's text, where the interpreter does not know it (``exec``).
    """

    def decorate(function: Callable[..., Any]) -> Kernel:
        module = function.__module__.replace(".", "_").strip("_") or "main"
        qualified = name or f"helium::{module}__{function.__name__}"
        made = Kernel(function, qualified, backward=backward, config=config, meaning=meaning, source=source)
        provider.register(made)
        return made

    return decorate if function is None else decorate(function)
