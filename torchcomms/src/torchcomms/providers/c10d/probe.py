"""Which of torch.distributed's libraries can be used here, and if not, why not and what to do."""

from __future__ import annotations

import torch


def why_no_gloo() -> str:
    """Why gloo cannot be used here; empty if it can."""
    if not torch.distributed.is_available():
        return "this torch was built without torch.distributed: install a build with it, or use tcp"
    if not torch.distributed.is_gloo_available():
        return "this torch was built without gloo: install a build with it, or use tcp"
    return ""


def why_no_nccl() -> str:
    """Why NCCL cannot be used here; empty if it can."""
    if torch.version.hip is not None:
        return "this torch is built for ROCm, whose library is RCCL: open rccl"
    if torch.version.cuda is None:
        return "this torch was built without CUDA: install a build of torch for CUDA"
    return _why_no_group("NCCL", "nccl") or _why_no_device("CUDA", "CUDA_VISIBLE_DEVICES")


def why_no_rccl() -> str:
    """Why RCCL cannot be used here; empty if it can."""
    if torch.version.hip is None:
        instead = "; on NVIDIA's devices open nccl" if torch.version.cuda is not None else ""
        return f"this torch was built without ROCm: install a build of torch for ROCm{instead}"
    return _why_no_group("RCCL", "nccl") or _why_no_device("ROCm", "HIP_VISIBLE_DEVICES")


def why_no_xccl() -> str:
    """Why oneCCL cannot be used here; empty if it can."""
    if torch.version.xpu is None:
        return "this torch was built without XPU: install a build of torch for Intel's devices"
    missing = _why_no_group("oneCCL", "xccl")
    if missing or torch.xpu.is_available():
        return missing
    return "no XPU device is visible: check the driver and ZE_AFFINITY_MASK"


def _why_no_group(library: str, name: str) -> str:
    if torch.distributed.is_available() and getattr(torch.distributed, f"is_{name}_available")():
        return ""
    return f"this torch was built without {library}: install a build with it"


def _why_no_device(kind: str, variable: str) -> str:
    return "" if torch.cuda.is_available() else f"no {kind} device is visible: check the driver and {variable}"
