"""Loops whose steps the kernel itself fixes: `hl.grid`, and `hl.tile` with `block_size`."""

import pytest
import torch

import helium
import helium.language as hl
from helium.emit import triton
from helium.errors import ConfigError, WrongArguments

pytestmark = pytest.mark.unit


@helium.kernel()
def batched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b, m, k = x.size()
    _, _, n = y.size()
    out = torch.empty([b, m, n], dtype=x.dtype)
    for i in hl.grid(b):
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n])
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[i, tile_m, tile_k], y[b - 1 - i, tile_k, tile_n])
            out[i, tile_m, tile_n] = acc
    return out


def numbered(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0), block_size=8):
        out[tile] = tile.index - tile.begin + 100 * tile.id
    return out


blocks = helium.kernel()(numbered)


@helium.kernel()
def chunked(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m], dtype=torch.int64)
    for i, j in hl.grid([0, 1], [m, 2]):
        count = hl.zeros([1], dtype=torch.int64)
        for part in hl.tile(n, block_size=4):
            count = count + part.id * j
        out[i] = count.sum(0)
    return out


def test_a_grid_gives_indices():
    x, y = torch.randn(3, 5, 9), torch.randn(3, 9, 4)
    expected = torch.bmm(x, y.flip(0))
    for got in (batched(x, y), batched.interpret(x, y)):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("count", [0, 1, 8, 21])
def test_a_fixed_block_size_holds_on_every_executor(count):
    x, index = torch.empty(count), torch.arange(count)
    expected = index % 8 + 100 * (index // 8)
    for got in (blocks(x), blocks.interpret(x)):
        assert torch.equal(got, expected)


def test_grids_take_begins_and_several_ends_and_inner_loops_keep_their_blocks():
    x = torch.empty(5, 10)
    for got in (chunked(x), chunked.interpret(x)):
        assert got.tolist() == [0 + 1 + 2] * 5


def test_the_schedule_leaves_fixed_blocks_alone():
    assert "tile in 0..x.0 by 8" in str(blocks.lower(torch.empty(3)))
    assert "tile=8," in triton.source(blocks, torch.empty(100), config=helium.Config())
    with pytest.raises(ConfigError, match="'tile', whose block size the kernel fixes at 8") as caught:
        triton.source(blocks, torch.empty(100), config=helium.Config(tile=16))
    assert caught.value.fixed == 8
    with pytest.raises(ConfigError, match="fixes at 8"):
        helium.kernel(config=helium.Config(tile=16))(numbered)(torch.empty(3))


@pytest.mark.parametrize("size", [0, [4, 4], "4"])
def test_a_block_size_that_is_none_is_refused(size):
    @helium.kernel()
    def wrong(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0), block_size=size):
            out[tile] = x[tile]
        return out

    with pytest.raises(WrongArguments, match="block_size="):
        wrong(torch.empty(3))
