"""Kernels ready to use, each in its own file, each a torch.library operation such as ``torch.ops.helium.softmax``."""

from helium.contract import TensorSpec
from helium.library.add import add
from helium.library.log_prob import log_prob
from helium.library.matmul import matmul
from helium.library.rms_norm import rms_norm
from helium.library.softmax import softmax

__all__ = ["add", "log_prob", "matmul", "rms_norm", "softmax"]


def _register() -> None:
    """Make the operations known to torch, so that a saved program that holds one can be loaded."""
    matrix = TensorSpec.contiguous(("m", "n"), "float32")
    vector = TensorSpec.contiguous(("n",), "float32")
    ids = TensorSpec.contiguous(("m",), "int64")
    add.operation(matrix, matrix)
    log_prob.operation(matrix, ids)
    matmul.operation(matrix, matrix)
    rms_norm.operation(matrix, vector, 1e-6)
    softmax.operation(matrix)


_register()
