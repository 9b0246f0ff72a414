"""The core's reductions are those of `algorithms.reduction.fold`, bit for bit, for every dtype and number of ranks."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchcomms.algorithms import reduction
from torchcomms.backend import ReduceOp
from torchcomms.providers.shm import ShmBackend, ShmOptions, native
from torchcomms.providers.shm.call import DTYPES, REDUCTIONS
from torchcomms.testing import ThreadWorld

CORE = native.load().core
pytestmark = [pytest.mark.unit, pytest.mark.skipif(CORE is None, reason=f"no core: {native.load().how}")]
COUNTS = (1, 3, 64, 1023, 1024, 1025, 3000)
CASES = [(dtype, kind) for dtype in DTYPES for kind in sorted(reduction.reductions(dtype))]
ODD = (torch.complex64, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2)


def parts_of(dtype, ranks, count, seed):
    """Any bits at all, so that there are infinities, subnormal numbers and things that are not numbers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return [torch.randint(0, 2, (count,), generator=generator).bool() for _ in range(ranks)]
    raw = [torch.randint(0, 256, (count * dtype.itemsize,), generator=generator) for _ in range(ranks)]
    wild = [one.to(torch.uint8).view(dtype) for one in raw]
    if seed % 2 or not dtype.is_floating_point:
        return wild
    return [torch.randn(count, generator=generator).mul(10.0 ** (seed % 5 - 2)).to(dtype) for _ in range(ranks)]


def fold(op, parts, out):
    addresses = tuple(part.data_ptr() for part in parts)
    numbers = DTYPES[out.dtype], REDUCTIONS[op.kind], op.factor or 0.0
    CORE.fold(*numbers, out.data_ptr(), out.numel(), addresses)


def same_bits(seen, wanted):
    """Equal bits, but for which of the things that are not numbers it is, and the sign of a zero chosen of two."""
    if seen.dtype.is_floating_point:
        number = ~wanted.isnan()
        return torch.equal(seen.isnan(), ~number) and torch.equal(seen[number], wanted[number])
    return torch.equal(seen, wanted)


@pytest.mark.parametrize(("dtype", "kind"), CASES, ids=str)
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors])
@given(ranks=st.integers(1, 5), count=st.sampled_from(COUNTS), seed=st.integers(0, 1 << 20), where=st.integers(0, 5))
def test_the_core_reduces_as_torch_does(dtype, kind, ranks, count, seed, where):
    parts = parts_of(dtype, ranks, count, seed)
    op = ReduceOp(kind, 0.3 if kind == "premul_sum" else None)
    wanted = torch.empty_like(parts[0])
    reduction.fold(op, [part.clone() for part in parts], wanted)
    out = parts[where] if where < ranks else torch.empty_like(wanted)
    kept = [part.clone() for part in parts]
    fold(op, parts, out)
    assert same_bits(out, wanted)
    assert all(
        part is out or torch.equal(part.view(torch.uint8), was.view(torch.uint8))
        for part, was in zip(parts, kept, strict=True)
    )


def test_every_half_is_read_and_rounded_right():
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        every = halves.view(dtype)
        out = torch.empty_like(every)
        fold(ReduceOp.PRODUCT, [every], out)
        assert same_bits(out, every)
        for scale in (0.3, 1 / 3, 1e-3, 77.0):
            fold(ReduceOp.PREMUL_SUM(scale), [every], out)
            assert same_bits(out, (every.float() * scale).to(dtype)), (dtype, scale)


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ValueError, match="no such reduction"):
        CORE.fold(DTYPES[torch.float32], REDUCTIONS["band"], 0.0, 0, 0, (0,))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [*ODD, torch.uint16, torch.bool, torch.float64], ids=str)
def test_all_reducing_operations_over_every_kind_of_dtype(dtype):
    world = ThreadWorld(ShmBackend, 3, options=ShmOptions(native=True))
    op, count = (ReduceOp.MAX if dtype is torch.bool else ReduceOp.SUM), 40
    parts = [(torch.arange(count) % 3 + rank).to(dtype) for rank in range(3)]

    def folded(some):
        out = torch.empty_like(some[0])
        reduction.fold(op, [one.clone() for one in some], out)
        return out

    def run(backend):
        all_reduced, reduced, scanned = (parts[backend.rank].clone() for _ in range(3))
        backend.all_reduce(all_reduced, op).wait()
        backend.reduce(reduced, 1, op).wait()
        backend.scan(scanned, op).wait()
        part = torch.empty_like(all_reduced)
        backend.reduce_scatter(part, [parts[(backend.rank + to) % 3] for to in range(3)], op).wait()
        return all_reduced, reduced, scanned, part

    def bits(tensor):
        return tensor.view(torch.uint8)

    for rank, found in enumerate(world.run(run)):
        wanted = (
            folded(parts),
            folded(parts) if rank == 1 else parts[rank],
            folded(parts[: rank + 1]),
            folded([parts[(source + rank) % 3] for source in range(3)]),
        )
        for seen, right in zip(found, wanted, strict=True):
            assert torch.equal(bits(seen), bits(right)), rank
    world.close()
