from __future__ import annotations

import pytest

from tidelog_gateway.worker_channel.frames import (
    HEADER,
    HEARTBEAT,
    PAYLOAD_BYTES_MAX,
    SAMPLE,
    FrameError,
    FrameReader,
    frame,
)


def test_frames_are_parsed_in_any_pieces() -> None:
    sent = [(HEARTBEAT, b""), (SAMPLE, b"x" * 1000), (SAMPLE, b"")]
    data = b"".join(frame(kind, payload) for kind, payload in sent)
    for size in (1, 3, 7, len(data)):
        reader = FrameReader()
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [found for piece in pieces for found in reader.feed(piece)] == sent


def test_a_frame_above_the_limit_is_refused_before_it_arrives() -> None:
    with pytest.raises(FrameError, match="the limit is"):
        list(FrameReader().feed(HEADER.pack(SAMPLE, PAYLOAD_BYTES_MAX + 1)))
