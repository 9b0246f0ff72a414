"""The tcp wire format, fed byte by byte: no sockets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcomms.backend import P2P
from torchcomms.errors import MessageMismatch
from torchcomms.providers.inbox import Batch, Inbox
from torchcomms.providers.tcp import wire

pytestmark = pytest.mark.unit
LONG = 3 * wire.STAGE


def receive(inbox, length, tag=0):
    tensor = torch.zeros(length, dtype=torch.uint8)
    batch = Batch([P2P("recv", tensor, 0, tag)], 1)
    inbox.expect(batch.messages[0])
    return tensor, batch


def feed(reader, stream, cut=1 << 30):
    """Put the stream in, at most `cut` bytes at a time, as a socket would."""
    while stream:
        if reader.stalled:
            reader.resume()
        space = reader.space()
        count = min(len(stream), space.nbytes, cut)
        space[:count] = stream[:count]
        reader.advance(count)
        stream = stream[count:]


def frame(payload, tag=0):
    return wire.data_header(tag, len(payload)) + payload


@settings(max_examples=60, deadline=None, database=None)
@given(
    messages=st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0, 1, 23, 24, 100, 20_000])), max_size=6),
    cut=st.sampled_from([1, 7, 24, 25, 1000, 1 << 20]),
    early=st.integers(0, 6),
)
def test_any_cut_of_the_stream_gives_the_same_messages(messages, cut, early):
    inbox = Inbox()
    reader = wire.FrameReader(inbox)
    payloads = [bytes([index + 1]) * length for index, (_, length) in enumerate(messages)]
    expected = [receive(inbox, length, tag) for tag, length in messages[:early]]
    stream = b"".join(frame(payload, tag) for payload, (tag, _) in zip(payloads, messages, strict=True))
    feed(reader, stream + wire.goodbye(), cut)
    if reader.stalled:
        reader.resume()
    expected += [receive(inbox, length, tag) for tag, length in messages[early:]]
    assert all(batch.settled and batch.error is None for _, batch in expected)
    assert [bytes(tensor.numpy()) for tensor, _ in expected] == payloads
    assert reader.said_goodbye


def test_a_long_message_that_nobody_expects_stalls_until_its_receive_comes():
    inbox = Inbox()
    reader = wire.FrameReader(inbox)
    stream = frame(b"x" * LONG)
    reader.space()[: wire.STAGE] = stream[: wire.STAGE]
    reader.advance(wire.STAGE)
    assert reader.stalled
    tensor, batch = receive(inbox, LONG)
    feed(reader, stream[wire.STAGE :])
    assert batch.settled
    assert bool((tensor == ord("x")).all())


def test_a_receive_may_come_while_its_message_is_half_there():
    inbox = Inbox()
    reader = wire.FrameReader(inbox)
    feed(reader, frame(b"abcd")[:-2])
    tensor, batch = receive(inbox, 4)
    assert not batch.settled
    feed(reader, b"cd")
    assert bytes(tensor.numpy()) == b"abcd"
    assert batch.settled


@pytest.mark.parametrize("early", [True, False])
def test_another_length_fails_the_receive_and_spares_the_next(early):
    inbox = Inbox()
    reader = wire.FrameReader(inbox)
    if early:
        feed(reader, frame(b"abc"))
    tensor, batch = receive(inbox, 2)
    if not early:
        feed(reader, frame(b"abc"))
    assert isinstance(batch.error, MessageMismatch)
    assert (batch.error.expected, batch.error.actual) == (2, 3)
    assert bytes(tensor.numpy()) == b"\0\0"
    feed(reader, frame(b"ok"))
    assert receive(inbox, 2)[1].error is None
