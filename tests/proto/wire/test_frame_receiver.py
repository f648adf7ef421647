"""Frames out of a byte stream: however it is cut, whatever is declined, whatever is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX
from tidelog_proto.wire.frame_receiver import DECLINED, SCRATCH_BYTES, FrameReceiver
from tidelog_proto.wire.frames import encode_frame


def frame(correlation: int, attachment: bytes = b"", name: str = "") -> bytes:
    envelope = pb.Envelope(correlation_id=correlation, metadata=pb.Metadata(topics=[name] if name else []))
    return encode_frame(envelope, len(attachment)) + attachment


class Feeder:
    """Feeds a receiver the way a transport does: never more than the buffer it is given."""

    def __init__(
        self,
        *,
        declined: frozenset[int] = frozenset(),
        frame_bytes_max: int = FRAME_BYTES_MAX,
        asks: bool = False,
        piece_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.asked: list[tuple[int, int]] = []
        self.got: list[tuple[int, bytes]] = []
        self.went_on = 0
        self.declined = 0
        self._declined = declined
        self._asks = asks
        self._piece_bytes_max = piece_bytes_max
        self.gathered: list[int] = []
        self.receiver = FrameReceiver(frame_bytes_max=frame_bytes_max, admit=self._admit, gather=self.gathered.append)

    def _admit(self, envelope: pb.Envelope, attachment_bytes: int) -> bool:
        self.asked.append((envelope.correlation_id, attachment_bytes))
        return envelope.correlation_id not in self._declined

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            buffer = self.receiver.buffer()
            assert len(buffer) > 0
            taken = min(len(buffer), len(data) - at, self._piece_bytes_max)
            buffer[:taken] = data[at : at + taken]
            at += taken
            if self._asks and self.receiver.goes_on(taken):
                self.went_on += 1
                continue
            whole = self.receiver.whole(taken) if self._asks else None
            for one in self.receiver.received(taken) if whole is None else (whole,):
                if one is DECLINED:
                    self.declined += 1
                else:
                    self.got.append((one.envelope.correlation_id, bytes(one.attachment)))


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=8),
    st.sets(st.integers(0, 7)),
    st.lists(st.integers(1, 200), min_size=1),
    st.booleans(),
)
def test_frames_arrive_whole_in_order_however_the_stream_is_cut(
    attachments: list[bytes], declined: set[int], cuts: list[int], asks: bool
) -> None:
    stream = b"".join(frame(number, data) for number, data in enumerate(attachments))
    if asks:  # each frame alone, after those that are cut
        cuts = [*cuts, *map(len, (frame(number, data) for number, data in enumerate(attachments)))]
    feeder = Feeder(declined=frozenset(declined), asks=asks)
    at = 0
    turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        feeder.feed(stream[at : at + size])
        at += size
        turn += 1
    assert feeder.got == [(number, data) for number, data in enumerate(attachments) if number not in declined]
    assert feeder.asked == [(number, len(data)) for number, data in enumerate(attachments)]
    assert feeder.declined == len(attachments) - len(feeder.got), "the caller may stop after each frame"


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=8), st.sets(st.integers(0, 7)), st.integers(1, 3000))
def test_frames_are_taken_one_by_one_from_bytes_that_have_arrived(
    attachments: list[bytes], declined: set[int], at_once: int
) -> None:
    """The caller parses later, and stops after each frame; no further bytes come meanwhile."""
    stream = b"".join(frame(number, data) for number, data in enumerate(attachments))
    receiver = FrameReceiver(
        frame_bytes_max=FRAME_BYTES_MAX, admit=lambda envelope, _: envelope.correlation_id not in declined
    )
    got: list[tuple[int, bytes]] = []
    while stream:
        buffer = receiver.buffer()
        piece_bytes = min(len(buffer), at_once, len(stream))
        buffer[:piece_bytes], stream = stream[:piece_bytes], stream[piece_bytes:]
        if receiver.incomplete is None:
            receiver.arrived(piece_bytes)
            taken = receiver.take()
        else:
            taken = receiver.take(piece_bytes)
        while taken is not None:
            if taken is not DECLINED:
                got.append((taken.envelope.correlation_id, bytes(taken.attachment)))
            taken = receiver.take() if receiver.left_bytes else None
    assert got == [(number, data) for number, data in enumerate(attachments) if number not in declined]


@pytest.mark.parametrize("declined", [frozenset[int](), frozenset({1})])
def test_an_attachment_larger_than_the_scratch_buffer(declined: frozenset[int]) -> None:
    large = bytes(range(256)) * (SCRATCH_BYTES // 64)
    feeder = Feeder(declined=declined)
    feeder.feed(frame(1, large) + frame(2, b"after"))
    assert feeder.got == [(number, data) for number, data in ((1, large), (2, b"after")) if number not in declined]


@pytest.mark.parametrize("declined", [frozenset[int](), frozenset({2})])
def test_the_middle_of_a_large_attachment_is_only_noted(declined: frozenset[int]) -> None:
    large = bytes(range(256)) * (SCRATCH_BYTES // 64)
    feeder = Feeder(declined=declined, asks=True, piece_bytes_max=SCRATCH_BYTES)
    feeder.feed(b"".join([frame(1, large), frame(2, large), frame(3, b"after"), frame(4, large)]))
    sent = ((1, large), (2, large), (3, b"after"), (4, large))
    assert feeder.got == [(number, data) for number, data in sent if number not in declined]
    # Each is four times the scratch buffer: one piece along with the envelope, and one that ends it.
    assert feeder.went_on == (3 - len(declined)) * 3


def test_an_envelope_larger_than_the_scratch_buffer() -> None:
    feeder = Feeder()
    feeder.feed(frame(1, b"x", name="n" * (SCRATCH_BYTES + 5)) + frame(2))
    assert feeder.got == [(1, b"x"), (2, b"")]
    assert len(feeder.receiver.buffer()) == SCRATCH_BYTES


def test_each_large_envelope_is_announced_once_and_its_memory_is_freed() -> None:
    """The next frame may be large or small: one of the same size, or the first byte of a small one."""
    feeder = Feeder()
    large = frame(1, name="n" * (4 * SCRATCH_BYTES))
    feeder.feed(large[:-1])
    assert feeder.gathered == [len(large)]
    assert feeder.receiver.arrived_bytes == len(large) - 1
    feeder.feed(large[-1:])
    small = frame(2)
    feeder.feed(large + large + small[:1])
    assert feeder.gathered == [len(large)] * 3
    assert len(feeder.receiver.buffer()) == SCRATCH_BYTES - 1
    feeder.feed(small[1:])
    assert [number for number, _ in feeder.got] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\xff" * 16, pb.FRAME_TOO_LARGE),
        (bytes(8), pb.MALFORMED_FRAME),
        (b"\x06\0\0\0\x02\0\0\0\xff\xff", pb.MALFORMED_FRAME),
        (b"\x04\0\0\0\x00\0\0\0", pb.MALFORMED_FRAME),
        (b"\x05\0\0\0\x02\0\0\0", pb.MALFORMED_FRAME),
    ],
    ids=["huge", "zero", "garbage envelope", "no envelope", "envelope past the frame"],
)
def test_a_stream_without_shape_is_refused(data: bytes, code: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        Feeder().feed(data)
    assert caught.value.code == code


def test_the_limit_before_hello_is_checked_before_anything_is_taken() -> None:
    feeder = Feeder(frame_bytes_max=100)
    with pytest.raises(ProtocolError) as caught:
        feeder.feed(frame(1, bytes(200))[:8])
    assert caught.value.code == pb.FRAME_TOO_LARGE
    assert feeder.asked == []
