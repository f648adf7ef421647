"""A batch in the layout of Arrow's own writer is read as any other, also if it is damaged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.bodies.arrow_streams import fault, read, stream

from tidelog_gateway.bodies import arrow_body
from tidelog_gateway.problems import Problem
from tidelog_proto.batch.columns import columns_of

CANONICAL = columns_of(
    [b"abc", None, b""],
    keys=[b"k", b"l", None],
    timestamps_us=[1, 2, 3],
    headers=[[("h", b"1")], None, []],
    tags=["t", None, "u"],
)
SUBSETS = [["value"], ["key", "value"], ["tag", "value"], ["value", "timestamp"], list(CANONICAL.schema.names)]


@pytest.mark.parametrize("names", SUBSETS)
async def test_a_batch_in_the_layout_of_a_known_schema_is_read_as_any_other(names: list[str]) -> None:
    given = CANONICAL.select(names)
    body = stream(given)
    first = await read(body)
    assert arrow_body.plain_batch(body) is not None
    assert (await read(memoryview(bytearray(body)))).batches == first.batches
    for other in (stream(given, given), stream(given, compression="lz4"), stream(given.slice(0, 0)), body[:-8]):
        assert arrow_body.plain_batch(other) is None
    longer = columns_of([b"x" * 1_000] * 500).select(["value"])
    if names == ["value"]:
        assert arrow_body.plain_batch(stream(longer)) is not None
        assert (await read(stream(longer))).batches == [longer]
        assert "more than 499 records" in await fault(stream(longer), records_max=499)
        assert "more than 1000 bytes" in await fault(stream(longer), 413, decoded_bytes_max=1_000)


async def test_a_large_batch_in_a_known_layout_takes_turns() -> None:
    body = stream(columns_of([b"x" * 1_000] * 3_000))
    await read(body)
    turns: list[None] = []

    async def taken() -> None:
        turns.append(None)

    await read(body, pace=taken)
    assert len(turns) == 1


async def test_a_plain_stream_is_read_at_once_unless_it_takes_turns() -> None:
    body = stream(CANONICAL)
    read_in_turns = await read(body)

    def at_once(
        body: bytes, records_max: int = 10, decoded_bytes_max: int = 10_000_000
    ) -> arrow_body.ArrowRecords | None:
        return arrow_body.records_at_once(body, records_max=records_max, decoded_bytes_max=decoded_bytes_max)

    assert at_once(body) == read_in_turns
    assert read_in_turns.size_bytes is not None
    assert read_in_turns.size_bytes >= CANONICAL.nbytes
    assert at_once(stream(CANONICAL, compression="lz4")) is None
    assert at_once(stream(CANONICAL, CANONICAL)) is None
    assert at_once(stream(columns_of([b"x" * 1_000] * 3_000)), records_max=3_000) is None
    with pytest.raises(Problem, match="more than 2 records"):
        at_once(body, records_max=2)
    with pytest.raises(Problem, match="more than 20 bytes"):
        at_once(body, decoded_bytes_max=20)


PLAIN = stream(CANONICAL)
HEAD_BYTES = PLAIN.index(b"abc")


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, HEAD_BYTES - 1) | st.integers(len(PLAIN) - 8, len(PLAIN) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=3,
    )
)
async def test_a_damaged_stream_gives_the_same_result_without_a_known_layout(changes: list[tuple[int, int]]) -> None:
    await read(PLAIN)
    body = bytearray(PLAIN)
    for at, byte in changes:
        body[at] = byte
    results: list[object] = []
    for plain_batch in (arrow_body.plain_batch, lambda _: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrow_body, "plain_batch", plain_batch)
            try:
                results.append((await read(bytes(body))).batches)
            except Problem as problem:
                results.append((problem.status, problem.extra))
    assert results[0] == results[1]
