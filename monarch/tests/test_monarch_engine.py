"""The state machines of the engine, fed with events: frames, regions, credits, calls, lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.engine.arena import PAGE, Arena
from monarch.engine.calls import CallTable, Gather, Pending
from monarch.engine.credits import Acknowledgements, Credits
from monarch.engine.framing import DIRECT, SCRATCH, Decoder, Frame, Kind, Region, encode
from monarch.engine.output import Lines
from monarch.errors import ActorDied

pytestmark = pytest.mark.unit

SIZES = st.one_of(st.integers(0, 40), st.sampled_from([DIRECT - 1, DIRECT + 1, 100_000]))
REGIONS = st.builds(Region, st.integers(0, 2**40), st.integers(0, 2**40))
FRAMES = st.lists(
    st.tuples(
        st.sampled_from(Kind),
        st.integers(0, 2**64 - 1),
        SIZES,
        st.lists(st.one_of(SIZES, REGIONS), max_size=3),
        st.lists(st.integers(0, 2**40), max_size=3),
    ),
    max_size=4,
)


def content(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(range(size % 251))


def decode(data: bytes, cuts: list[int]) -> list[Frame]:
    """Feed `data` in chunks of the sizes `cuts`, over and over."""
    decoder, frames, at, turn = Decoder(lambda region: region), [], 0, 0
    while at < len(data):
        space = decoder.space()
        assert len(space) > 0
        count = min(len(space), cuts[turn % len(cuts)], len(data) - at)
        space[:count] = data[at : at + count]
        frames += decoder.received(count)
        at, turn = at + count, turn + 1
    return frames


@given(FRAMES, st.lists(st.integers(1, 40), min_size=1, max_size=5))
@settings(deadline=None, max_examples=60)
def test_frames_arrive_whole_however_the_bytes_are_cut(sizes: list[tuple], cuts: list[int]) -> None:
    sent = [
        (kind, call, content(body), [b if isinstance(b, Region) else content(b) for b in buffers], releases)
        for kind, call, body, buffers, releases in sizes
    ]
    data = b"".join(bytes(part) for frame in sent for part in encode(*frame))
    # Long messages in chunks that are long too, for the sake of time.
    arrived = decode(data, [cut * max(1, len(data) // 2000) for cut in cuts])
    assert len(arrived) == len(sent)
    for frame, (kind, call, body, buffers, releases) in zip(arrived, sent, strict=True):
        assert (frame.kind, frame.call, bytes(frame.body)) == (kind, call, body)
        assert [b if isinstance(b, Region) else bytes(b) for b in frame.buffers] == buffers
        assert list(frame.releases) == releases


def test_frame_with_more_buffers_than_the_scratch_holds() -> None:
    buffers = [b"xy"] * (SCRATCH // 8)
    (frame,) = decode(b"".join(encode(Kind.CALL, 1, b"", buffers)), [4096])
    assert [bytes(b) for b in frame.buffers] == buffers


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9 * PAGE)), max_size=60))
def test_regions_never_overlap_and_all_space_comes_back(steps: list[tuple[bool, int]]) -> None:
    arena, held = Arena(40 * PAGE), {}
    for take, number in steps:
        if take and (offset := arena.allocate(number)) is not None:
            assert offset % PAGE == 0
            assert all(offset + number <= o or o + length <= offset for o, length in held.items())
            assert offset + number <= 40 * PAGE
            held[offset] = max(number, 1)
        elif not take and held:
            offset = sorted(held)[number % len(held)]
            arena.free(offset)
            del held[offset]
    for offset in held:
        arena.free(offset)
    assert arena.used == 0
    assert arena.allocate(40 * PAGE) == 0


def test_arena_refuses_what_does_not_fit_and_offsets_it_did_not_give() -> None:
    arena = Arena(4 * PAGE)
    assert arena.allocate(5 * PAGE) is None
    assert arena.allocate(1) == 0
    with pytest.raises(KeyError):
        arena.free(PAGE)


@given(st.lists(st.integers(0, 300), max_size=60))
def test_credits_stay_within_the_limit_but_for_one_large_message(sizes: list[int]) -> None:
    credits, under_way, acknowledged = Credits(256, 8), [], 0
    for size in sizes:
        while not credits.take(size):
            under_way.pop(0)
            acknowledged += 1
            credits.acknowledge(acknowledged)
        credits.cast(size)
        under_way.append(size)
        assert len(under_way) <= 8
        assert sum(under_way) <= 256 or len(under_way) == 1
    credits.acknowledge(acknowledged + len(under_way))
    assert (credits.bytes, credits.messages) == (0, 0)


def test_acknowledgements_come_by_bytes_and_by_messages() -> None:
    by_messages = Acknowledgements(every_bytes=100, every_messages=3)
    assert [by_messages.ran(1) for _ in range(6)] == [None, None, 3, None, None, 6]
    by_bytes = Acknowledgements(every_bytes=100, every_messages=30)
    assert [by_bytes.ran(60) for _ in range(4)] == [None, 2, None, 4]


def test_call_table_matches_answers_and_ignores_stale_ones() -> None:
    table = CallTable()
    first, second = (Pending(lambda outcome: None, size, "e") for size in (1, 2))
    numbers = [table.open(first), table.open(second)]
    assert table.take(numbers[1]) is second
    assert table.take(numbers[1]) is None
    assert table.drain() == [first]
    assert len(table) == 0


def test_gather_is_whole_when_all_are_in() -> None:
    gather = Gather((0, 2))
    assert not gather.put(2, ValueError())
    assert gather.pending == (0,)
    assert gather.put(0, Frame(Kind.VALUE, 1, b"", []))
    assert not gather.put(0, ValueError())


def test_gather_is_whole_at_the_first_death() -> None:
    gather = Gather((0, 1, 2))
    assert gather.put(1, ActorDied("dead", actor="a", rank={}))
    assert not gather.put(0, ActorDied("dead", actor="a", rank={}))
    assert gather.pending == (0, 2)


@given(st.text(alphabet="ab\né", max_size=40), st.integers(1, 5))
def test_lines_are_cut_the_same_however_the_bytes_come(text: str, step: int) -> None:
    data, lines = text.encode(), Lines()
    seen = [line for at in range(0, len(data), step) for line in lines.feed(data[at : at + step])] + lines.end()
    assert seen == [*text.split("\n")[:-1], *([rest] if (rest := text.split("\n")[-1]) else [])]
