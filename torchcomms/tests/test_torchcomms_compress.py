"""Compressed all_reduce: its error bounds, the same bits everywhere, error feedback, and what it refuses."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torchcomms
from torchcomms import ReduceOp, compress
from torchcomms.errors import InvalidCall, UnsupportedReduction
from torchcomms.providers.inproc import InprocBackend
from torchcomms.testing import ThreadWorld

pytestmark = pytest.mark.unit
# What float32 itself may lose at magnitudes where its numbers lie no closer together.
SMALLEST = 1e-36


@pytest.fixture(scope="module", params=[2, 3])
def world(request):
    world = ThreadWorld(InprocBackend, request.param)
    yield world
    world.close()


def reduced(world, tensors, op, kind, residuals=None):
    def run(backend):
        tensor = tensors[backend.rank].clone()
        residual = None if residuals is None else residuals[backend.rank]
        compress.all_reduce(backend, tensor, op, kind, residual=residual).wait()
        return tensor

    outcomes = world.run(run)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def bound(tensors, kind, op):
    """The documented bound of every element."""
    if kind == "bf16":
        total = sum(tensor.double().abs() for tensor in tensors) / 127
    else:
        total = sum(largest_of_block(tensor.double()) for tensor in tensors) / 126
    return (total / len(tensors) if op.kind == "avg" else total) + SMALLEST


def largest_of_block(tensor):
    padded = torch.nn.functional.pad(tensor, (0, -tensor.numel() % compress.BLOCK)).view(-1, compress.BLOCK)
    return padded.abs().amax(1).repeat_interleave(compress.BLOCK)[: tensor.numel()]


def exact(tensors, op):
    total = sum(tensor.double() for tensor in tensors)
    return total / len(tensors) if op.kind == "avg" else total


@st.composite
def numbers(draw):
    """A count, a seed and a magnitude for each rank; some blocks of zeros, some with one large number."""
    count = draw(st.integers(0, 1500))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    tensors = []
    for _ in range(3):
        tensor = torch.randn(count, generator=generator) * 10.0 ** draw(st.integers(-44, 35))
        spike = draw(st.integers(0, max(0, count - 1)))
        tensor[spike : spike + 1] *= draw(st.sampled_from([0.0, 1.0, 1e3]))
        tensor[: draw(st.sampled_from([0, 0, 300]))] = 0.0
        tensors.append(tensor)
    return tensors


@pytest.mark.parametrize("kind", ["int8", "bf16"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG], ids=["sum", "avg"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=numbers())
def test_every_element_is_within_the_stated_bound_and_the_same_on_every_rank(world, kind, op, tensors):
    tensors = tensors[: world.size]
    results = reduced(world, tensors, op, kind)
    assert all(torch.equal(result.view(torch.int32), results[0].view(torch.int32)) for result in results)
    error = (results[0].double() - exact(tensors, op)).abs()
    assert (error <= bound(tensors, kind, op)).all(), (error / bound(tensors, kind, op)).max()


def test_so_is_every_element_of_a_tensor_of_several_slices(world):
    count = compress.SLICE * world.size + 3 * compress.BLOCK + 7
    tensors = [torch.randn(count) for _ in range(world.size)]
    result = reduced(world, tensors, ReduceOp.SUM, "int8")[0]
    error = (result.double() - exact(tensors, ReduceOp.SUM)).abs()
    assert (error <= bound(tensors, "int8", ReduceOp.SUM)).all()
    assert error.max() > 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_tensors_are_rounded_to_their_dtype_once_more(world, dtype):
    tensors = [torch.randn(700).to(dtype) for _ in range(world.size)]
    result = reduced(world, tensors, ReduceOp.SUM, "int8")[0]
    assert result.dtype == dtype
    wanted = exact(tensors, ReduceOp.SUM)
    assert ((result.double() - wanted).abs() <= bound(tensors, "int8", ReduceOp.SUM) + wanted.abs() / 120).all()


def test_a_block_with_an_infinity_or_a_nan_is_nan_everywhere_and_others_are_not_touched(world):
    tensors = [torch.ones(256 * 6) for _ in range(world.size)]
    tensors[0][256 * 2 + 5] = torch.inf
    tensors[1][256 * 4] = torch.nan
    for result in reduced(world, tensors, ReduceOp.SUM, "int8"):
        blocks = result.view(6, 256)
        assert blocks[[2, 4]].isnan().all()
        assert torch.allclose(blocks[[0, 1, 3, 5]], torch.tensor(float(world.size)))


@pytest.mark.parametrize("kind", ["int8", "bf16"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG], ids=["sum", "avg"])
def test_a_residual_keeps_all_that_rounding_has_lost(world, kind, op):
    residuals = [torch.zeros(1000) for _ in range(world.size)]
    gone = torch.zeros(1000, dtype=torch.float64)
    for step in range(8):
        generator = torch.Generator().manual_seed(step)
        tensors = [torch.randn(1000, generator=generator) for _ in range(world.size)]
        result = reduced(world, tensors, op, kind, residuals)[0].double()
        gone += exact(tensors, ReduceOp.SUM) - (result * world.size if op.kind == "avg" else result)
    kept = sum(residual.double() for residual in residuals)
    assert kept.abs().max() > 1e-4
    assert torch.allclose(gone, kept, atol=1e-4)


def test_the_tensor_and_the_residual_are_as_they_were_after_a_failure():
    world = ThreadWorld(InprocBackend, 2, timeout=0.2)
    tensor, residual = torch.randn(1000), torch.full((1000,), 0.25)
    before = tensor.clone()
    ticket = compress.all_reduce(world.backends[0], tensor, ReduceOp.SUM, "int8", residual=residual)
    with pytest.raises(torchcomms.CommsTimeout, match=r"all_reduce\(int8\)"):
        ticket.wait()
    assert torch.equal(tensor, before)
    assert torch.equal(residual, torch.full((1000,), 0.25))
    world.close()


def test_it_keeps_its_place_among_the_backends_own_collectives(world):
    def run(backend):
        tensors = [torch.full((5000,), backend.rank + 1.0) for _ in range(3)]
        tickets = [
            backend.all_reduce(tensors[0], ReduceOp.SUM),
            compress.all_reduce(backend, tensors[1], ReduceOp.SUM, "int8"),
            backend.all_reduce(tensors[2], ReduceOp.SUM),
        ]
        for ticket in reversed(tickets):
            ticket.wait()
        return [tensor.mean().item() for tensor in tensors]

    wanted = world.size * (world.size + 1) / 2
    assert all(outcome == pytest.approx([wanted] * 3, rel=1e-2) for outcome in world.run(run))


def test_one_rank_alone_keeps_its_tensor():
    world = ThreadWorld(InprocBackend, 1)
    tensor = torch.randn(300)
    assert torch.equal(reduced(world, [tensor], ReduceOp.AVG, "int8")[0], tensor)
    world.close()


@pytest.mark.parametrize(
    ("tensor", "op", "kind", "residual", "error", "words"),
    [
        (torch.ones(4), ReduceOp.SUM, "int4", None, InvalidCall, "'bf16', 'int8'"),
        (torch.ones(4), ReduceOp.MAX, "int8", None, UnsupportedReduction, "max cannot be compressed"),
        (torch.ones(4).long(), ReduceOp.SUM, "int8", None, UnsupportedReduction, "int64 cannot"),
        (torch.ones(4), ReduceOp.SUM, "bf16", torch.zeros(3), InvalidCall, "must have 4"),
    ],
)
def test_what_cannot_be_compressed_is_refused_before_anything_is_sent(tensor, op, kind, residual, error, words):
    with pytest.raises(error, match=words):
        compress.check(tensor, op, kind, residual)
