"""Checks that an answer matches its request; a mismatch closes the connection, because its stream cannot be trusted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from tidelog.cluster.connection import Connection
from tidelog.errors import BadReplyError
from tidelog_proto.wire.frames import Frame

ANSWERS: Final = {
    "metadata": "metadata_reply",
    "publish": "publish_reply",
    "producer_begin": "producer_begin_reply",
    "fetch": "fetch_reply",
    "list_offsets": "list_offsets_reply",
    "subscribe": "subscribe_reply",
    "unsubscribe": "unsubscribe_reply",
    "commit": "commit_reply",
    "committed": "committed_reply",
    "group_heartbeat": "group_heartbeat_reply",
    "group_describe": "group_describe_reply",
    "group_list": "group_list_reply",
    "group_delete": "group_delete_reply",
    "topic_create": "topic_reply",
    "topic_describe": "topic_reply",
    "topic_list": "topic_reply",
    "topic_alter": "topic_reply",
    "topic_delete": "topic_reply",
    "schema_change": "schema_change_reply",
    "schemas": "schemas_reply",
    "cluster_status": "cluster_status_reply",
    "cluster_change": "cluster_change_reply",
    "delete_records": "delete_records_reply",
    "compact": "compact_reply",
    "security_change": "security_change_reply",
    "security_list": "security_list_reply",
    "access_test": "access_test_reply",
    "identify": "identify_reply",
}
"""Kind of request -> kind of its answer."""

R = TypeVar("R")


def check_answer(kind: str, frame: Frame, connection: Connection) -> Frame:
    """Return `frame` if it has the kind that answers `kind`; otherwise close the connection.

    Raises:
        BadReplyError: the kind does not match.
    """
    answered = frame.envelope.WhichOneof("kind")
    if answered == ANSWERS[kind]:
        return frame
    bad = BadReplyError(f"{connection.name} answered {kind} with {answered}; the connection was closed")
    connection.close(bad)
    raise bad


def results_of(results: Iterable[R], count: int, connection: Connection) -> list[R]:
    """Return an answer's results if there is one for each entry of the request; otherwise close the connection.

    Raises:
        BadReplyError: the numbers differ.
    """
    received = list(results)
    if len(received) != count:
        bad = BadReplyError(
            f"{connection.name} returned {len(received)} results for {count} entries; the connection was closed"
        )
        connection.close(bad)
        raise bad
    return received
