"""A kernel of one's own: bias and GELU fused, checked against torch, and explained."""

import torch

import helium
import helium.language as hl


@helium.kernel()
def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """gelu(x + bias) of x[m, n] and bias[n], with the exact error function."""
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([m, n]):
        total = x[tile_m, tile_n] + bias[tile_n]
        out[tile_m, tile_n] = 0.5 * total * (1 + torch.erf(total * 0.7071067811865476))
    return out


def main() -> None:
    """Run the kernel on a matrix."""
    x, bias = torch.randn(512, 768), torch.randn(768)
    torch.testing.assert_close(bias_gelu(x, bias), torch.nn.functional.gelu(x + bias), rtol=1e-5, atol=1e-6)
    print(bias_gelu.debug("ir", x, bias))
    print(bias_gelu.explain(x, bias))


if __name__ == "__main__":
    main()
