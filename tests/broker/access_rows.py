"""A request of each kind that a node accepts, the needed permission, and the answering node: rows of the access table.

The kinds come from the node's own list. `test_access_of_each_kind.py` sends each of them as every caller, over the
native port and as a forwarded request; a kind without a row fails there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tests.broker.peer import NOW_US

from tidelog_broker.server.access import RULES
from tidelog_broker.wire.one_way import ONE_WAY_KINDS
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import columns_of, encode_batch

TIMES = ("native", "handed on")
"""Each row is done as often, with something of its own to delete."""


class World(NamedTuple):
    """Values for requests: the ids of topics `t` and `typed`, another caller's API key, and the requesting surface."""

    topic_id: bytes
    typed_id: bytes
    api_key: str
    surface: str


class Row(NamedTuple):
    """One kind of request.

    Attributes:
        asked: makes the request.
        at: the answering node: the owner of `__meta`, of the topic, or of the group; or any node.
        operation: the operation that the caller needs permission for.
        resource: the resource of that operation.
        attachment: attachment of the request.
        itself: whether clients must send it to that node, because no node forwards it.
    """

    asked: Callable[[World], Any]
    at: Literal["meta", "topic", "group", "any"]
    operation: pb.Operation
    resource: pb.Resource
    attachment: bytes = b""
    itself: bool = False


def _row(
    kind: str, at: Literal["meta", "topic", "group", "any"], asked: Callable[[World], Any], *, itself: bool = False
) -> Row:
    """Return the row of a kind with a rule in the table."""
    need = RULES[kind]
    assert need.operation is not None, kind
    return Row(asked, at, need.operation, need.resource, itself=itself)


_BATCH = encode_batch(columns_of([b"x"], keys=[b"k"]), now_us=NOW_US).to_bytes()
GROUP = "g"


def _gone(world: World) -> str:
    return f"gone-{world.surface}"


def _begin(world: World) -> pb.ProducerBegin:
    entry = {"topic_id": world.topic_id, "producer_id": 1 + TIMES.index(world.surface), "producer_epoch": 1024}
    return pb.ProducerBegin(entries=[entry])


def _heartbeat(world: World) -> pb.GroupHeartbeat:
    wish = pb.GroupWish(pattern=".*", session_timeout_ms=10_000, client_id="raw", host="here", born_us=1)
    member = f"member{TIMES.index(world.surface)}".ljust(16, "x")
    return pb.GroupHeartbeat(group="members", member_id=member, join=wish)


def _other(world: World) -> pb.AccessTest:
    return pb.AccessTest(principal="other", operation=pb.OP_CONSUME, resource=pb.RES_TOPIC, name="t")


ROWS: dict[str, Row] = {
    "publish": Row(
        lambda world: pb.Publish(entries=[{"topic_id": world.topic_id, "length": len(_BATCH)}]),
        "topic",
        pb.OP_PRODUCE,
        pb.RES_TOPIC,
        _BATCH,
    ),
    "fetch": Row(
        lambda world: pb.Fetch(entries=[{"topic_id": world.topic_id}]),
        "topic",
        pb.OP_CONSUME,
        pb.RES_TOPIC,
        itself=True,
    ),
    "list_offsets": Row(
        lambda world: pb.ListOffsets(entries=[{"topic_id": world.topic_id, "latest": True}]),
        "topic",
        pb.OP_DESCRIBE,
        pb.RES_TOPIC,
        itself=True,
    ),
    "access_test": Row(_other, "any", pb.OP_CLUSTER, pb.RES_CLUSTER),
    "producer_begin": _row("producer_begin", "topic", _begin, itself=True),
    "subscribe": Row(
        lambda world: pb.Subscribe(subscription_id=7, entries=[{"topic_id": world.topic_id}]),
        "topic",
        pb.OP_CONSUME,
        pb.RES_TOPIC,
        itself=True,
    ),
    "compact": _row("compact", "topic", lambda world: pb.Compact(entries=[{"topic_id": world.topic_id}])),
    "delete_records": _row(
        "delete_records",
        "topic",
        lambda world: pb.DeleteRecords(entries=[{"topic_id": world.topic_id, "offset": 0}]),
    ),
    "commit": _row(
        "commit",
        "group",
        lambda world: pb.Commit(group=GROUP, entries=[{"topic_id": world.topic_id, "next_offset": 0}]),
    ),
    "committed": _row("committed", "group", lambda _: pb.Committed(group=GROUP)),
    "group_heartbeat": _row("group_heartbeat", "group", _heartbeat),
    "group_describe": _row("group_describe", "group", lambda _: pb.GroupDescribe(group=GROUP)),
    "group_delete": _row("group_delete", "group", lambda world: pb.GroupDelete(group=_gone(world))),
    "topic_create": _row(
        "topic_create",
        "meta",
        lambda world: pb.TopicCreate(name=f"made-{world.surface.replace(' ', '-')}"),
    ),
    "topic_describe": _row("topic_describe", "any", lambda _: pb.TopicDescribe(name="t")),
    "topic_alter": _row("topic_alter", "meta", lambda _: pb.TopicAlter(name="t", retention_ms=1 << 40)),
    "schema_change": _row(
        "schema_change", "meta", lambda _: pb.SchemaChange(topic="typed", expected_number=1, floor=1)
    ),
    "schemas": _row("schemas", "any", lambda world: pb.Schemas(topic_id=world.typed_id)),
    "topic_delete": _row(
        "topic_delete", "meta", lambda world: pb.TopicDelete(name=f"doomed-{world.surface.replace(' ', '-')}")
    ),
    "cluster_status": _row("cluster_status", "any", lambda _: pb.ClusterStatus()),
    "cluster_change": _row("cluster_change", "meta", lambda _: pb.ClusterChange(undrain="a")),
    "security_change": _row(
        "security_change", "meta", lambda _: pb.SecurityChange(create_key=pb.ApiKey(principal="made"))
    ),
    "security_list": _row("security_list", "meta", lambda _: pb.SecurityList(what=pb.SecurityList.KEYS)),
    "identify": _row("identify", "any", lambda world: pb.Identify(credentials=pb.Credentials(api_key=world.api_key))),
}
"""Kinds that need a permission, with a request that succeeds if the caller has exactly that permission."""

NEVER_HANDED_ON = {"identify": pb.INVALID_REQUEST}
"""Kinds that concern their own connection; the error if a node sends one on behalf of a caller."""

SHOWN: dict[str, Any] = {
    "metadata": pb.Metadata(),
    "topic_list": pb.TopicList(),
    "group_list": pb.GroupList(),
}
"""Kinds that show whatever the caller may describe, and nothing to others."""

OWN: dict[str, Any] = {
    "credit": pb.Credit(subscription_id=1, records=1, bytes=1),
    "unsubscribe": pb.Unsubscribe(subscription_id=1),
}
"""Kinds that concern subscriptions of their own connection; a caller cannot reach those of another connection."""

GREETINGS = {"hello", "peer_hello", "peer_proof"}
"""Kinds that authenticate: they are tested with HELLO and with nodes."""

NODES = ONE_WAY_KINDS | {"node_announce", "incarnations"}
"""Kinds that are taken from nodes alone."""


def code_in(envelope: pb.Envelope) -> int:
    """Return the first error of an answer, or of its results; 0: all was done."""
    kind = envelope.WhichOneof("kind")
    if kind == "error":
        return envelope.error.code
    reply = getattr(envelope, kind or "")
    if "error" in reply.DESCRIPTOR.fields_by_name and reply.HasField("error"):
        return int(reply.error.code)
    results = getattr(reply, "results", ())
    return next((result.error.code for result in results if result.HasField("error")), 0)


def named_in(envelope: pb.Envelope) -> list[str]:
    """Return the topics or groups in an answer, except the broker's own."""
    reply = getattr(envelope, envelope.WhichOneof("kind") or "")
    groups = [found.group for found in getattr(reply, "groups", ())]
    return groups + [topic.name for topic in getattr(reply, "topics", ()) if not topic.name.startswith("__")]


def tells_of(topic_id: bytes, envelope: pb.Envelope, request: Any) -> bool:
    """Whether an answer has a topic that the request has not named; answers have the name of each topic with its id."""
    return topic_id in envelope.SerializeToString() and topic_id not in request.SerializeToString()
