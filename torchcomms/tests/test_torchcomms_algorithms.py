"""Every algorithm, on 1 to 20 ranks, against the reference: values, bits, inputs, order, whatever the delays."""

import random
from itertools import cycle, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcomms.algorithms import gathering, hierarchical, recursive, reducing, ring, tree
from torchcomms.algorithms.choice import ALGORITHMS, Rule, Table, always
from torchcomms.algorithms.messages import Even, flat, recv, send
from torchcomms.algorithms.partial import load, merge, partial_dtype, settle
from torchcomms.algorithms.reduction import fold, reductions
from torchcomms.algorithms.subgroup import Subgroup
from torchcomms.backend import ReduceOp
from torchcomms.errors import CommsTimeout, InvalidCall, MessageMismatch
from torchcomms.sim.rehearsal import Rehearsal

pytestmark = pytest.mark.unit

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.complex64, torch.complex128),
)
SIZES = tuple(range(1, 21))


def op_of(kind):
    return ReduceOp(kind, 0.5 if kind == "premul_sum" else None)


def small(rank, count, dtype, kind="sum"):
    """Values whose sums and products over twenty ranks are exact in every dtype."""
    values = (torch.arange(count) * 7 + rank * 3) % (2 if kind == "product" or dtype.itemsize == 1 else 5)
    if dtype.is_signed and not dtype.is_complex and dtype.itemsize > 1 and kind != "product":
        values = values - 2
    return values.to(dtype)


def noise(rank, count, dtype):
    return torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)


def bits(tensor):
    return flat(tensor).view(torch.uint8).numpy().tobytes()


def folded(parts, op):
    out = torch.empty_like(parts[0])
    fold(op, [part.clone() for part in parts], out)
    return out


def cases(seed, *, algorithms, each=1):
    """(size, algorithm, dtype, kind, count): every size with every algorithm, dtypes and reductions by turns."""
    chosen = random.Random(seed)
    pairs = [(dtype, kind) for dtype in DTYPES for kind in sorted(reductions(dtype))]
    chosen.shuffle(pairs)
    turns = cycle(pairs)
    for size in SIZES:
        for algorithm in algorithms:
            for _ in range(each):
                yield size, algorithm, *next(turns), chosen.choice([0, 1, 5, size, 3 * size + 1])


@pytest.mark.parametrize("algorithm", ALGORITHMS["all_reduce"])
def test_all_reduce_leaves_the_reduction_on_every_rank(algorithm):
    for size, _, dtype, kind, count in cases(1, algorithms=[algorithm], each=2):
        op = op_of(kind)
        data = [small(rank, count, dtype, kind) for rank in range(size)]
        wanted = bits(folded(data, op))
        table = always("all_reduce", algorithm, local=1 + count % 5)
        Rehearsal(size, seed=count, choices=table).run(
            lambda group, data=data, op=op: reducing.all_reduce(group, data[group.rank], op)
        )
        assert [bits(one) for one in data] == [wanted] * size, (size, dtype, kind, count)


@pytest.mark.parametrize("algorithm", ALGORITHMS["reduce"])
def test_reduce_leaves_the_reduction_on_the_root_and_the_other_inputs_alone(algorithm):
    for size, _, dtype, kind, count in cases(2, algorithms=[algorithm]):
        op, root = op_of(kind), count % size
        data = [small(rank, count, dtype, kind) for rank in range(size)]
        wanted = [bits(one) for one in data]
        wanted[root] = bits(folded(data, op))
        world = Rehearsal(size, seed=count, choices=always("reduce", algorithm))
        world.run(lambda group, data=data, op=op, root=root: reducing.reduce(group, data[group.rank], root, op))
        assert [bits(one) for one in data] == wanted, (size, dtype, kind, count)


@pytest.mark.parametrize("algorithm", ALGORITHMS["reduce_scatter"])
def test_reduce_scatter_of_uneven_and_empty_shares_leaves_its_inputs_alone(algorithm):
    for size, _, dtype, kind, count in cases(3, algorithms=[algorithm]):
        op = op_of(kind)
        lengths = [(count * (target + 1)) % 4 for target in range(size)]
        inputs = [
            [small(rank + target, lengths[target], dtype, kind) for target in range(size)] for rank in range(size)
        ]
        before = [[bits(one) for one in row] for row in inputs]
        outputs = [torch.empty(length, dtype=dtype) for length in lengths]

        def schedule(group, outputs=outputs, inputs=inputs, op=op):
            return reducing.reduce_scatter(group, outputs[group.rank], inputs[group.rank], op)

        Rehearsal(size, seed=count, choices=always("reduce_scatter", algorithm)).run(schedule)
        wanted = [bits(folded([inputs[rank][target] for rank in range(size)], op)) for target in range(size)]
        assert [bits(one) for one in outputs] == wanted, (size, dtype, kind, lengths)
        assert [[bits(one) for one in row] for row in inputs] == before


@pytest.mark.parametrize("algorithm", ALGORITHMS["all_gather"])
def test_all_gather_of_uneven_and_empty_blocks(algorithm):
    for size, _, dtype, _, count in cases(4, algorithms=[algorithm]):
        data = [small(rank, (count + rank * 3) % 5, dtype) for rank in range(size)]
        outputs = [[torch.empty_like(one) for one in data] for _ in range(size)]

        def schedule(group, outputs=outputs, data=data):
            return gathering.all_gather(group, outputs[group.rank], data[group.rank])

        Rehearsal(size, seed=count, choices=always("all_gather", algorithm)).run(schedule)
        assert all([bits(one) for one in row] == [bits(one) for one in data] for row in outputs), (size, dtype)


@pytest.mark.parametrize("algorithm", ALGORITHMS["broadcast"])
def test_broadcast_from_every_kind_of_root(algorithm):
    for size, _, dtype, _, count in cases(5, algorithms=[algorithm]):
        root = (count * 3 + 1) % size
        data = [small(rank, count, dtype) for rank in range(size)]
        wanted = bits(data[root])
        world = Rehearsal(size, seed=count, choices=always("broadcast", algorithm))
        world.run(lambda group, data=data, root=root: tree.broadcast(group, data[group.rank], root))
        assert [bits(one) for one in data] == [wanted] * size


@pytest.mark.parametrize("size", [1, 2, 7, 34, 67])
def test_all_to_all_in_windows(size):
    inputs = [[small(rank + peer, (rank + peer) % 3, torch.int32) for peer in range(size)] for rank in range(size)]
    outputs = [[torch.empty_like(inputs[peer][rank]) for peer in range(size)] for rank in range(size)]
    Rehearsal(size).run(lambda group: gathering.all_to_all(group, outputs[group.rank], inputs[group.rank]))
    assert all(torch.equal(outputs[rank][peer], inputs[peer][rank]) for rank in range(size) for peer in range(size))


def test_a_large_group_has_no_more_than_two_windows_of_messages_under_way():
    most = 0

    class Counting(Subgroup):
        def post(self, batch):
            nonlocal most
            most = max(most, len(batch))
            return super().post(batch)

    def schedule(group):
        data = [torch.ones(1)] * group.size
        return gathering.all_to_all(Counting(group, range(group.size)), [torch.empty(1) for _ in data], data)

    Rehearsal(70).run(schedule)
    assert most == 64


@pytest.mark.parametrize("algorithm", ["shares", "exchange"])
@pytest.mark.parametrize("size", [3, 40])
def test_the_owners_fold_in_the_order_of_ranks(algorithm, size):
    data = [noise(rank, 100, torch.float32) for rank in range(size)]
    wanted = data[0].clone()
    for part in data[1:]:
        wanted += part
    world = Rehearsal(size, choices=always("all_reduce", algorithm))
    world.run(lambda group: reducing.all_reduce(group, data[group.rank], ReduceOp.SUM))
    assert all(torch.equal(one, wanted) for one in data)


def test_the_ring_adds_in_the_order_in_which_a_share_travels():
    size = 5
    data = [noise(rank, size, torch.float32) for rank in range(size)]
    wanted = []
    for share in range(size):
        total = data[(share + 1) % size][share].clone()
        for step in range(2, size + 1):
            total += data[(share + step) % size][share]
        wanted.append(total)
    Rehearsal(size).run(lambda group: ring.all_reduce(group, data[group.rank], ReduceOp.SUM))
    assert torch.equal(data[0], torch.stack(wanted))


def test_doubling_is_a_binary_tree_over_neighbours_with_the_extra_ranks_folded_in_first():
    data = [noise(rank, 9, torch.float32) for rank in range(6)]
    a, b, c, d, e, f = (one.clone() for one in data)
    Rehearsal(6).run(lambda group: recursive.all_reduce_doubling(group, data[group.rank], ReduceOp.SUM))
    assert torch.equal(data[3], ((a + b) + (c + d)) + (e + f))


def test_halving_pairs_places_half_the_group_apart_first():
    data = [noise(rank, 9, torch.float32) for rank in range(4)]
    a, b, c, d = (one.clone() for one in data)
    Rehearsal(4).run(lambda group: recursive.all_reduce_halving(group, data[group.rank], ReduceOp.SUM))
    assert torch.equal(data[3], (a + c) + (b + d))


@pytest.mark.parametrize("algorithm", ALGORITHMS["all_reduce"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_ranks_hold_the_same_bits_whatever_the_delays(algorithm, dtype):
    for size in (2, 3, 8, 13):
        start = [noise(rank, 50, dtype) for rank in range(size)]
        seen = set()
        for seed in range(3):
            data = [one.clone() for one in start]
            world = Rehearsal(size, seed=seed, choices=always("all_reduce", algorithm, local=4))
            world.run(lambda group, data=data: reducing.all_reduce(group, data[group.rank], ReduceOp.AVG))
            seen |= {bits(one) for one in data}
        assert len(seen) == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS["all_reduce"])
def test_half_types_are_rounded_once(algorithm):
    size = 9
    data = [torch.tensor([1.0] if rank == 0 else [2.0**-9]).bfloat16().repeat(size) for rank in range(size)]
    wanted = torch.tensor(1.0 + 8 * 2.0**-9).bfloat16()  # step by step in bfloat16 it would stay at 1
    world = Rehearsal(size, choices=always("all_reduce", algorithm, local=4))
    world.run(lambda group: reducing.all_reduce(group, data[group.rank], ReduceOp.SUM))
    assert all(bool((one == wanted).all()) for one in data)
    assert wanted != 1.0


@pytest.mark.parametrize("algorithm", ALGORITHMS["all_reduce"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.uint16, torch.int64])
def test_integer_averages_do_not_overflow_and_round_toward_zero(algorithm, dtype):
    top = torch.iinfo(dtype).max if dtype.itemsize < 4 else 1000
    values = [[top, 3, 0 if not dtype.is_signed else -3], [top, 4, 0 if not dtype.is_signed else -4], [top - 1, 4, 0]]
    data = [torch.tensor(row).to(dtype) for row in values]
    world = Rehearsal(3, choices=always("all_reduce", algorithm, local=2))
    world.run(lambda group: reducing.all_reduce(group, data[group.rank], ReduceOp.AVG))
    wanted = [(3 * top - 1) // 3, 3, -2 if dtype.is_signed else 0]
    assert [[int(value) for value in one.tolist()] for one in data] == [wanted] * 3


@pytest.mark.parametrize("algorithm", ALGORITHMS["all_reduce"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tensor_is_untouched_until_the_schedule_ends(algorithm, dtype):
    """Whenever a rank stops, its tensor is as it was: nothing of a result is written before the last wait."""
    size = 6
    start = [noise(rank, 40, dtype) for rank in range(size)]
    data = [one.clone() for one in start]

    def watched(group):
        for ticket in reducing.all_reduce(group, data[group.rank], ReduceOp.SUM):
            assert bits(data[group.rank]) == bits(start[group.rank])
            yield ticket
            assert bits(data[group.rank]) == bits(start[group.rank])

    Rehearsal(size, choices=always("all_reduce", algorithm, local=4)).run(watched)
    assert bits(data[0]) != bits(start[0])


def test_long_tensors_are_reduced_in_pieces_each_of_them_whole(monkeypatch):
    monkeypatch.setattr(reducing, "STAGED", 40)
    data = [torch.full((35,), rank + 1.0) for rank in range(3)]
    seen = []

    def watched(group):
        for ticket in reducing.all_reduce(group, data[group.rank], ReduceOp.SUM):
            seen.append(int((data[group.rank] == 6).sum()))
            yield ticket

    Rehearsal(3).run(watched)
    assert all(bool((one == 6).all()) for one in data)
    assert set(seen) == {0, 10, 20, 30}


@settings(max_examples=200, deadline=None, database=None)
@given(
    dtype=st.sampled_from(DTYPES),
    count=st.integers(0, 9),
    ranks=st.integers(1, 7),
    cut=st.integers(1, 6),
    data=st.data(),
)
def test_partial_results_mean_what_a_fold_means(dtype, count, ranks, cut, data):
    kind = data.draw(st.sampled_from(sorted(reductions(dtype))))
    op = op_of(kind)
    parts = [small(rank, count, dtype, kind) for rank in range(ranks)]
    wide = partial_dtype(op, dtype)

    def reduced(some):
        total = torch.empty(count, dtype=wide)
        load(op, some[0], total)
        for part in some[1:]:
            one = torch.empty(count, dtype=wide)
            load(op, part, one)
            merge(op, total, one, total)
        return total

    halves = [half for half in (parts[:cut], parts[cut:]) if half]
    first, *rest = [reduced(half) for half in halves]
    for second in rest:
        merge(op, first, second, second)
        first = second
    out = torch.empty(count, dtype=dtype)
    settle(op, first, ranks, out)
    assert bits(out) == bits(folded(parts, op))


@pytest.mark.parametrize("size", [1, 2, 3, 6, 8, 31, 33])
def test_the_core_keeps_the_order_of_ranks(size):
    core = recursive.Core.of(size)
    places = [core.place(rank) for rank in range(size)]
    assert [place for place in places if place is not None] == list(range(core.size))
    assert all(core.rank(place) == rank for rank, place in enumerate(places) if place is not None)
    assert core.rank(core.size) == size
    assert core.size + core.extra == size


def test_even_bounds_cover_everything_once():
    for total in (0, 1, 10, 37):
        bounds = [Even(total, 7)[index] for index in range(8)]
        assert bounds[0] == 0
        assert bounds[-1] == total
        assert all(0 <= high - low <= -(-total // 7) for low, high in pairwise(bounds))


def test_the_default_keeps_small_groups_as_they_were_and_uses_logarithmic_algorithms_for_large_ones():
    table = Table()
    assert table.choose("all_reduce", 2, 1 << 30) == "exchange"
    assert table.choose("all_reduce", 4, 1 << 10) == "exchange"
    assert table.choose("all_reduce", 4, 1 << 20) == "shares"
    assert table.choose("all_gather", 3, 64 << 10) == "ring"
    assert table.choose("broadcast", 3, 256 << 10) == "scatter"
    for operation in ALGORITHMS:
        assert table.choose(operation, 100_000, 8) not in ("exchange", "shares", "ring", "scatter")


@pytest.mark.parametrize(
    ("rules", "local", "words"),
    [
        ({"all_reduce": (Rule("magic"),)}, 1, "no algorithm 'magic'"),
        ({"fly": (Rule("ring"),)}, 1, "'fly' has no choice"),
        ({"all_reduce": (Rule("ring", ranks=4),)}, 1, "end with one without limits"),
        ({}, 0, "local is 0"),
    ],
)
def test_a_table_that_would_leave_a_call_without_an_algorithm_is_refused(rules, local, words):
    with pytest.raises(ValueError, match=words):
        Table(rules, local)


def test_a_rehearsal_finds_schedules_that_wait_for_ever_and_lengths_that_differ():
    def stuck(group):
        if group.rank:
            yield group.post([recv(torch.empty(1), 0)])

    with pytest.raises(CommsTimeout, match="ranks 1, 2 wait for ever") as caught:
        Rehearsal(3).run(stuck)
    assert caught.value.missing == {1, 2}

    def differ(group):
        yield group.post([recv(torch.empty(1), 0) if group.rank else send(torch.empty(2), 1)])

    with pytest.raises(MessageMismatch, match="sent 8 bytes to rank 1, which expects 4"):
        Rehearsal(2).run(differ)

    def waits(group):
        yield group.post([])
        group.post([recv(torch.empty(1), 0)]).wait()

    with pytest.raises(InvalidCall, match="yield the ticket"):
        Rehearsal(1).run(waits)


def test_a_rehearsal_finds_a_buffer_that_is_used_too_early():
    def hasty(group):
        tensor = torch.full((1,), float(group.rank))
        ticket = group.post([send(tensor, 1) if group.rank == 0 else recv(tensor, 0)])
        tensor += 1.0
        yield ticket
        if group.rank:
            seen.append(float(tensor[0]))

    seen = []
    Rehearsal(2).run(hasty)
    assert seen == [1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_hierarchy_by_rings(monkeypatch, dtype):
    monkeypatch.setattr(hierarchical, "RING", 0)
    for size, local in ((3, 1), (6, 2), (7, 2), (13, 4), (20, 4)):
        data = [small(rank, 29, dtype) for rank in range(size)]
        wanted = bits(folded(data, ReduceOp.SUM))
        world = Rehearsal(size, choices=always("all_reduce", "hierarchical", local))
        world.run(lambda group, data=data: reducing.all_reduce(group, data[group.rank], ReduceOp.SUM))
        assert [bits(one) for one in data] == [wanted] * size
