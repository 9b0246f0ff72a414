"""Values of the library on the native back end and in the reference executor, against torch."""

import pytest
import torch

from helium import library

SHAPES = [(1, 1), (1, 7), (2, 37), (7, 1000), (3, 4096), (0, 5), (5, 0), (37, 16)]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TOLERANCE = {
    torch.float32: {"rtol": 2e-6, "atol": 2e-6},
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1e-2},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
}
LAYOUTS = ["dense", "transposed", "sliced", "expanded", "stepped"]


def matrix(m, n, dtype=torch.float32, layout="dense"):
    """A random matrix of that layout; its values are the same for all of them but "expanded"."""
    x = torch.randn(m, n, generator=torch.Generator().manual_seed(m + n)).to(dtype)
    if layout == "transposed":
        return x.t().contiguous().t()
    if layout == "sliced":
        return torch.cat([x, x], 1)[:, :n]
    if layout == "stepped":
        return torch.stack([x, x], 2)[:, :, 0]
    return x[:1].expand(m, n) if layout == "expanded" else x


def cases(m, n, dtype=torch.float32, layout="dense"):
    """(kernel, arguments, what torch gives)."""
    x, y = matrix(m, n, dtype, layout), matrix(m, n, dtype).flip(0)
    weight = matrix(1, n, dtype)[0] if n else torch.ones(0, dtype=dtype)
    yield library.add, (x, y), x + y
    yield library.softmax, (x,), torch.softmax(x, -1)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    scale = torch.rsqrt(x.to(wide).square().mean(-1, keepdim=True) + 1e-5)
    yield library.rms_norm, (x, weight, 1e-5), (x.to(wide) * scale * weight.to(wide)).to(dtype)
    yield library.matmul, (x, y.t()), (x.to(wide) @ y.t().to(wide)).to(dtype)
    if n:
        ids = torch.arange(m) * 7 % n
        expected = torch.log_softmax(x.float(), -1).gather(1, ids[:, None])[:, 0]
        yield library.log_prob, (x, ids), expected


class Meaning(torch.nn.Module):
    """A kernel's reference with its numbers filled in."""

    def __init__(self, kernel, numbers):
        super().__init__()
        self.kernel, self.numbers = kernel, numbers

    def forward(self, *tensors):
        return self.kernel.reference(*tensors, *self.numbers)


def close(got, expected, dtype, scale=1.0):
    tolerance = {name: value * scale for name, value in TOLERANCE[dtype].items()}
    torch.testing.assert_close(got, expected, **tolerance, equal_nan=True)


@pytest.mark.unit
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape):
    for kernel, args, expected in cases(*shape):
        close(kernel(*args), expected, torch.float32, scale=50 if kernel is library.matmul else 1)


@pytest.mark.unit
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dtypes(dtype):
    for kernel, args, expected in cases(5, 83, dtype):
        got = kernel(*args)
        tolerance = torch.float32 if expected.dtype == torch.float32 else dtype
        if dtype in (torch.bfloat16, torch.float16) and kernel is not library.log_prob:
            tolerance = dtype
        close(got, expected, tolerance, scale=20)


@pytest.mark.unit
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    for kernel, args, expected in cases(6, 45, layout=layout):
        close(kernel(*args), expected, torch.float32, scale=20)


@pytest.mark.unit
@pytest.mark.parametrize("shape", [(1, 1), (3, 37), (17, 5)], ids=str)
def test_the_reference_executor_agrees(shape):
    for kernel, args, expected in cases(*shape):
        close(kernel.interpret(*args), expected, torch.float32, scale=20)
        close(kernel.reference(*args), expected, torch.float32, scale=20)


@pytest.mark.unit
def test_the_library_means_plain_torch_that_export_can_trace():
    for kernel, args, _ in cases(3, 37):
        tensors = tuple(arg for arg in args if isinstance(arg, torch.Tensor))
        numbers = args[len(tensors) :]
        module = Meaning(kernel, numbers)
        exported = torch.export.export(module, tensors, strict=False)
        assert not exported.constants
        assert torch.equal(exported.module()(*tensors), kernel.reference(*args))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("m", "n", "k"), [(6, 16, 8), (7, 17, 9), (100, 300, 257), (250, 130, 600), (1, 1, 1), (3, 0, 4)]
)
def test_products_of_awkward_sizes(m, n, k):
    x, y = matrix(m, k), matrix(k, n)
    for a in (x, x.t().contiguous().t()):
        for b in (y, y.t().contiguous().t()):
            torch.testing.assert_close(library.matmul(a, b), (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-4)
    stepped = library.matmul(matrix(m, k, layout="stepped"), matrix(k, n, layout="stepped"))
    torch.testing.assert_close(stepped, (x.double() @ y.double()).float(), rtol=1e-5, atol=1e-4)


@pytest.mark.unit
def test_nothing_is_compiled_anew_for_other_sizes():
    compiled = library.softmax._launcher._compiled
    library.softmax(matrix(3, 5))
    before = len(compiled)
    for m, n in [(1, 5), (2, 9), (7, 1), (100, 700)]:
        library.softmax(matrix(m, n))
    assert len(compiled) == before


@pytest.mark.unit
def test_infinities_and_nans():
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[0.0, -inf, 1.0], [inf, 0.0, 0.0], [nan, 0.0, 1.0], [-inf, -inf, -inf], [1e38, -1e38, 0.0]])
    torch.testing.assert_close(library.softmax(x), torch.softmax(x, -1), equal_nan=True)
    ids = torch.tensor([0, 1, 2, 0, 1])
    expected = torch.log_softmax(x, -1).gather(1, ids[:, None])[:, 0]
    torch.testing.assert_close(library.log_prob(x, ids), expected, equal_nan=True)


@pytest.mark.unit
def test_threads_share_a_grid_and_agree():
    x, y = matrix(300, 700), matrix(700, 400)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append((library.softmax(x), library.matmul(x, y), library.add(x, x)))
    torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@pytest.mark.unit
def test_integers_and_bools_add():
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool):
        x = torch.arange(70).reshape(2, 35).to(dtype)
        assert torch.equal(library.add(x, x.flip(0)), x + x.flip(0)), dtype
