"""The whole C module of a program: prelude, micro-kernels, one function for each nest, one entry for each method."""

from __future__ import annotations

from collections.abc import Sequence

from executor import ir
from executor.compiler.builder import numbers
from executor.compiler.emit.expressions import STORED
from executor.compiler.emit.gemm import micro_kernels
from executor.compiler.emit.nests import Emitted, nest_function
from executor.compiler.emit.plain import without_products
from executor.compiler.emit.prelude import prelude
from executor.compiler.emit.products import plan_of, product_function
from executor.targets import Target

_ARGUMENTS = (
    "const void *const *inputs, void *const *outputs, void *const *state, const void *const *weights, void *arena,\n"
    "    const int64_t *symbols, void *pool"
)


def module(program: ir.LoopProgram, target: Target) -> str:
    """The C of `program`; external kernels are declared, to be linked."""
    needed: set[str] = set()
    emitted: list[Emitted | None] = []
    for number, function in enumerate(program.functions):
        emitted.append(_function(f"k{number}", function, needed) if isinstance(function, ir.Nest) else None)
    externals = [function for function in program.functions if isinstance(function, ir.External)]
    parts = [prelude(target.vector), micro_kernels(frozenset(needed))]
    parts += [f"{EXTERNAL.format(symbol=symbol)};" for symbol in sorted({external.symbol for external in externals})]
    parts += [function.text for function in emitted if function]
    parts += [_method(program, method, emitted) for method in program.methods]
    return "\n".join(parts)


EXTERNAL = "int {symbol}(void *const *buffers, const int64_t *sizes, void *workspace)"


def _function(name: str, nest: ir.Nest, needed: set[str]) -> Emitted:
    if not any(isinstance(statement, ir.Dot) for statement in nest.body):
        return nest_function(name, nest)
    plan = plan_of(nest)
    if plan is None:
        return nest_function(name, without_products(nest))
    needed.update(plan.kernels)
    return product_function(name, nest, plan)


def _method(program: ir.LoopProgram, method: ir.MethodBody, emitted: Sequence[Emitted | None]) -> str:
    lines = ["char *const a = arena;", "int error = 0;", "(void)a, (void)error, (void)inputs, (void)outputs;"]
    lines.append("(void)state, (void)weights, (void)symbols, (void)pool;")
    for step in method.block.steps:
        function, made = program.functions[step.function], emitted[step.function]
        buffers = [method.block.buffers[number] for number in step.buffers]
        comment = f"  /* {step.operation} {step.source} */".replace("  /*  */", "")
        if made is None:
            assert isinstance(function, ir.External)
            lines.append(_external_call(function, buffers) + comment)
            continue
        call = f"k{step.function}({', '.join(map(_pointer, buffers))})"
        lines.append((f"if ((error = {call})) return error;" if made.fails else f"{call};") + comment)
    text = "\n".join(f"    {line}" for line in [*lines, "return 0;"])
    return f'__attribute__((visibility("default"))) int edge_{method.name}({_ARGUMENTS})\n{{\n{text}\n}}\n'


def _external_call(function: ir.External, buffers: Sequence[ir.Buffer]) -> str:
    workspace = _pointer(buffers[-1]) if function.workspace else "0"
    operands = buffers[:-1] if function.workspace else buffers
    pointers = ", ".join(f"(void *)({_pointer(buffer)})" for buffer in operands)
    sizes = ", ".join(map(str, numbers(function.sizes))) or "0"
    call = f"{function.symbol}((void *[]){{{pointers}}}, (const int64_t[]){{{sizes}}}, {workspace})"
    return f"if ((error = {call})) return error;"


def _pointer(buffer: ir.Buffer) -> str:
    """A buffer's address within a method, on 64 bytes where the memory plan or the file says so."""
    c_type = STORED[buffer.dtype]
    match buffer.kind:
        case "temp":
            return f"({c_type} *)(a + {buffer.offset})"
        case "state":
            return f"({c_type} *)state[{buffer.index}]"
        case "output":
            return f"({c_type} *)outputs[{buffer.index}]"
    array = "inputs" if buffer.kind == "input" else "weights"
    return f"(const {c_type} *){array}[{buffer.index}]"
