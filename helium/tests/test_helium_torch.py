"""Kernels inside PyTorch: gradients, fakes, export, tracing, subclasses, and the operation's own checks."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import helium
import helium.language as hl
from helium import exc, library


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))

    def forward(self, x):
        return library.rms_norm(x, self.weight, 1e-5)


@helium.kernel()
def without_gradient(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 3
    return out


def gradients(function, *args):
    leaves = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    (
        function(*leaves) * torch.arange(1.0, 1 + function(*leaves).numel()).view(function(*leaves).shape)
    ).sum().backward()
    return [leaf.grad for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def divergence(logits, reference):
    logs = [functional.log_softmax(one, -1) for one in (logits, reference)]
    return functional.kl_div(logs[1], logs[0], reduction="none", log_target=True).sum(-1)


def turned(x, cos, sin):
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


@pytest.mark.unit
def test_a_rotation_is_undone_by_its_gradient():
    x, angles = torch.randn(5, 8, requires_grad=True), torch.randn(5, 4)
    cos, sin = angles.cos(), angles.sin()
    out = library.rope(x, cos, sin)
    torch.testing.assert_close(out, turned(x, cos, sin))
    (gradient,) = torch.autograd.grad(out, x, out.detach())
    torch.testing.assert_close(gradient, x.detach())


@pytest.mark.unit
def test_gradients_are_torchs():
    torch.manual_seed(0)
    x, y, weight, ids = torch.randn(5, 9), torch.randn(5, 9), torch.randn(9), torch.tensor([0, 8, 3, 3, 1])
    pairs = [
        (library.rms_norm, lambda a, w, e: torch.nn.functional.rms_norm(a, (9,), w, e), (x, weight, 1e-5)),
        (library.log_prob, lambda a, i: torch.log_softmax(a, -1).gather(1, i[:, None])[:, 0], (x, ids)),
        (library.softmax, lambda a: torch.softmax(a, -1), (x,)),
        (library.add, torch.add, (x, y)),
        (library.matmul, torch.mm, (x, y.t().contiguous())),
        (
            library.layer_norm,
            lambda a, w, b, e: functional.layer_norm(a, (9,), w, b, e),
            (x + 5, weight, weight, 1e-5),
        ),
        (library.cross_entropy, lambda a, i: functional.cross_entropy(a, i, reduction="none"), (x, ids)),
        (library.swiglu, lambda a, b: functional.silu(a) * b, (x, y)),
        (library.geglu, lambda a, b: functional.gelu(a) * b, (x, y)),
        (library.embedding, functional.embedding, (ids, x.t().contiguous())),
        (library.kl, divergence, (x, y)),
    ]
    for ours, theirs, args in pairs:
        for got, expected in zip(gradients(ours, *args), gradients(theirs, *args), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.unit
@pytest.mark.parametrize("name", ["softmax", "matmul"])
def test_gradients_hold_numerically(name):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    args = (x,) if name == "softmax" else (x, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))
    tolerance = {"atol": 1e-3, "rtol": 1e-3, "eps": 1e-3} if name == "softmax" else {}
    assert torch.autograd.gradcheck(getattr(library, name), args, **tolerance)


@pytest.mark.unit
def test_without_a_backward_the_gradient_is_refused():
    x = torch.randn(2, 3, requires_grad=True)
    out = without_gradient(x)
    torch.testing.assert_close(out, x * 3)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        out.sum().backward()
    with torch.no_grad():
        assert not without_gradient(x).requires_grad


@pytest.mark.unit
def test_names_of_operations():
    assert without_gradient.name.startswith("helium::")
    assert without_gradient.name.endswith("__without_gradient")
    assert {k.name for k in (library.add, library.softmax)} == {"helium::add", "helium::softmax"}
    assert torch.ops.helium.rms_norm.default._schema.arguments[2].name == "eps"


@pytest.mark.unit
def test_export_keeps_one_node():
    model = Norm()
    program = torch.export.export(model, (torch.randn(3, 8),), dynamic_shapes={"x": {0: torch.export.Dim("m")}})
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert [node.target for node in calls] == [torch.ops.helium.rms_norm.default]
    x = torch.randn(11, 8)
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.unit
def test_fakes_and_meta_give_shapes():
    with FakeTensorMode():
        x, ids = torch.empty(6, 7, dtype=torch.bfloat16), torch.empty(6, dtype=torch.int64)
        assert library.softmax(x).shape == (6, 7)
        assert library.softmax(x).dtype == torch.bfloat16
        assert library.log_prob(x, ids).dtype == torch.float32
    assert library.matmul(torch.empty(2, 3, device="meta"), torch.empty(3, 5, device="meta")).shape == (2, 5)


@pytest.mark.unit
def test_tracing_records_the_operation():
    graph = make_fx(lambda x: library.softmax(x) + 1)(torch.randn(2, 3)).graph
    assert torch.ops.helium.softmax.default in [node.target for node in graph.nodes]


@pytest.mark.unit
def test_torchs_own_checks_of_operations():
    x, weight = torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.helium.rms_norm.default, (x, weight, 1e-5), test_utils=checks)


@pytest.mark.unit
def test_keywords_defaults_and_parameters():
    x, weight = torch.randn(2, 8), torch.nn.Parameter(torch.randn(8))
    with torch.no_grad():
        assert torch.equal(library.rms_norm(x=x, eps=1e-5, weight=weight), library.rms_norm(x, weight, 1e-5))


@pytest.mark.unit
def test_scalars_are_arguments_of_the_code():
    x, weight = torch.randn(2, 8), torch.ones(8)
    before = None
    for eps in (1e-6, 1e-2, 10.0):
        expected = torch.nn.functional.rms_norm(x, (8,), weight, eps)
        torch.testing.assert_close(library.rms_norm(x, weight, eps), expected)
        compiled = library.rms_norm.compiled(x, weight, eps)
        assert before is None or compiled is before
        before = compiled


@pytest.mark.unit
def test_devices_must_agree():
    meta = torch.empty(2, 2, device="meta")
    with pytest.raises(exc.DeviceMismatch, match="cpu, meta"):
        library.add.run(torch.empty(2, 2), meta)


@pytest.mark.slow
def test_torch_compile_takes_a_kernel_whole():
    model = Norm()
    x = torch.randn(4, 8)
    with torch.no_grad():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))
