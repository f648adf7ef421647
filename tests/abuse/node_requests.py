"""The largest request of each kind that a client may send to a node, as frames."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.abuse.stand import RECORDS, WIDE, Stand
from tests.proto.large_schemas import largest_schema, widened

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.limits import (
    BATCHES_PER_PUBLISH_MAX,
    ENTRIES_PER_REQUEST_MAX,
    EPOCHS_PER_INSTANCE,
    MIB,
    PAGE_BYTES,
    PROTOCOL_VERSION,
)
from tidelog_proto.schema.schema_messages import message_of_schema
from tidelog_proto.wire.frames import encode_frame

ENTRIES: Final = ENTRIES_PER_REQUEST_MAX
NOW_US: Final = 1_700_000_000_000_000

Largest = Callable[[Stand], Iterator[bytes]]
"""Makes one frame after another of a kind, each the largest there is; never the same group, topic or member twice."""


def _frame(attachment: bytes = b"", **kind: Any) -> bytes:
    return encode_frame(pb.Envelope(correlation_id=1, **kind), len(attachment)) + attachment


def _same(attachment: bytes = b"", **kind: Any) -> Iterator[bytes]:
    return itertools.repeat(_frame(attachment, **kind))


def _wide(stand: Stand, entry: Callable[..., Any], **more: Any) -> list[Any]:
    return [entry(topic_id=stand.topics["wide"], partition=number, **more) for number in range(ENTRIES)]


def _metadata_unknown(_: Stand) -> Iterator[bytes]:
    return _same(metadata=pb.Metadata(topics=[f"unknown-{number}" for number in range(ENTRIES)]))


def _metadata_known(stand: Stand) -> Iterator[bytes]:
    known = pb.KnownEpochs(topic_id=stand.topics["wide"], news_from=[1 << 40] * WIDE)
    # Held for a second: the node's other work in a longer time costs more than the request.
    return _same(metadata=pb.Metadata(topics=["wide"], known=[known], wait_ms=1_000))


def _metadata_too_many(_: Stand) -> Iterator[bytes]:
    return _same(metadata=pb.Metadata(known=[pb.KnownEpochs(news_from=[1])] * 200_000, wait_ms=1_000))


def _batch(values: list[bytes]) -> bytes:
    return encode_batch(columns_of(values), now_us=NOW_US).to_bytes()


def _publish_batches(stand: Stand) -> Iterator[bytes]:
    batch = _batch([b"x"])
    entries = [pb.PublishEntry(topic_id=stand.topics["sink"], length=len(batch))] * BATCHES_PER_PUBLISH_MAX
    return _same(batch * BATCHES_PER_PUBLISH_MAX, publish=pb.Publish(entries=entries))


def _publish_partitions(stand: Stand) -> Iterator[bytes]:
    batch = _batch([b"x"])
    topic = stand.topics["wide"]
    entries = [
        pb.PublishEntry(topic_id=topic, partition=number, length=len(batch))
        for number in range(BATCHES_PER_PUBLISH_MAX)
    ]
    return _same(batch * BATCHES_PER_PUBLISH_MAX, publish=pb.Publish(entries=entries))


def _publish_records(stand: Stand) -> Iterator[bytes]:
    batch = _batch([b""] * 900_000)
    entry = pb.PublishEntry(topic_id=stand.topics["sink"], length=len(batch))
    return _same(batch, publish=pb.Publish(entries=[entry]))


def _publish_bytes(stand: Stand) -> Iterator[bytes]:
    batch = _batch([bytes(15 * MIB)])
    entry = pb.PublishEntry(topic_id=stand.topics["sink"], length=len(batch))
    return _same(batch, publish=pb.Publish(entries=[entry]))


def _publish_too_many(_: Stand) -> Iterator[bytes]:
    return _same(publish=pb.Publish(entries=[pb.PublishEntry(partition=1)] * 240_000))


def _producer_begin(stand: Stand) -> Iterator[bytes]:
    more = {"producer_id": 7, "producer_epoch": EPOCHS_PER_INSTANCE}
    return _same(producer_begin=pb.ProducerBegin(entries=_wide(stand, pb.ProducerBeginEntry, **more)))


def _fetch(stand: Stand) -> Iterator[bytes]:
    return _same(fetch=pb.Fetch(entries=_wide(stand, pb.FetchEntry), min_bytes=1, wait_ms=100))


def _fetch_one_partition(stand: Stand) -> Iterator[bytes]:
    entries = [pb.FetchEntry(topic_id=stand.topics["flood"], max_bytes=1)] * ENTRIES
    return _same(fetch=pb.Fetch(entries=entries, max_bytes=1))


def _fetch_filtered(stand: Stand) -> Iterator[bytes]:
    wanted = pb.RecordFilter(key=b"none")
    entries = [pb.FetchEntry(topic_id=stand.topics["flood"], filter=wanted)] * ENTRIES
    return _same(fetch=pb.Fetch(entries=entries))


def _offsets(stand: Stand, **at: Any) -> Iterator[bytes]:
    topic_id = stand.topics["flood"]
    return _same(list_offsets=pb.ListOffsets(entries=[pb.ListOffsetsEntry(topic_id=topic_id, **at)] * ENTRIES))


def _subscribe(stand: Stand) -> Iterator[bytes]:
    for number in itertools.count(1):
        entries = _wide(stand, pb.SubscribeEntry)
        yield _frame(subscribe=pb.Subscribe(subscription_id=number, entries=entries, credit_records=1, credit_bytes=1))
        yield _frame(unsubscribe=pb.Unsubscribe(subscription_id=number))


def _credit(_: Stand) -> Iterator[bytes]:
    return itertools.repeat(_frame(credit=pb.Credit(subscription_id=1, records=1, bytes=1)) * 1_000)


def _commit(stand: Stand) -> Iterator[bytes]:
    for number in itertools.count():
        entries = _wide(stand, pb.CommitEntry, note="n" * 16)
        yield _frame(commit=pb.Commit(group=f"group-{number % 16}", entries=entries, reset=True))


def _committed(stand: Stand) -> Iterator[bytes]:
    return _same(committed=pb.Committed(group="group-1", entries=_wide(stand, pb.CommittedEntry)))


def _committed_all(_: Stand) -> Iterator[bytes]:
    return _same(committed=pb.Committed(group="group-1"))


def _group_join(_: Stand) -> Iterator[bytes]:
    for number in itertools.count():
        wish = pb.GroupWish(topics=["wide"], session_timeout_ms=500)
        beat = pb.GroupHeartbeat(group="joined", member_id=f"member{number:026d}", join=wish)
        yield _frame(group_heartbeat=beat)


def _group_join_vast(_: Stand) -> Iterator[bytes]:
    for number in itertools.count():
        wish = pb.GroupWish(topics=["wide", "vast"], session_timeout_ms=500)
        yield _frame(group_heartbeat=pb.GroupHeartbeat(group="vast", member_id=f"member{number:026d}", join=wish))


def _group_join_names(_: Stand) -> Iterator[bytes]:
    for number in itertools.count():
        wish = pb.GroupWish(topics=[f"unknown-{name}" for name in range(1_000)], session_timeout_ms=500)
        yield _frame(
            group_heartbeat=pb.GroupHeartbeat(group=f"named-{number % 64}", member_id=f"member{number:026d}", join=wish)
        )


def _group_join_pattern(_: Stand) -> Iterator[bytes]:
    for number in itertools.count():
        wish = pb.GroupWish(pattern=f"(a|b|c){{1,64}}{number}.*", session_timeout_ms=500)
        yield _frame(
            group_heartbeat=pb.GroupHeartbeat(group=f"some-{number % 64}", member_id=f"member{number:026d}", join=wish)
        )


def _group_held(stand: Stand) -> Iterator[bytes]:
    held = [pb.TopicPartitions(topic_id=stand.topics["wide"], partitions=range(100_000))]
    loads = [pb.PartitionLoad(topic_id=stand.topics["wide"], partition=n % WIDE, bytes_per_s=1) for n in range(20_000)]
    beat = pb.GroupHeartbeat(group="joined", member_id=f"member{0:026d}", held=held, loads=loads)
    return _same(group_heartbeat=beat)


_NUMBERS: Final = itertools.count()


def _topic_create(_: Stand) -> Iterator[bytes]:
    config = pb.TopicConfig(partitions=4_096)
    for number in _NUMBERS:
        yield _frame(topic_create=pb.TopicCreate(name=f"made-{number}", config=config))
        yield _frame(topic_delete=pb.TopicDelete(name=f"made-{number}"))


def _schema_change(_: Stand) -> Iterator[bytes]:
    first = largest_schema()
    second = message_of_schema(widened(first))
    for number in _NUMBERS:
        name = f"evolved-{number}"
        yield _frame(topic_create=pb.TopicCreate(name=name, schema=message_of_schema(first)))
        yield _frame(schema_change=pb.SchemaChange(topic=name, schema=second, expected_number=1))
        yield _frame(topic_delete=pb.TopicDelete(name=name))


def _hello(stand: Stand) -> Iterator[bytes]:
    hello = pb.Hello(version=PROTOCOL_VERSION, client_id="abuse")
    hello.credentials.api_key = stand.keys["flood"]
    return _same(hello=hello)


def _cluster_status_named(stand: Stand) -> Iterator[bytes]:
    return _same(cluster_status=pb.ClusterStatus(partitions=_wide(stand, pb.PartitionName), ages=True))


def _grant(_: Stand) -> Iterator[bytes]:
    for number in itertools.count():
        rule = pb.AccessRule(principal=f"p-{number}", operations=[pb.OP_CONSUME], resource=pb.RES_TOPIC, name="t")
        yield _frame(security_change=pb.SecurityChange(grant=rule))


def _unknown_fields(_: Stand) -> Iterator[bytes]:
    """Return an envelope of half a million empty fields that no message has."""
    envelope = pb.Envelope(correlation_id=1, access_test=pb.AccessTest()).SerializeToString()
    envelope += b"\xfa\x3f\x00" * (MIB // 3 - 100)
    return itertools.repeat(encode_raw(envelope))


def encode_raw(envelope: bytes) -> bytes:
    """Return a frame without an attachment around the bytes of an envelope."""
    return (len(envelope) + 4).to_bytes(4, "little") + len(envelope).to_bytes(4, "little") + envelope


LARGEST: Final[dict[str, Largest]] = {
    "metadata: 4,096 unknown names": _metadata_unknown,
    "metadata: held, 4,096 partitions known": _metadata_known,
    "metadata: 200,000 known topics": _metadata_too_many,
    "publish: 1,024 batches": _publish_batches,
    "publish: 1,024 batches to as many partitions": _publish_partitions,
    "publish: a batch of 900,000 records": _publish_records,
    "publish: a batch of 15 MiB": _publish_bytes,
    "publish: 240,000 entries": _publish_too_many,
    "producer_begin: 4,096 partitions": _producer_begin,
    "fetch: 4,096 partitions": _fetch,
    "fetch: 4,096 times one partition": _fetch_one_partition,
    "fetch: 4,096 filters": _fetch_filtered,
    "list_offsets: 4,096 latest": lambda stand: _offsets(stand, latest=True),
    "list_offsets: 4,096 by time": lambda stand: _offsets(stand, timestamp_us=NOW_US),
    "list_offsets: 4,096 by key": lambda stand: _offsets(stand, latest_of_key=b"none"),
    "compact: 4,096 partitions": lambda stand: _same(compact=pb.Compact(entries=_wide(stand, pb.CompactEntry))),
    "delete_records: 4,096 partitions": lambda stand: _same(
        delete_records=pb.DeleteRecords(entries=_wide(stand, pb.DeleteRecordsEntry, offset=0))
    ),
    "subscribe: 4,096 partitions": _subscribe,
    "unsubscribe: 4,096 partitions": _subscribe,
    "credit: 1,000 grants": _credit,
    "commit: 4,096 positions": _commit,
    "committed: 4,096 positions": _committed,
    "committed: a whole group": _committed_all,
    "group_heartbeat: joins": _group_join,
    "group_heartbeat: joins of a group of 20,000 partitions": _group_join_vast,
    "group_heartbeat: joins that name 1,000 topics": _group_join_names,
    "group_heartbeat: joins with a pattern": _group_join_pattern,
    "group_heartbeat: 100,000 held, 20,000 loads": _group_held,
    "group_describe": lambda _: _same(group_describe=pb.GroupDescribe(group="joined")),
    "group_list": lambda _: _same(group_list=pb.GroupList()),
    "group_delete": lambda _: _same(group_delete=pb.GroupDelete(group="joined")),
    "topic_create: 4,096 partitions": _topic_create,
    "topic_delete: 4,096 partitions": _topic_create,
    "topic_describe": lambda _: _same(topic_describe=pb.TopicDescribe(name="wide")),
    "topic_list": lambda _: _same(topic_list=pb.TopicList()),
    "topic_alter": lambda _: _same(topic_alter=pb.TopicAlter(name="flood", flush_interval_ms=100)),
    "schema_change: 256 fields": _schema_change,
    "schemas: 256 fields": lambda stand: _same(schemas=pb.Schemas(topic_id=stand.topics["typed"])),
    "cluster_status": lambda _: _same(cluster_status=pb.ClusterStatus()),
    "cluster_status: 4,096 partitions": _cluster_status_named,
    "cluster_change: drain": lambda _: _same(cluster_change=pb.ClusterChange(drain="nobody")),
    "security_change: grant": _grant,
    "security_list: rules": lambda _: _same(security_list=pb.SecurityList(what=pb.SecurityList.RULES)),
    "access_test": lambda _: _same(access_test=pb.AccessTest(operation=pb.OP_CONSUME, resource=pb.RES_TOPIC, name="t")),
    "identify": lambda _: _same(identify=pb.Identify(only_revision=True)),
    "unknown fields: 350,000": _unknown_fields,
    "hello": _hello,
    "peer_hello: a node that has yet to join": lambda _: _same(peer_hello=pb.PeerHello()),
    "peer_proof: one without a challenge": lambda _: _same(peer_proof=pb.PeerProof()),
}
"""The requests to measure, by a name that begins with the kind's."""

UNMEASURED: Final[dict[str, tuple[int, int]]] = {
    "subscribe: 4,096 partitions": (0, 1),
    "unsubscribe: 4,096 partitions": (1, 0),
    "topic_create: 4,096 partitions": (0, 1),
    "topic_delete: 4,096 partitions": (1, 0),
    "schema_change: 256 fields": (1, 1),
}
"""Requests before and after a measured one that are not measured: they create or delete its objects."""
GREETINGS: Final = frozenset({"hello", "peer_hello", "peer_proof"})
"""Kinds that begin a connection: each is sent over a connection of its own."""

assert RECORDS > 0
assert PAGE_BYTES > 0
