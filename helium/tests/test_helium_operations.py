"""Every operation of the language, native and in the reference executor, against torch; and how exact they are."""

import math

import pytest
import torch

import helium
import helium.language as hl

UNARY = {
    "abs": torch.abs, "neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "tanh": torch.tanh, "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "sigmoid": torch.sigmoid, "relu": torch.relu, "square": torch.square,
    "reciprocal": torch.reciprocal,
}  # fmt: skip
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum,
}  # fmt: skip


def unary_kernel(function):
    @helium.kernel()
    def apply(x):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = function(x[tile])
        return out

    return apply


def ordered(x):
    """float32 as integers in the order of the numbers, so that differences are units in the last place."""
    bits = x.view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def ulps(got, exact):
    return (ordered(got) - ordered(exact.to(torch.float32))).abs().max().item()


@pytest.mark.unit
@pytest.mark.parametrize("name", UNARY)
def test_unary_operations(name):
    kernel = unary_kernel(UNARY[name])
    x = torch.cat([torch.linspace(-12, 12, 1001), torch.tensor([0.0, -0.0, 1e-40, math.inf, -math.inf, math.nan])])
    if name in ("sin", "cos"):
        x = torch.where(x.isinf(), 0, x)
    expected = UNARY[name](x)
    for got in (kernel(x), kernel.interpret(x)):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7 if name in ("sin", "cos") else 0, equal_nan=True)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "low", "high", "most"),
    [("exp", -87, 88, 2), ("log", 1e-38, 1e38, 2), ("tanh", -9, 9, 2), ("erf", -4, 4, 2), ("sigmoid", -80, 80, 3)],
)
def test_elementary_functions_are_exact_to_units_in_the_last_place(name, low, high, most):
    generator = torch.Generator().manual_seed(1)
    x = torch.empty(200_000).uniform_(low, high, generator=generator)
    if name == "log":
        x = torch.exp(torch.empty(200_000).uniform_(-87, 88, generator=generator))
    assert ulps(unary_kernel(UNARY[name])(x), UNARY[name](x.double())) <= most


@pytest.mark.unit
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sin", "cos", "sqrt", "rsqrt"])
def test_float64(name):
    x = torch.linspace(0.01, 20, 999, dtype=torch.float64)
    torch.testing.assert_close(unary_kernel(UNARY[name])(x), UNARY[name](x), rtol=1e-14, atol=1e-14)


@pytest.mark.unit
@pytest.mark.parametrize("name", BINARY)
def test_binary_operations(name):
    function = BINARY[name]

    @helium.kernel()
    def apply(x, y):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = function(x[tile], y[tile])
        return out

    x, y = torch.linspace(0.5, 9, 333), torch.linspace(-3, 3, 333).round()
    for got in (apply(x, y), apply.interpret(x, y)):
        torch.testing.assert_close(got, function(x, y), rtol=1e-6, atol=0, equal_nan=True)


@helium.kernel()
def operators(x, y):
    m = x.size(0)
    out = torch.empty([12, m], dtype=torch.float32)
    for tile in hl.tile(m):
        a, b = x[tile], y[tile]
        out[0, tile] = a + b
        out[1, tile] = a - b
        out[2, tile] = a * b
        out[3, tile] = a / b
        out[4, tile] = a // b
        out[5, tile] = a % b
        out[6, tile] = a**2
        out[7, tile] = -a
        out[8, tile] = (a > b) & (b != 0) | ~(a <= 1)
        out[9, tile] = torch.where(a >= b, 1.5, b)
        out[10, tile] = torch.lerp(a, b, 0.25)
        out[11, tile] = a.clamp(min=-1, max=2)
    return out


@pytest.mark.unit
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64, torch.bfloat16], ids=str)
def test_operators(dtype):
    a = torch.linspace(-9, 9, 37).round().to(dtype)
    b = (torch.linspace(-3, 4, 37).round().to(dtype) * 2 + 1).to(dtype)
    rows = [
        a + b, a - b, a * b, a / b, a // b, a % b, a**2, -a, (a > b) & (b != 0) | ~(a <= 1),
        torch.where(a >= b, 1.5, b), a + 0.25 * (b - a), a.clamp(min=-1, max=2),
    ]  # fmt: skip
    expected = torch.stack([row.float() for row in rows])
    tolerance = {"rtol": 2e-2, "atol": 1e-1} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
    for got in (operators(a, b), operators.interpret(a, b)):
        torch.testing.assert_close(got, expected, **tolerance)


@helium.kernel()
def reductions(x):
    m, _ = x.size()
    out = torch.empty([8, m], dtype=torch.float32)
    for tile in hl.tile(m):
        row = x[tile, :]
        out[0, tile] = row.sum(-1)
        out[1, tile] = row.mean(dim=1)
        out[2, tile] = torch.amax(row, dim=-1)
        out[3, tile] = row.amin(-1)
        out[4, tile] = row.max(dim=-1)[0]
        out[5, tile] = torch.logsumexp(row, dim=-1)
        out[6, tile] = torch.log_softmax(row, dim=-1).amin(-1)
        out[7, tile] = ((row - row.mean(-1, keepdim=True)) ** 2).mean(-1)
    return out


@pytest.mark.unit
@pytest.mark.parametrize("n", [1, 37, 256])
def test_reductions_along_rows(n):
    x = torch.randn(9, n) + 1000
    y = x.double()
    rows = [
        y.sum(-1), y.mean(-1), y.amax(-1), y.amin(-1), y.amax(-1), y.logsumexp(-1), y.log_softmax(-1).amin(-1),
        y.var(-1, correction=0),
    ]  # fmt: skip
    for got in (reductions(x), reductions.interpret(x)):
        torch.testing.assert_close(got, torch.stack(rows).float(), rtol=2e-6, atol=2e-4)


@helium.kernel()
def column_sums(x):
    m, n = x.size()
    out = torch.empty([n], dtype=x.dtype)
    top = torch.empty([n], dtype=x.dtype)
    for tile_n in hl.tile(n):
        total = hl.zeros([tile_n])
        most = hl.full([tile_n], float("-inf"))
        for tile_m in hl.tile(m):
            total = total + x[tile_m, tile_n].sum(0)
            most = torch.maximum(most, x[tile_m, tile_n].amax(0))
        out[tile_n] = total
        top[tile_n] = most
    return out, top


@helium.kernel()
def grand_total(x):
    out = torch.zeros([1], dtype=torch.float32)
    for tile in hl.tile(1):
        out[tile] = x[:, :].sum((0, 1)) + hl.zeros([tile])
    return out


@pytest.mark.unit
def test_reductions_across_rows_and_over_two_dimensions():
    x = torch.randn(133, 71)
    for run in (column_sums, column_sums.reference):
        total, most = run(x)
        torch.testing.assert_close(total, x.sum(0), rtol=1e-5, atol=1e-5)
        assert torch.equal(most, x.amax(0))
    for run in (grand_total, grand_total.reference):
        torch.testing.assert_close(run(x), x.sum().reshape(1), rtol=1e-5, atol=1e-4)


@helium.kernel()
def transposed(x):
    m, n = x.size()
    out = torch.empty([n, m], dtype=x.dtype)
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_n, tile_m] = x[tile_m, tile_n].T
    return out


@helium.kernel()
def gathered(table, ids):
    m = ids.size(0)
    out = torch.empty([m, table.size(1)], dtype=table.dtype)
    for tile in hl.tile(m):
        out[tile, :] = table[ids[tile], :]
    return out


@helium.kernel()
def scattered(x, ids):
    out = torch.zeros([2 * x.size(0)], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        out[ids[tile]] = x[tile]
    return out


@helium.kernel()
def first_columns(x, n: int):
    out = torch.full(x.size(), 7.0, dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        out[tile, :n] = x[tile, :n] * 2
    return out


@helium.kernel()
def triangle(x):
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        keep = tile_n.index[None, :] <= tile_m.index[:, None]
        out[tile_m, tile_n] = torch.where(keep, x[tile_m, tile_n], 0.0)
    return out


@helium.kernel()
def doubled_in_place(x):
    for tile in hl.tile([x.size(0)]):
        x[tile] *= 2
    for tile in hl.tile(x.size(0)):
        hl.store(x, [tile], hl.load(x, [tile], extra_mask=x[tile] > 0) + 1)
    return x


@helium.kernel()
def block_facts(x):
    out = torch.empty([4, x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        for row, fact in enumerate((tile.begin, tile.end, tile.block_size, tile.id)):
            out[row, tile] = tile.index * 0 + fact
    return out


@pytest.mark.unit
def test_moving_data():
    x = torch.randn(37, 70)
    ids = torch.randint(0, 37, (50,))
    order = torch.randperm(74)[:37]
    for reference in (False, True):

        def run(kernel, *args, reference=reference):
            return kernel.interpret(*args) if reference else kernel(*args)

        assert torch.equal(run(transposed, x), x.t())
        assert torch.equal(run(gathered, x, ids), x[ids])
        assert torch.equal(run(gathered, x, ids.to(torch.int32)), x[ids])
        column = x[:, 0].contiguous()
        assert torch.equal(run(scattered, column, order), torch.zeros(74).index_copy(0, order, column))
        assert torch.equal(run(triangle, x), x.tril())
        expected = torch.full_like(x, 7.0)
        expected[:, :5] = x[:, :5] * 2
        assert torch.equal(run(first_columns, x, 5), expected)
        changed = column.clone()
        run(doubled_in_place, changed)
        assert torch.equal(changed, torch.where(column > 0, column * 2, 0) + 1)


@pytest.mark.unit
def test_facts_of_blocks():
    kernel = helium.Kernel(block_facts._function, "helium::facts", config=helium.Config(tile=16))
    index = torch.arange(37)
    begin = index // 16 * 16
    expected = torch.stack([begin, (begin + 16).clamp(max=37), torch.full_like(index, 16), index // 16])
    assert torch.equal(kernel(torch.empty(37)), expected)
    assert torch.equal(kernel.interpret(torch.empty(37)), expected)


@pytest.mark.unit
def test_an_index_out_of_bounds_touches_nothing():
    x = torch.arange(6.0).reshape(3, 2)
    ids = torch.tensor([0, 3, -1, 2**40, 2])
    expected = torch.stack([x[0], torch.zeros(2), torch.zeros(2), torch.zeros(2), x[2]])
    assert torch.equal(gathered(x, ids), expected)
    assert torch.equal(gathered.interpret(x, ids), expected)
