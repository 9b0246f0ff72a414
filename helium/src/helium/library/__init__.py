"""Kernels ready to use, each a torch.library operation such as ``torch.ops.helium.softmax``."""

from helium.contract import TensorSpec
from helium.library.add import add
from helium.library.attention import attention
from helium.library.cross_entropy import cross_entropy
from helium.library.embedding import embedding
from helium.library.gated import geglu, swiglu
from helium.library.kl import kl
from helium.library.layer_norm import layer_norm
from helium.library.log_prob import log_prob
from helium.library.matmul import matmul
from helium.library.rms_norm import rms_norm
from helium.library.rope import rope
from helium.library.softmax import softmax

__all__ = [
    "add",
    "attention",
    "cross_entropy",
    "embedding",
    "geglu",
    "kl",
    "layer_norm",
    "log_prob",
    "matmul",
    "rms_norm",
    "rope",
    "softmax",
    "swiglu",
]


def _register() -> None:
    """Make the operations known to torch, so that a saved program that holds one can be loaded."""
    matrix = TensorSpec.contiguous(("m", "n"), "float32")
    vector = TensorSpec.contiguous(("n",), "float32")
    ids = TensorSpec.contiguous(("m",), "int64")
    heads = TensorSpec.contiguous(("h", "m", "d"), "float32")
    attention.operation(heads, heads, heads, 1.0, False)
    for kernel in (add, geglu, kl, matmul, swiglu):
        kernel.operation(matrix, matrix)
    for kernel in (cross_entropy, log_prob):
        kernel.operation(matrix, ids)
    embedding.operation(ids, matrix)
    layer_norm.operation(matrix, vector, vector, 1e-6)
    rms_norm.operation(matrix, vector, 1e-6)
    rope.operation(matrix, matrix, matrix)
    softmax.operation(matrix)


_register()
