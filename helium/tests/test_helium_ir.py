"""Sizes, configs, and the textual form of the IR."""

import pytest
import torch

import helium
import helium.language as hl
from helium import library
from helium.config import Config
from helium.rewrite import transform
from helium.sizes import Const, Dim, evaluate, leaves, operation
from helium.symbolic import extent


@pytest.mark.unit
def test_sizes_fold_and_evaluate():
    n = Dim("x", 1)
    assert operation("+", Const(2), Const(3)) == Const(5)
    assert operation("*", n, Const(1)) == n
    assert operation("*", Const(1), n) == n
    assert operation("-", n, Const(0)) == n
    size = operation("min", operation("//", n, Const(4)), Const(7))
    assert str(size) == "min((x.1 // 4), 7)"
    assert evaluate(size, lambda leaf: 12) == 3
    assert leaves(size) == (n,)


@pytest.mark.unit
def test_symbolic_extents_are_products():
    size = operation("*", Const(4), Dim("x", 0))
    assert extent("k", size, {"x": ("n",)}, {}) == "4*n"
    assert extent("k", operation("+", Const(4), Dim("x", 0)), {"x": (5,)}, {}) == 9
    with pytest.raises(helium.exc.ArgumentMismatch, match="no product of symbols"):
        extent("k", operation("+", Const(4), Dim("x", 0)), {"x": ("n",)}, {})


@pytest.mark.unit
def test_config_is_a_pasteable_value():
    config = Config(tile_m=64, num_warps=4)
    assert dict(config.blocks) == {"tile_m": 64}
    assert dict(config.options) == {"num_warps": 4}
    assert eval(repr(config), {"Config": Config}) == config
    assert Config.from_json(config.to_json()) == config
    assert hash(config) == hash(Config(num_warps=4, tile_m=64))
    assert Config(tile_m=8).over(config) == Config(tile_m=8, num_warps=4)
    with pytest.raises(ValueError, match="tile_m=0 is not a positive integer"):
        Config(tile_m=0)


@pytest.mark.unit
def test_every_instruction_prints_with_the_users_line():
    text = str(library.log_prob.lower(torch.empty(3, 5), torch.empty(3, dtype=torch.int64)))
    body = [
        line for line in text.splitlines() if line.startswith("    ") and "carry" not in line and "last" not in line
    ]
    assert all("# line " in line for line in body)
    assert "loop tile_v in 0..logits.1" in text
    assert "require ids.0 == logits.0" in text


@pytest.mark.unit
def test_transform_leaves_equal_nodes_as_they_are():
    kernel = library.softmax.lower(torch.empty(3, 5))
    assert transform(kernel, lambda node: node) is kernel


@pytest.mark.unit
def test_an_equality_gives_two_sizes_one_name():
    text = str(library.rms_norm.lower(torch.empty(3, 5), torch.empty(5), 1e-6))
    loops = text[text.index("grid") :]
    assert "weight[:weight.0]" in loops
    assert "x.1" not in loops


@helium.kernel()
def added_product(x, y):
    out = torch.empty([x.size(0), y.size(1)])
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.full([tile_m, tile_n], 1.0)
        for tile_k in hl.tile(x.size(1)):
            acc += x[tile_m, tile_k] @ y[tile_k, tile_n]
        out[tile_m, tile_n] = torch.relu(acc)
    return out


@pytest.mark.unit
def test_a_sum_with_a_product_becomes_an_accumulating_product():
    x, y = torch.randn(30, 40), torch.randn(40, 50)
    text = str(added_product.lower(x, y))
    assert "dot(" in text
    assert "add(" not in text
    for got in (added_product(x, y), added_product.interpret(x, y)):
        torch.testing.assert_close(got, torch.relu(1 + x @ y), rtol=1e-5, atol=1e-5)
