from __future__ import annotations

import pytest
from tests.clients.fake_node import FakeConnection

from tidelog.cluster.answers import ANSWERS, results_of
from tidelog.cluster.routing import Router
from tidelog.errors import BadReplyError
from tidelog_proto import broker_pb2 as pb

BETWEEN_NODES = range(40, 64)
"""The kinds of the inter-node protocol."""

STATUS = pb.Envelope(cluster_status=pb.ClusterStatus())


def test_every_request_kind_has_its_answer() -> None:
    fields = pb.Envelope.DESCRIPTOR.oneofs_by_name["kind"].fields
    kinds = {field.name for field in fields if field.number not in BETWEEN_NODES}
    assert set(ANSWERS) | set(ANSWERS.values()) <= kinds
    pushed_or_greeting = {
        "error",
        "hello",
        "hello_reply",
        "message_event",
        "subscription_ended",
        "credit",
        "hello_challenge",
    }
    assert kinds - set(ANSWERS) - set(ANSWERS.values()) == pushed_or_greeting


async def test_answer_of_the_wrong_kind_closes_the_connection(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = pb.Envelope(metadata_reply=pb.MetadataReply())
    monkeypatch.setattr(FakeConnection, "on_cluster_status", lambda peer, frame: peer.reply(frame, reply))
    connection = await router.any_connection()
    with pytest.raises(BadReplyError, match="answered cluster_status with metadata_reply"):
        await router.call(connection, STATUS)
    assert connection.closed


async def test_results_must_match_the_entries(router: Router) -> None:
    connection = await router.any_connection()
    assert results_of([1, 2], 2, connection) == [1, 2]
    with pytest.raises(BadReplyError, match="2 results for 3 entries"):
        results_of([1, 2], 3, connection)
    assert connection.closed
