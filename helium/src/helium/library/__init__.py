"""Kernels ready to use, each in its own file, each a torch.library operation under ``torch.ops.helium``."""

from helium.library.add import add
from helium.library.log_prob import log_prob
from helium.library.matmul import matmul
from helium.library.rms_norm import rms_norm
from helium.library.softmax import softmax

__all__ = ["add", "log_prob", "matmul", "rms_norm", "softmax"]
