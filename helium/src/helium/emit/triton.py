"""Triton source of a kernel: a module of text that stands alone, with the user's lines as comments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from helium import ir
from helium.config import Config
from helium.dtypes import BYTES
from helium.emit.triton_body import Body
from helium.emit.triton_helpers import HELPERS
from helium.emit.triton_parameters import Names, Parameter, Parameters, host
from helium.emit.triton_schedule import Schedule, contractions, schedule
from helium.emit.triton_scope import Scope
from helium.errors import UnsupportedKernel
from helium.ir import axes
from helium.rewrite import transform
from helium.sizes import Dim, IntArg, Size, evaluate
from helium.specialise import Bound
from helium.types import Fixed

if TYPE_CHECKING:
    from helium.decorator import Kernel

_WIDTH = 120
_HEADER = "import torch\nimport triton\nimport triton.language as tl\n"


def source(kernel: Kernel, *args: Any, config: Config | None = None) -> str:
    """The Triton module of `kernel` for arguments of these dtypes and ranks; tensors may be specs.

    Its last function has the kernel's name and tensor and number parameters, makes the outputs and launches. Sizes and
    strides are read when it is called; those of `args` only choose the block sizes that neither `config` nor the
    kernel's own config names.

    Raises:
        KernelError: The function is not a kernel.
        ConfigError: The config names no loop of the kernel.
        UnsupportedKernel: Triton has no tile of a shape that the kernel has.
    """
    bound = kernel.bind(*args)
    lowered = kernel.lower_bound(bound)
    _check(lowered)
    plan = schedule(lowered, config or kernel.config, partial(_known, bound, lowered), _operand_bytes(lowered))
    lines = dict(enumerate(kernel.source.lines, kernel.source.first_line))
    return module(lowered, plan, lambda line: lines.get(line, "").strip())


def module(kernel: ir.Kernel, plan: Schedule, comment: Callable[[int], str]) -> str:
    """The text for a given schedule; `comment` is the text of a line of the user's."""
    helpers: set[str] = set()
    names = [f"_{kernel.name}" if len(kernel.loops) == 1 else f"_{kernel.name}_{i}" for i in range(len(kernel.loops))]
    functions, launches = [], []
    for name, loop in zip(names, kernel.loops, strict=True):
        scope = _scope(kernel, comment)
        Body(kernel, scope).grid(loop)
        helpers |= scope.helpers
        parameters = scope.parameters.sorted()
        functions.append(f"@triton.jit\ndef {name}({_declared(parameters)}):\n{scope.text}\n")
        launches.append(_launch(name, loop, parameters, plan))
    used = [HELPERS[helper] for helper in sorted(helpers)]
    return "\n\n".join([_HEADER, *used, *functions, _host(kernel, launches)])


def _scope(kernel: ir.Kernel, comment: Callable[[int], str]) -> Scope:
    loops = [axis.name for axis in axes(kernel.loops)]
    facts = [f"{name}_{fact}" for name in loops for fact in ("begin", "index", "live", "blocks")]
    names = Names([*(param.name for param in kernel.params), *loops, *facts, "program", *HELPERS])
    return Scope(Parameters(kernel, names, contractions(kernel)), names, comment)


def _declared(parameters: Sequence[Parameter]) -> str:
    """Parameters, with a line to each kind of them."""
    texts = [(p.kind, f"{p.name}: {p.annotation}" if p.annotation else p.name) for p in parameters]
    kinds = dict.fromkeys(kind for kind, _ in texts)
    lines = [wrap(", ".join(text for k, text in texts if k == kind) + ",", _WIDTH - 4) for kind in kinds]
    return "".join(f"\n    {line}" for group in lines for line in group) + "\n"


def _launch(name: str, loop: ir.Loop, parameters: Sequence[Parameter], plan: Schedule) -> str:
    counts = [f"triton.cdiv({_extent(axis)}, {plan.blocks[axis.name]})" for axis in loop.axes]
    plain = [parameter.argument for parameter in parameters if parameter.kind != "block"]
    blocks = {p.name: str(plan.blocks.get(p.argument, p.argument)) for p in parameters if p.kind == "block"}
    keywords = [f"{key}={value}" for key, value in (blocks | plan.options).items()]
    arguments = "".join(f"        {argument},\n" for argument in (*plain, *keywords))
    return f"    {name}[({' * '.join(counts)},)](\n{arguments}    )\n"


def _extent(axis: ir.Axis) -> str:
    begin, end = (host(bound) for bound in (axis.begin, axis.end))  # type: ignore[arg-type]
    return end if begin == "0" else f"{end} - {begin}"


def _host(kernel: ir.Kernel, launches: Sequence[str]) -> str:
    parameters = ", ".join(param.name for param in kernel.params)
    guards = list(map(_guard, kernel.guards))
    outputs = [_output(kernel, output) for output in kernel.outputs]
    returned = f"({', '.join(kernel.returns)},)" if kernel.returns_tuple else ", ".join(kernel.returns)
    body = "".join([*guards, *outputs, *launches, f"    return {returned}\n"])
    return f"def {kernel.name}({parameters}):\n{body}"


def _guard(guard: ir.Guard) -> str:
    condition = f"{host(guard.left)} {guard.relation} {host(guard.right)}"
    return f"    if not {condition}:\n        raise ValueError('line {guard.line} needs {condition}')\n"


def _output(kernel: ir.Kernel, output: ir.Output) -> str:
    first = next((param.name for param in kernel.params if isinstance(param, ir.TensorParam)), None)
    device = f"{first}.device" if first else '"cuda"'
    shape = f"[{', '.join(map(host, output.shape))}]"
    word, fill = ("empty", "") if output.fill is None else ("full", f", {output.fill}")
    return f"    {output.name} = torch.{word}({shape}{fill}, dtype=torch.{output.dtype}, device={device})\n"


def _operand_bytes(kernel: ir.Kernel) -> int:
    """Of an element of the widest operand of a dot."""
    found = [4]

    def see(node: object) -> object:
        if isinstance(node, ir.Dot):
            found[0] = BYTES[node.left.type.dtype]
        return node

    transform(kernel.loops, see)
    return found[0]


def _check(kernel: ir.Kernel) -> None:
    """Refuse constant extents that Triton has no tile of."""

    def see(node: object) -> object:
        if isinstance(node, Fixed) and node.size & (node.size - 1):
            reason = f"a tile of the constant extent {node.size}; Triton's are powers of two"
            raise UnsupportedKernel(kernel.name, reason, kernel.first_line, "pad it, or loop over it with hl.tile")
        return node

    transform(kernel.loops, see)


def _known(bound: Bound, kernel: ir.Kernel, size: Size) -> int | None:
    """The number that a size is for these arguments; None over symbols."""
    shapes = {name: tuple(tensor.shape) for name, tensor in bound.tensors.items()}
    outputs = {output.name: output.shape for output in kernel.outputs}

    def look(leaf: Dim | IntArg) -> int:
        if isinstance(leaf, IntArg):
            return int(bound.scalars[leaf.name])
        if leaf.tensor in outputs:
            return evaluate(outputs[leaf.tensor][leaf.axis], look)
        return int(shapes[leaf.tensor][leaf.axis])

    try:
        return evaluate(size, look)
    except ValueError:  # a symbol is no number
        return None
