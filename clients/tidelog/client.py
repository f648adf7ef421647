"""The client, the entry point of the library: connections, topics, reads, and creation of producers and consumers.

A client belongs to one process and one event loop: using it in another loop or after a fork raises an error, because
shared sockets and tasks fail in ways that are hard to trace. A client connects on the first request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, Unpack
from weakref import WeakSet

from tidelog.admin import cluster_operations, compaction, record_deletion, schema_changes, topic_changes, topic_figures
from tidelog.admin.schema_changes import NextSchema
from tidelog.admin.schema_proposals import SchemaChanges, SchemaEdits
from tidelog.base.keyword_options import takes_options
from tidelog.base.loop_affinity import LoopAffinity
from tidelog.base.metric_calls import MetricCalls
from tidelog.base.refuse_pickling import refuse_to_pickle
from tidelog.client_options import ClientOptions
from tidelog.cluster.connection_pool import ConnectionPool, identity_of, parse_addresses
from tidelog.cluster.contexts import require_context
from tidelog.cluster.routing import Router
from tidelog.consume.consumer import Consumer
from tidelog.credentials import ApiKey, Credentials, showing
from tidelog.errors import ClosedError, InvalidRequestError
from tidelog.fetch_options import FetchOptions
from tidelog.groups.admin import Groups
from tidelog.groups.options import Group, group_of, member_options
from tidelog.metrics import ClientMetrics
from tidelog.model import (
    ClusterStatus,
    Committed,
    Compacted,
    Fetched,
    Node,
    Offset,
    Record,
    Recovery,
    Topic,
    TopicFigures,
    TopicSettings,
)
from tidelog.produce.idempotent_requests import IdempotentRequests
from tidelog.produce.producer import Producer
from tidelog.produce.producer_options import ProducerArguments, ProducerOptions
from tidelog.requests import (
    committed_positions,
    conversions,
    fetch_and_commit,
    field_projection,
    key_lookup,
    list_offsets,
    paging,
    topic_conversions,
    whole_topic,
)
from tidelog.requests.conversions import At
from tidelog.security.access_rules import Security
from tidelog.subscriptions.consumer_options import ConsumerArguments, ConsumerOptions
from tidelog.subscriptions.row_view import Values
from tidelog.tls import Tls
from tidelog.topic_settings import check_existing, topic_alter, topic_create
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.process.busy_poll import POLL_US_DEFAULT
from tidelog_proto.schema.topic_schema import Schema

CLIENT_ID_DEFAULT: Final = "tidelog-python"
REQUEST_TIMEOUT_S_DEFAULT: Final = 30.0


class Client:
    """The entry point to a Tidelog cluster; the first request opens the connections.

    Args:
        bootstrap: "host:port" (several: a list, or comma-separated); the other nodes are discovered through them.
        client_id: name of the client in the nodes' logs.
        request_timeout_s: time limit of a request, including retries.
        quorum_timeout_s: time limit while nodes refuse a request for lack of a quorum; None: `request_timeout_s`.
        unreachable_timeout_s: time limit of requests and records while no node can be connected to, or the connected
            ones answer neither requests nor probes; None: no separate limit.
        idle_poll_us: busy-poll for up to this many µs while answers to small requests arrive within that time; 0:
            never.
        zone: zone of this program, as in the nodes' setting `zone`: consumers read from a replica in this zone. "":
            consumers read from partition owners.
        metrics: receives counts of published and consumed records, failures and reconnects; see `tidelog.metrics`.
            None: no metrics.
        api_key: an API key, or a function that returns one for each connection, such as
            `tidelog.credentials.ApiKeyFile(path)`. None: from the environment.
        credentials: instead of `api_key`, any of `tidelog.credentials`: a token or a password.
        tls: TLS settings, `tidelog.tls.Tls`; True: from the environment. None: only if the environment sets
            TIDELOG_CA_FILE, TIDELOG_CERT_FILE, TIDELOG_CRL_FILE or TIDELOG_TLS=1. False: no TLS.
        router: router of another client, to act on behalf of another principal; see `tidelog.cluster.callers`. Close
            this client before that one.

    Raises:
        InvalidRequestError: an address or argument is invalid.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = CLIENT_ID_DEFAULT,
        request_timeout_s: float = REQUEST_TIMEOUT_S_DEFAULT,
        quorum_timeout_s: float | None = None,
        unreachable_timeout_s: float | None = None,
        idle_poll_us: int = POLL_US_DEFAULT,
        zone: str = "",
        metrics: ClientMetrics | None = None,
        api_key: ApiKey | None = None,
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        router: Router | None = None,
    ) -> None:
        identity = identity_of(client_id, request_timeout_s, idle_poll_us, showing(api_key, credentials), tls)
        self._metric_calls = None if metrics is None else MetricCalls(metrics)
        addresses = parse_addresses(bootstrap)
        self._router = router or Router(
            addresses,
            ConnectionPool(
                identity, self._metric_calls, bootstrap=addresses, unreachable_timeout_s=unreachable_timeout_s
            ),
            request_timeout_s=request_timeout_s,
            quorum_timeout_s=quorum_timeout_s,
            zone=zone,
        )
        self._client_id = client_id
        self._affinity = LoopAffinity()
        self._closed = False
        self.groups = Groups(self._router, self._check_usable)
        """The consumer groups of the cluster."""
        self.security = Security(self._router, self._check_usable)
        """API keys, users, access rules and quotas."""
        self.keyed_requests = IdempotentRequests(self._router, self._check_usable)
        """Publishing with idempotency keys; for the gateway only."""
        self._producers: WeakSet[Producer] = WeakSet()
        self._consumers: WeakSet[Consumer] = WeakSet()

    @classmethod
    def from_context(cls, name: str | None = None, **options: Unpack[ClientOptions]) -> Self:
        """Return a client for the cluster of a context; see `tidelog context`.

        Args:
            name: name of the context; None: the context that TIDELOG_CONTEXT names, or the current one.
            options: arguments of `Client`, which take precedence over the context.

        Raises:
            InvalidRequestError: the context does not exist or cannot be read, or an argument is invalid.
        """
        context = require_context(name)
        return cls(context.bootstrap, **context.with_options(options))

    async def __aenter__(self) -> Self:
        self._check_usable()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()

    # ------------------------------------------------------------------------------------------- lifecycle

    async def connect(self) -> None:
        """Connect now, with one attempt per bootstrap address; otherwise the first request connects.

        Raises:
            NodeUnreachableError: no node can be reached.
            AccessError: a node refuses the client's credentials.
        """
        self._check_usable()
        await self._router.any_connection()

    async def close(self) -> None:
        """Flush producers, stop consumers and close connections. Idempotent.

        Raises:
            TidelogError: a record whose receipt was not awaited could not be delivered; everything is closed
                nevertheless.
        """
        if self._closed:
            return
        self._check_usable()
        try:
            for consumer in list(self._consumers):
                await consumer.close()
            for producer in list(self._producers):
                await producer.close()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Close without flushing: unacknowledged records fail with ClosedError."""
        if self._closed:
            return
        self._check_usable()
        self._closed = True
        for producer in list(self._producers):
            producer.recheck()
        for producer in list(self._producers):
            await producer.abort()
        for consumer in list(self._consumers):
            await consumer.abort()
        await self._router.close()

    # ---------------------------------------------------------------------------------------------- topics

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        exist_ok: bool = False,
        schema: Any = None,
        key: str | None = None,
        time: str | None = None,
        tag: str | None = None,
        **settings: Unpack[TopicSettings],
    ) -> Topic:
        """Create a topic, with a schema a typed one.

        Args:
            name: 1 to 200 characters of A-Z a-z 0-9 . _ -
            partitions: number of partitions; None: 1. It can be raised later, but not lowered.
            exist_ok: if the topic exists with the given settings, return it instead of raising TopicExistsError.
            schema: the fields of the records: a pyarrow schema, a dataclass or pydantic model, the parsed JSON of a
                JSON Schema or an Avro record, a list of texts such as "gate string", or the path of a Parquet, CSV,
                JSON Schema or Avro file. None: values are bytes. A topic stays typed or untyped for ever.
            key, time, tag: names of the fields that are the key, the time and the tag of a record.
            settings: see `TopicSettings`.

        Raises:
            TopicExistsError: the topic exists; with `exist_ok`, only if a given setting differs.
            InvalidTopicError, InvalidRequestError: the name or a setting is invalid.
        """
        self._check_usable()
        requested = {"partitions": partitions, **settings}
        request = topic_create(conversions.checked_topic(name), requested)
        first = schema_changes.set_first_schema(request, schema, key=key, time=time, tag=tag)
        reply = await topic_changes.create(self._router, request, exist_ok=exist_ok)
        topic = await whole_topic.whole_topic(self._router, reply)
        check_existing(topic, requested)
        await schema_changes.check_existing_schema(self._router, topic, first)
        self._router.metadata.note_created(reply.topics[0])
        return topic

    async def schema(self, topic: str, number: int | None = None) -> Schema:
        """Return a schema of a typed topic; None: the newest.

        Raises:
            InvalidRequestError: the topic is not typed.
            UnknownTopicError, UnknownSchemaError: the topic or the schema does not exist.
        """
        self._check_usable()
        return await schema_changes.schema_of(self._router, topic, number)

    async def newest_schema(self, topic: str) -> Schema | None:
        """Return the newest known schema of a topic, without a request if it is known; None if the topic is not typed.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        self._check_usable()
        return (await field_projection.newest_schema(self._router, topic))[1]

    async def check_schema(
        self, topic: str, schema: Any = None, *, expected: int | None = None, **changes: Unpack[SchemaChanges]
    ) -> NextSchema:
        """Return the schema that `evolve_schema` would register with the same arguments; nothing is changed.

        Raises:
            InvalidRequestError: a change is not allowed; each fault names the field and the remedy.
            SchemaMismatchError: the newest schema has another number than `expected`.
        """
        self._check_usable()
        edits = SchemaEdits(schema, **changes)
        return await schema_changes.check(self._router, topic, edits.next_of, expected)

    async def evolve_schema(
        self,
        topic: str,
        schema: Any = None,
        *,
        expected: int | None = None,
        raise_floor: bool = False,
        **changes: Unpack[SchemaChanges],
    ) -> NextSchema:
        """Register the next schema of a typed topic. All earlier records stay readable under it.

        Args:
            topic: the topic's name.
            schema: a full description as in `create_topic`, whose fields are matched by name; a field that it lacks
                must be in `drop` or `rename`. None: only `changes`.
            expected: number of the newest schema; None: any.
            raise_floor: whether producers may use only the new schema from now on. Producers of this client then encode
                their records again.
            changes: see `SchemaChanges`.

        Raises:
            InvalidRequestError: a change is not allowed; each fault names the field and the remedy.
            SchemaMismatchError: the newest schema has another number than `expected`.
        """
        self._check_usable()
        edits = SchemaEdits(schema, **changes)
        return await schema_changes.evolve(self._router, topic, edits.next_of, expected, raise_floor=raise_floor)

    async def topics(self, *, internal: bool = False) -> list[Topic]:
        """Return all topics, sorted by name; `internal`: include internal topics."""
        self._check_usable()
        infos = await paging.list_topics(self._router, internal=internal)
        return sorted(map(topic_conversions.topic_of, infos), key=lambda topic: topic.name)

    async def topic_page(self, *, after: str = "", limit: int = 100) -> tuple[list[Topic], bool]:
        """Return topics in the order of their names, without their partitions, and whether more follow.

        Args:
            after: name of the last topic of the previous page; it need not exist any more.
            limit: maximum number of topics.

        Raises:
            InvalidRequestError: `limit` is not above zero.
        """
        self._check_usable()
        if limit <= 0:
            raise InvalidRequestError(f"limit must be > 0, got {limit}")
        infos, more = await paging.list_topic_page(self._router, after=after, limit=limit)
        return [topic_conversions.topic_of(info) for info in infos], more

    async def topic(self, name: str) -> Topic:
        """Return a topic with the offsets and sizes of its partitions.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        self._check_usable()
        return await whole_topic.whole_topic(self._router, await topic_changes.describe(self._router, name))

    async def alter_topic(self, name: str, **changes: Any) -> Topic:
        """Change settings of a topic, named as in `create_topic`. Replicas are added and removed in the background.

        Raises:
            UnknownTopicError: the topic does not exist.
            InvalidRequestError: a setting or its value is invalid, or `partitions` is lower than before.
        """
        self._check_usable()
        altered = await topic_changes.alter(self._router, topic_alter(name, changes))
        return await whole_topic.whole_topic(self._router, altered)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        self._check_usable()
        await topic_changes.delete(self._router, name)

    async def delete_records(
        self, topic: str, before: int | datetime, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        """Delete all records before a point in the log, irreversibly, and return the log start of each partition.

        Reads of deleted offsets fail with OffsetOutOfRangeError. Disk space is freed by whole segments.

        Args:
            topic: the topic's name.
            before: an offset in the given partitions, at most the high watermark; or a datetime with a time zone: all
                records before the first one whose timestamp is not earlier.
            partitions: 0-based numbers. None: all, which is allowed if `before` is a datetime or the topic has one
                partition.

        Raises:
            OffsetOutOfRangeError: the offset is past the end of the log; the error has the log's bounds.
            ForbiddenError: the topic is on hold.
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist.
            InvalidRequestError: an argument is invalid.
        """
        self._check_usable()
        return await record_deletion.delete_records(self._router, topic, before, partitions)

    async def cluster_status(self, *, topics: bool = True) -> ClusterStatus:
        """Return the nodes and, unless `topics` is False, the topics, as one node sees them."""
        self._check_usable()
        return topic_conversions.status_of(await paging.cluster_status(self._router, nodes_only=not topics))

    async def topic_figures(self, *, internal: bool = False) -> dict[str, TopicFigures]:
        """Return the number of records, the size and other sums over the partitions of each topic, by topic name."""
        self._check_usable()
        return await topic_figures.figures_of_topics(self._router, internal=internal)

    async def nodes(self) -> tuple[Node, ...]:
        """Return the nodes as one of them sees them: `cluster_status` without topics."""
        return (await self.cluster_status(topics=False)).nodes

    async def drain_node(self, node_id: str, *, draining: bool = True) -> int:
        """Start to move a node's replicas and ownership away; return the number of partitions that the node stores.

        With `draining=False`, end the draining and return 0.

        Raises:
            InvalidRequestError: the node does not exist.
            ForbiddenError: the cluster has a single node.
        """
        change = pb.ClusterChange(drain=node_id) if draining else pb.ClusterChange(undrain=node_id)
        return (await self._change_cluster(change)).moves

    async def remove_node(self, node_id: str, *, accept_data_loss: bool = False) -> None:
        """Remove a drained node permanently; with `accept_data_loss`, even if it may store the only copy of records.

        Raises:
            InvalidRequestError: the node does not exist, stores data that others lack, or is the last one that stores
                replicas.
            ForbiddenError: the cluster has a single node.
        """
        await self._change_cluster(pb.ClusterChange(remove=node_id, accept_data_loss=accept_data_loss))

    async def rebalance(self) -> int:
        """Start to move replicas and ownership to their preferred nodes; return how many partitions move.

        Raises:
            ForbiddenError: the cluster has a single node.
        """
        return (await self._change_cluster(pb.ClusterChange(rebalance=True))).moves

    async def finalize_level(self) -> int:
        """Raise the cluster's feature level permanently, to the highest level of the metadata owner's build; return it.

        Raises:
            InvalidRequestError: a node does not support that level.
        """
        return (await self._change_cluster(pb.ClusterChange(finalize=True))).level

    async def recover_unsafely(self, topic: str, partition: int, node_id: str) -> Recovery:
        """Recover a partition whose quorum is permanently lost, from the replicas of the named and other live nodes.

        The named node is the sole replica afterwards. Acknowledged records may be lost, unless a quorum answers;
        `Recovery.unsafe` reports whether that is possible. A replica that comes back with another end of the recovered
        epoch must be replaced.

        Raises:
            InvalidRequestError: the node does not exist, cannot be reached, or holds no suitable replica; or the
                partition has its quorum.
            UnknownTopicError, UnknownPartitionError: the partition does not exist.
            ForbiddenError: the cluster has a single node.
            TimedOutError: the end of the epoch was not decided in time.
        """
        self._check_usable()
        return await cluster_operations.recover_unsafely(self._router, topic, partition, node_id)

    async def compact_topic(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, Compacted]:
        """Compact the current content of `partitions` (None: all), one after another; return when all are compacted.

        Compacting a partition takes as long as reading its log at the nodes' configured rate. The call may be
        interrupted and repeated.

        Raises:
            TimedOutError: the compaction of a partition made no progress for 30 s.
            ConnectionLostError: the owner of a partition was silent for 20 s.
            EpochChangingError: a quorum did not confirm the result; the message names the missing replicas.
            InvalidRequestError: the topic's cleanup does not include compaction, or the topic is on hold.
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist.
        """
        self._check_usable()
        return await compaction.compact(self._router, topic, partitions)

    async def _change_cluster(self, change: pb.ClusterChange) -> pb.ClusterChangeReply:
        self._check_usable()
        return await cluster_operations.ask(self._router, change, repeatable=True)

    # --------------------------------------------------------------------------------------------- reading

    async def fetch(self, topic: str, partition: int, offset: int, **options: Unpack[FetchOptions]) -> Fetched:
        """Read whole batches of a partition from `offset` on, optionally filtered; stateless.

        With `key`, `tag` or times, a node scans a bounded range of the log: an answer may be empty although more
        records follow. Continue at `next_offset` in any case.

        Args:
            topic: the topic's name.
            partition: 0-based.
            offset: offset of the first record to return.
            options: `max_bytes`: approximate size of the result (8 MiB), as stored; at least one batch is returned.
                `min_bytes`: wait until this many bytes can be returned (0), for at most `wait_ms`.
                `wait_ms`: see `min_bytes` (0). If it is > 0, the call also waits, without limit, for a quota.
                `key`, `tag`: only records with this key and this tag.
                `where`: in a typed topic, a filter of rows bound to a schema; records that do not match may be left
                    out.
                `columns`: some of timestamp, key, value, headers, tag; others may be absent.
                `fields`: in a typed topic, names or ids of fields; other fields may be absent. The columns of fields
                    with a role are added to `columns`.
                `since_us`, `until_us`: batches without a record of since_us <= timestamp < until_us may be left out.
                `end_offset`: batches that begin there or later may be left out.
                `nearest`: read from a replica in the client's zone that can answer, instead of an owner in another
                    zone; pass `end_offset` if records are known to exist up to it.
                `topic_id`: id that the topic must have; a topic recreated under the same name raises UnknownTopicError.

        Raises:
            OffsetOutOfRangeError: the offset is outside the log; the error has the log's bounds.
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist.
            InvalidRequestError: an option is out of range.
        """
        self._check_usable()
        return await fetch_and_commit.fetch(self._router, topic, partition, offset, **options)

    async def get(
        self, topic: str, key: Any, *, partition: int | None = None, values: Values = "rows"
    ) -> Record | None:
        """Return the newest committed record of a key; None if no record has it.

        For a deleted key the result is its tombstone, a record whose value is None, as long as the tombstone is in the
        log. With an index of keys the answer is immediate; otherwise the owner scans the partition, the newest records
        first.

        Args:
            topic: the topic's name.
            key: the encoded key of the record; in a typed topic also the value of its key field.
            partition: the partition to search; None for the one that the default partitioner selects now.
            values: "rows": the value of a record of a typed topic is a dictionary; "json": bytes, a JSON object.

        Raises:
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist.
            EpochChangingError: newer records of the key replaced the found one during each of several reads; try again.
        """
        self._check_usable()
        return await key_lookup.newest_of_key(self._router, topic, key, partition, as_json=values == "json")

    async def list_offsets(self, topic: str, at: At, partitions: Iterable[int] | None = None) -> dict[int, Offset]:
        """Return the offset of a point in the log, for each of `partitions` (None: all).

        Args:
            topic: the topic's name.
            at: "earliest", "latest", or a time: a datetime with a time zone, or µs since 1970. A number that looks like
                ms or s since 1970 is refused.
            partitions: 0-based.

        Raises:
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist.
            InvalidRequestError: an argument is invalid.
        """
        self._check_usable()
        return await list_offsets.list_offsets(self._router, topic, at, partitions)

    async def commit(
        self, group: str, topic: str, positions: Mapping[int, int], *, reset: bool = False, note: str = ""
    ) -> dict[int, Committed]:
        """Store a group's positions durably and return the positions that are stored now.

        Up to 4,096 positions are sent in one request.

        Args:
            group: the group's name.
            topic: the topic's name.
            positions: partition -> next offset to read. A position that is lower than the stored one is ignored.
            reset: store lower positions as well.
            note: stored with the positions, at most 4,096 bytes.

        Raises:
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist.
            OffsetOutOfRangeError: a position is past the end of the log; `done` has the positions that are stored.
            GroupNotEmptyError: the group has members, which alone may commit.
            InvalidRequestError: an argument is invalid.
        """
        self._check_usable()
        return await fetch_and_commit.commit(self._router, group, topic, positions, reset=reset, note=note)

    async def committed(self, group: str, topic: str | None = None) -> list[Committed]:
        """Return a group's committed positions in one topic or in all; partitions without a position are left out."""
        self._check_usable()
        return await committed_positions.committed(self._router, group, topic)

    # -------------------------------------------------------------------------------- producers, consumers

    @takes_options(ProducerArguments, ProducerOptions)
    def producer(self, topic: str, **options: Unpack[ProducerArguments]) -> Producer:
        """Return a producer for a topic.

        Args:
            topic: the topic's name.
            name: makes the producer the only one of its name in this topic: when it begins, older producers of the same
                name are fenced and fail with `ProducerFencedError`. A `Work` makes a repeated run idempotent.
            acks: which replicas must have stored a record before it is acknowledged. "quorum": the ack quorum; "1": the
                owner, and the record is lost if the owner is; "all": every replica, or `StoredOnQuorumError` is raised
                if that is unknown because the partition has moved.
            compression: how whole batches are compressed: "gzip", "snappy", "lz4", "zstd" or None.
            buffer_bytes: maximum size of unacknowledged records; when it is reached, calls wait, and `put` raises
                BufferFullError.
            batch_bytes: maximum size of a batch, uncompressed; a larger record is a batch of its own. While a batch of
                a partition is in flight, the partition's next batch is sent only when it is full.
            delivery_timeout_s: time limit of a record, including retries.
            request_timeout_s: time limit of one attempt at a node; by default the client's.
            partitioner: selects the partition of a record without a given one. By default, and as "murmur3": by a hash
                of the key; without a key, the partition with the fewest bytes in flight. "murmur2" and "crc32" hash
                keys as Kafka's Java and C clients do, "round_robin" ignores them. Or a function of (key or None, number
                of partitions) to a partition; its exceptions are raised by the call, which then accepts nothing.
            key_serializer: serializes keys: "json", "utf-8", or a function. A key of None stays None.
            value_serializer: serializes values in the same way. Arrow columns are not serialized.

        Raises:
            InvalidRequestError: an argument has an invalid value.
        """
        self._check_usable(bind=False)
        checked = ProducerOptions(**options)
        producer = Producer(self._router, topic, checked, self._check_usable, metric_calls=self._metric_calls)
        self._producers.add(producer)
        return producer

    @takes_options(ConsumerArguments, ConsumerOptions.of)
    def consumer(
        self, *topics: str, group: str | Group | None = None, **options: Unpack[ConsumerArguments]
    ) -> Consumer:
        """Return a consumer of topics, optionally filtered.

        Args:
            topics: names of the topics. Without names and `pattern`, the application assigns partitions:
                `Consumer.assign`.
            pattern: instead of names, a regular expression (RE2) over whole names; topics that match later are
                included.
            group: join this group, a name or a `Group`, and share the partitions with its members; start at its
                committed positions. With `partitions`, or a `start` by partition, do not join: only use its positions.
            start: where to start without a committed position: "earliest", "latest", a datetime with a time zone, an
                offset for every partition, or {partition: offset}, by TopicPartition or, with one topic, by number. A
                mapping overrides committed positions, and only its partitions of the named topics are read.
            partitions: which to read, with several topics as {topic: numbers}. None: all, including new ones, unless
                `start` is a mapping; "all": all in any case. New partitions start at the committed position or at their
                first record.
            on_out_of_range: action if the position is outside the log, for example because retention has deleted
                it, or if its record is lost: "error": raise OffsetOutOfRangeError; "earliest" or "latest": continue
                there.
            prefetch_bytes: maximum bytes of received and undelivered batches of all partitions; exceeded by at most one
                batch per node.
            prefetch_records: maximum number of received and undelivered records.
            admit: called with the number of bytes of arriving batches; if it returns False, the batches are dropped,
                and reading ends with OverloadedError after the batches received before. For sharing memory among many
                consumers.
            dropped: called with the number of bytes of received batches that are discarded undelivered after a
                revocation, a seek or a pause.
            key: read only records with this key; if `tag` is given, too, records must have both.
            tag: read only records with this tag.
            value_deserializer: "json", "utf-8" or a function of bytes that returns the record's value; None stays None.
            key_deserializer: deserializes keys in the same way.
            on_undecodable: action for a record that does not decode: "error": raise RecordError; "skip": skip and
                count it.
            dead_letter: name of a topic to which undecodable records, and those of `Consumer.reject`, are published
                instead. It must not be a topic that this consumer reads. Rows are published there as JSON.
            columns: the fields of the rows of a typed topic; None: all. Nodes send whole records.
            values: "rows": the value of a record of a typed topic is a row; "json": bytes, the row as a JSON object.
            rows: a dataclass or pydantic model whose instances are the rows, instead of dictionaries.
            where: read only rows of a typed topic that match: a text such as "delay > 190 and carrier in ('UA', 'AA')",
                or a `pyarrow.compute` expression.

        Raises:
            InvalidRequestError, InvalidTopicError: an argument has an invalid value.
        """
        self._check_usable(bind=False)
        group_options = group_of(group)
        checked = ConsumerOptions.of(topics, group=None if group_options is None else group_options.name, **options)
        consumer = Consumer(
            self._router,
            checked,
            self._check_usable,
            self.producer,
            group_options=member_options(group_options, is_shared=checked.is_shared),
            client_id=self._client_id,
            metric_calls=self._metric_calls,
        )
        self._consumers.add(consumer)
        return consumer

    # ------------------------------------------------------------------------------------------- internals

    def _check_usable(self, *, bind: bool = True) -> None:
        """Refuse use in another process or event loop, or after close."""
        self._affinity.check(bind=bind)
        if self._closed:
            raise ClosedError("the client is closed; create a new one")


refuse_to_pickle(Client)
