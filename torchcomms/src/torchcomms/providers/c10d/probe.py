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
