"""A replica's files are read completely: published records are found, and damage is detected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.faults.copies import drain, stored_spans
from tests.faults.history import Key
from tests.faults.nodes import make_nodes
from tests.faults.values import CORRUPT, number_of, value_of

from tidelog import Client

pytestmark = pytest.mark.e2e

KEY = Key("t", 0)
SENT = [number_of(3, sequence) for sequence in range(500)]


async def fill(base: Path) -> tuple[Path, Mapping[bytes, str]]:
    """Run a node, publish to it, stop it; return its data directory, and what its topics are called by their ids."""
    (node,) = make_nodes(1, base, None, None)
    await node.start()
    try:
        async with Client(node.address) as client:
            topic = await client.create_topic("t", segment_bytes=64 * 1024)
            async with client.producer("t") as producer:
                for start in range(0, len(SENT), 100):
                    await producer.send_many([value_of(number) for number in SENT[start : start + 100]])
                await producer.send(b"nobody's")
        await node.stop()
    finally:
        await node.kill()
    assert node.failures() == []
    return node.data, {topic.topic_id: "t"}


async def test_published_records_are_found_and_a_flipped_byte_is_detected(tmp_path: Path) -> None:
    data, known = await fill(tmp_path)
    other = {bytes(16): "t"}
    batches = drain(data, known)[KEY]
    assert [number for batch in batches for number in batch.numbers] == [*SENT, CORRUPT]
    assert [batch.base_offset for batch in batches] == [0, 100, 200, 300, 400, 500]
    assert len({batch.digest for batch in batches}) == 6
    assert stored_spans(data, known) == {KEY: (0, 501)}
    assert drain(data, other) == {}
    assert stored_spans(data, other) == {}

    (last, *_) = sorted((data / "partitions").rglob("*.seg"), reverse=True)
    raw = bytearray(last.read_bytes())
    at = raw.rindex(b"nobody's")
    raw[at] ^= 1
    last.write_bytes(raw)
    assert [batch.base_offset for batch in drain(data, known)[KEY]] == [0, 100, 200, 300, 400]
    assert stored_spans(data, known) == {KEY: (0, 500)}


async def test_an_unexpected_end_is_detected(tmp_path: Path) -> None:
    (node,) = make_nodes(1, tmp_path, None, None)
    await node.start()
    try:
        started = node.process._process
        assert started is not None
        started.kill()
        await started.wait()
        assert not node.running
        await node.start()
        await node.kill()
        assert node.failures() == ["n1: it ended by itself with -9"]
    finally:
        await node.kill()
