"""LLVM in this process: text in, machine code out, as a function to call or as an object to link."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from helium.emit.cpu.plan import Machine

_LOCK = threading.Lock()
_READY: list[bool] = []


def _initialise(all_targets: bool = True) -> None:
    if not _READY:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _READY.append(False)
    if all_targets and not _READY[0]:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        _READY[0] = True


def _machine(machine: Machine, jit: bool) -> Any:
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, reloc="pic", codemodel="jitdefault" if jit else "default",
        jit=jit,
    )  # fmt: skip


def _optimised(text: str, target: Any) -> Any:
    module = llvm.parse_assembly(text)
    module.data_layout = str(target.target_data)
    module.verify()
    options = llvm.PipelineTuningOptions(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)
    return module


@dataclass(frozen=True, slots=True)
class Native:
    """Machine code in this process. Keeps the engine alive that owns it."""

    engine: Any
    address: int
    optimised: str
    """The optimised LLVM IR."""

    def function(self, *arguments: Any) -> Any:
        """The code as a ctypes function of these argument types that returns int."""
        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self.address)


def load(text: str, symbol: str, machine: Machine) -> Native:
    """Compile LLVM IR for this process."""
    with _LOCK:
        _initialise(all_targets=False)
        target = _machine(machine, jit=True)
        module = _optimised(text, target)
        engine = llvm.create_mcjit_compiler(module, target)
        engine.finalize_object()
        return Native(engine, engine.get_function_address(symbol), str(module))


def assemble(text: str, machine: Machine) -> bytes:
    """Compile LLVM IR to a relocatable object."""
    with _LOCK:
        _initialise()
        target = _machine(machine, jit=False)
        return bytes(target.emit_object(_optimised(text, target)))


def assembly(text: str, machine: Machine) -> str:
    """Compile LLVM IR to assembly text."""
    with _LOCK:
        _initialise()
        target = _machine(machine, jit=False)
        return str(target.emit_assembly(_optimised(text, target)))
