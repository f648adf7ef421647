"""`Client.get`: one request to a node that searches in a fetch, two to an older one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode

from tidelog import Client
from tidelog.errors import ForbiddenError
from tidelog.model import Record
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.hello_features import NEWEST_RECORD
from tidelog_proto.wire.frames import Frame

Answer = Callable[[pb.FetchEntry], tuple[pb.FetchResult, bytes]]


def found(*, value: bytes | None = b"v", tag: str | None = None, headers: bool = False) -> Answer:
    columns = columns_of([value], keys=[b"k"], tags=[tag], headers=[[("n", b"1")]] if headers else None)
    raw = encode_batch(columns, now_us=9).to_bytes()
    return lambda _: (pb.FetchResult(length=len(raw), next_offset=1, high_watermark=1, searched=True), raw)


def absent(_: pb.FetchEntry) -> tuple[pb.FetchResult, bytes]:
    return pb.FetchResult(next_offset=1, high_watermark=1, searched=True), b""


def not_searched(_: pb.FetchEntry) -> tuple[pb.FetchResult, bytes]:
    return pb.FetchResult(high_watermark=1), b""


def refused(_: pb.FetchEntry) -> tuple[pb.FetchResult, bytes]:
    return pb.FetchResult(error=pb.Error(code=pb.FORBIDDEN, message="no")), b""


@pytest.fixture
def answers(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """The node's next answers to a search; it has the feature."""
    node.features = [NEWEST_RECORD]
    scripted: list[Answer] = []

    def on_fetch(peer: FakeConnection, frame: Frame) -> None:
        (entry,) = frame.envelope.fetch.entries
        assert entry.newest
        assert (entry.filter.key, entry.filter.HasField("tag")) == (b"k", False)
        result, attachment = scripted.pop(0)(entry)
        peer.reply(frame, pb.Envelope(fetch_reply=pb.FetchReply(results=[result])), attachment)

    monkeypatch.setattr(FakeConnection, "on_fetch", on_fetch)
    return scripted


@pytest.mark.parametrize(
    ("answer", "record"),
    [
        (found(), Record("t", 0, 0, 9, b"k", b"v", (), None)),
        (found(tag="x"), Record("t", 0, 0, 9, b"k", b"v", (), "x")),
        (found(value=None), Record("t", 0, 0, 9, b"k", None, (), None)),
        (found(headers=True), Record("t", 0, 0, 9, b"k", b"v", (("n", b"1"),), None)),
        (absent, None),
    ],
    ids=["plain", "tag", "tombstone", "headers", "absent"],
)
async def test_newest_record_takes_one_request(
    node: FakeNode, client: Client, answers: list[Answer], answer: Answer, record: Record | None
) -> None:
    answers += [answer, answer]
    assert await client.get("t", b"k") == record
    before = len(node.requests)
    assert await client.get("t", b"k") == record
    assert node.requests[before:] == ["fetch"]


async def test_search_that_the_node_has_not_made_is_repeated(
    node: FakeNode, client: Client, answers: list[Answer]
) -> None:
    answers += [not_searched, absent]
    assert await client.get("t", b"k") is None
    assert node.requests.count("fetch") == 2


async def test_refusal_of_a_search_is_raised(client: Client, answers: list[Answer]) -> None:
    answers += [refused]
    with pytest.raises(ForbiddenError):
        await client.get("t", b"k")


async def test_older_node_gets_two_requests(node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.producer("t").send(b"v", key=b"k")
    place = pb.ListOffsetsResult(offset=0, found=True, high_watermark=1)

    def on_list_offsets(peer: FakeConnection, frame: Frame) -> None:
        assert frame.envelope.list_offsets.entries[0].latest_of_key == b"k"
        peer.reply(frame, pb.Envelope(list_offsets_reply=pb.ListOffsetsReply(results=[place])))

    monkeypatch.setattr(FakeConnection, "on_list_offsets", on_list_offsets)
    before = len(node.requests)
    record = await client.get("t", b"k")
    assert record is not None
    assert (record.offset, record.key, record.value) == (0, b"k", b"v")
    assert node.requests[before:] == ["list_offsets", "fetch"]
