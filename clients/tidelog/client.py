"""The client: where a program begins. Connections, topics, reading, and the making of producers and consumers.

A client belongs to one process and one event loop, since sockets and tasks that are shared fail in ways that are hard
to trace: use in another loop or after a fork raises an error. A client connects when it is first asked for something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, Unpack
from weakref import WeakSet

from tidelog.admin import cluster_operations, compaction, record_deletion, topic_changes, topic_figures
from tidelog.base.loop_affinity import Home
from tidelog.base.metric_calls import Teller
from tidelog.client_options import ClientOptions
from tidelog.cluster.connection_pool import ConnectionPool, identity_of, parse_addresses
from tidelog.cluster.contexts import the_context
from tidelog.cluster.routing import Router
from tidelog.consume.consumer import Consumer
from tidelog.credentials import ApiKey, Credentials, showing
from tidelog.errors import ClosedError, InvalidRequestError
from tidelog.fetch_options import FetchOptions
from tidelog.groups.admin import Groups
from tidelog.groups.options import Group, group_of, wish_of
from tidelog.metrics import ClientMetrics
from tidelog.model import (
    Acks,
    ClusterStatus,
    Committed,
    Compacted,
    Compression,
    Fetched,
    Node,
    Offset,
    Record,
    Recovery,
    Topic,
    TopicFigures,
    TopicSettings,
)
from tidelog.produce.idempotent_requests import KeyedRequests
from tidelog.produce.partition_queue import BATCH_BYTES_TARGET
from tidelog.produce.partitioners import Partitioner
from tidelog.produce.producer import Producer
from tidelog.produce.producer_options import BUFFER_BYTES_DEFAULT, DELIVERY_TIMEOUT_S_DEFAULT, ProducerOptions
from tidelog.produce.serializers import Serializer
from tidelog.produce.work import Work
from tidelog.requests import (
    committed_positions,
    conversions,
    fetch_and_commit,
    key_lookup,
    list_offsets,
    paging,
    topic_conversions,
    whole_topic,
)
from tidelog.requests.conversions import At
from tidelog.requests.record_filters import record_filter
from tidelog.security.access_rules import Security
from tidelog.subscriptions.consumer_options import ConsumerOptions, OnOutOfRange, Partitions, Start
from tidelog.subscriptions.deserializers import Decoding, Deserializer, OnUndecodable
from tidelog.tls import Tls
from tidelog.topic_settings import check_existing, topic_alter, topic_create
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.process.busy_poll import POLL_US_DEFAULT

REQUEST_TIMEOUT_S_DEFAULT: Final = 30.0


class Client:
    """A connection to a Tidelog cluster.

    Args:
        bootstrap: "host:port" (several: a list, or comma-separated); the rest of the cluster is found through the
            first that answers.
        client_id: a name for the nodes' logs.
        request_timeout_s: how long a request may take, retries included.
        quorum_timeout_s: the same for one that nodes refuse because too few of them are there; None: as long.
        unreachable_timeout_s: the same, and of records, while no node can be connected to, and of requests while those
            that are connected are silent, also to a probe; None: as long.
        idle_poll_us: while small requests are answered as quickly as this, their answers are waited for awake, for so
            many µs at most; 0: asleep.
        zone: where this program runs, as nodes are told their `zone`: consumers read at a replica there, if one keeps
            up. "": at owners.
        metrics: told of what is published, consumed and lost; see `tidelog.metrics`. None: nobody counts.
        api_key: shows nodes that ask for it who this client is: a key, or what gives one for each connection, such as
            `tidelog.credentials.ApiKeyFile(path)`. None: what the environment names.
        credentials: instead, any of `tidelog.credentials`: a token or a password.
        tls: connect in TLS, as a `tidelog.tls.Tls` says; True: as the environment says. None: only if that says so, by
            TIDELOG_CA_FILE, TIDELOG_CERT_FILE, TIDELOG_CRL_FILE or TIDELOG_TLS=1. False: not at all.
        router: instead, one of another client that asks for a caller; see `tidelog.cluster.callers`. Close this one
        first.

    Raises:
        InvalidRequestError: an address or argument is no such thing.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "tidelog-python",
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
        self._teller = None if metrics is None else Teller(metrics)
        given = parse_addresses(bootstrap)
        self._router = router or Router(
            given,
            ConnectionPool(identity, self._teller, given=given, unreachable_timeout_s=unreachable_timeout_s),
            request_timeout_s=request_timeout_s,
            quorum_timeout_s=quorum_timeout_s,
            zone=zone,
        )
        self._client_id = client_id
        self._home = Home()
        self._closed = False
        self.groups = Groups(self._router, self._check_usable)
        """The consumer groups of the cluster."""
        self.security = Security(self._router, self._check_usable)
        """Its API keys, and who may do what."""
        self.keyed_requests = KeyedRequests(self._router, self._check_usable)
        """For the gateway, not for users."""
        self._producers: WeakSet[Producer] = WeakSet()
        self._consumers: WeakSet[Consumer] = WeakSet()

    @classmethod
    def from_context(cls, name: str | None = None, **options: Unpack[ClientOptions]) -> Self:
        """Return a client of the cluster that a context names; see `tidelog context`.

        Args:
            name: of the context; None: that of TIDELOG_CONTEXT, or the current one.
            options: as of `Client`. What is given here goes before what the context says.

        Raises:
            InvalidRequestError: there is no such context, it cannot be read, or an argument is no such thing.
        """
        context = the_context(name)
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
        """Connect now, with one try at each bootstrap address; otherwise the first request does it.

        Raises:
            NodeUnreachableError: no node can be reached.
        """
        self._check_usable()
        await self._router.any_connection()

    async def close(self) -> None:
        """Flush producers, stop consumers, close connections. Doing it twice does nothing.

        Raises:
            TidelogError: a record that nobody awaited could not be delivered; everything is closed nevertheless.
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
        """Close without flushing: what is not acknowledged fails with ClosedError."""
        if self._closed:
            return
        self._check_usable()
        self._closed = True
        for producer in list(self._producers):
            await producer.abort()
        for consumer in list(self._consumers):
            await consumer.abort()
        await self._router.close()

    # ---------------------------------------------------------------------------------------------- topics

    async def create_topic(
        self, name: str, *, partitions: int | None = None, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> Topic:
        """Create a topic.

        Args:
            name: 1 to 200 of A-Z a-z 0-9 . _ -
            partitions: their number; None: 1. It can only be raised later.
            exist_ok: return the topic if one with the given settings exists.
            settings: see `TopicSettings`.

        Raises:
            TopicExistsError: the topic exists; with `exist_ok`, only if a given setting differs.
            InvalidTopicError, InvalidRequestError: the name or a setting is invalid.
        """
        self._check_usable()
        wanted = {"partitions": partitions, **settings}
        request = topic_create(conversions.checked_topic(name), wanted)
        reply = await topic_changes.create(self._router, request, exist_ok=exist_ok)
        topic = await whole_topic.whole(self._router, reply)
        check_existing(topic, wanted)
        self._router.metadata.made(reply.topics[0])
        return topic

    async def topics(self, *, internal: bool = False) -> list[Topic]:
        """Return all topics by name; with `internal` also the broker's own."""
        self._check_usable()
        infos = await paging.listed(self._router, internal=internal)
        return sorted(map(topic_conversions.topic_of, infos), key=lambda topic: topic.name)

    async def topic_page(self, *, after: str = "", limit: int = 100) -> tuple[list[Topic], bool]:
        """Return some topics by name, without their partitions, and whether there are more behind them.

        Args:
            after: the name of the last topic of the page before; it need not be there any more.
            limit: how many topics at most.

        Raises:
            InvalidRequestError: `limit` is not above zero.
        """
        self._check_usable()
        if limit <= 0:
            raise InvalidRequestError(f"limit must be at least 1, got {limit}")
        infos, more = await paging.listed_briefly(self._router, after=after, limit=limit)
        return [topic_conversions.topic_of(info) for info in infos], more

    async def topic(self, name: str) -> Topic:
        """Return one topic with its partitions' offsets and sizes.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        self._check_usable()
        return await whole_topic.whole(self._router, await topic_changes.describe(self._router, name))

    async def alter_topic(self, name: str, **changes: Any) -> Topic:
        """Change settings of a topic: those of `create_topic`. Replicas are added and removed in the background.

        Raises:
            UnknownTopicError: the topic does not exist.
            InvalidRequestError: a setting or its value is invalid, or `partitions` is lower than before.
        """
        self._check_usable()
        altered = await topic_changes.alter(self._router, topic_alter(name, changes))
        return await whole_topic.whole(self._router, altered)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        self._check_usable()
        await topic_changes.delete(self._router, name)

    async def delete_records(
        self, topic: str, before: int | datetime, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        """Delete all records in front of a point in the log, for good, and return where each partition begins then.

        Whoever reads there is told that it is gone. Space is given back when whole segments hold nothing else.

        Args:
            topic: its name.
            before: an offset of the partitions that are named, at most the high watermark; or a datetime with a zone:
                everything up to the first record that is not older.
            partitions: 0-based; None for all, where `before` is a time or there is one only.

        Raises:
            OffsetOutOfRangeError: with the bounds, for an offset behind the end.
            ForbiddenError: the topic is on hold.
            UnknownTopicError, UnknownPartitionError, InvalidRequestError: see there.
        """
        self._check_usable()
        return await record_deletion.delete_records(self._router, topic, before, partitions)

    async def cluster_status(self) -> ClusterStatus:
        """Return nodes and topics as one node sees them."""
        self._check_usable()
        return topic_conversions.status_of(await paging.status(self._router))

    async def topic_figures(self, *, internal: bool = False) -> dict[str, TopicFigures]:
        """Return the sums of `cluster_status` over each topic's partitions by topic name, with no object for each."""
        self._check_usable()
        return await topic_figures.figures_of_topics(self._router, internal=internal)

    async def nodes(self) -> tuple[Node, ...]:
        """Return the nodes as one of them sees them: `cluster_status` without what grows with the topics."""
        self._check_usable()
        return topic_conversions.status_of(await paging.status(self._router, nodes_only=True)).nodes

    async def drain_node(self, node_id: str, *, draining: bool = True) -> int:
        """Begin to take a node's copies and ownership away, or let it have some; return how many partitions it stores.

        Raises:
            InvalidRequestError: there is no such node, or the node that was asked stands alone.
        """
        change = pb.ClusterChange(drain=node_id) if draining else pb.ClusterChange(undrain=node_id)
        return (await self._change_cluster(change)).moves

    async def remove_node(self, node_id: str, *, accept_data_loss: bool = False) -> None:
        """Remove a drained node for good, with `accept_data_loss` also one that may have the only copy of records.

        Raises:
            InvalidRequestError: no such node; it stores something that others lack; it is the last that stores copies.
        """
        await self._change_cluster(pb.ClusterChange(remove=node_id, accept_data_loss=accept_data_loss))

    async def rebalance(self) -> int:
        """Begin to move copies and ownership to where they belong; return how many partitions are to move."""
        return (await self._change_cluster(pb.ClusterChange(rebalance=True))).moves

    async def finalize_level(self) -> int:
        """Raise the feature level to the newest, for good, if all nodes support it (InvalidRequestError); return it."""
        return (await self._change_cluster(pb.ClusterChange(finalize=True))).level

    async def recover_unsafely(self, topic: str, partition: int, node_id: str) -> Recovery:
        """Let a partition whose quorum is lost for good go on with what the named node and other living replicas hold.

        The node owns the partition alone afterwards. Acknowledged records may be lost, unless a quorum answers; the
        result tells. A replica that comes back and knows another end of the epoch has to be replaced.

        Raises:
            InvalidRequestError: the node does not exist, or holds no copy that could be the one.
            UnknownTopicError, UnknownPartitionError, LimboError: no such partition; the copy there is damaged.
        """
        self._check_usable()
        return await cluster_operations.recover_unsafely(self._router, topic, partition, node_id)

    async def compact_topic(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, Compacted]:
        """Compact all that `partitions` (None: all) of a topic hold now, one after the other; return when it is done.

        A pass takes as long as reading the log at the pace that nodes are set to. It may be ended and repeated.

        Raises:
            TimedOutError, ConnectionLostError: nothing of the pass moved for 30 s; the owner was silent for 20 s.
            EpochChangingError: a quorum did not decide the result; the message names the copies that are waited for.
            InvalidRequestError: the topic is not to be compacted, or on hold.
            UnknownTopicError, UnknownPartitionError: there is no such thing.
        """
        self._check_usable()
        return await compaction.compact(self._router, topic, partitions)

    async def _change_cluster(self, change: pb.ClusterChange) -> pb.ClusterChangeReply:
        self._check_usable()
        return await cluster_operations.ask(self._router, change, repeatable=True)

    # --------------------------------------------------------------------------------------------- reading

    async def fetch(self, topic: str, partition: int, offset: int, **options: Unpack[FetchOptions]) -> Fetched:
        """Read whole batches of a partition from `offset` on, or what is wanted of them; stateless.

        With `key` or `tag`, and with times, a node looks through a bounded stretch of the log: an answer may be empty
        although there is more, and `next_offset` says in any case where to go on.

        Args:
            topic: its name.
            partition: 0-based.
            offset: the first record wanted.
            options: `max_bytes`: about how much to return (8 MiB), as it is stored; one batch always fits.
                `min_bytes`: wait for this much (0)... `wait_ms`: ...but no longer than this (0); with it
                a quota is waited for, too, however long that takes.
                `key`, `tag`: only records with this key and this tag.
                `columns`: some of timestamp, key, value, headers, tag; others may stay at the node, and are absent.
                `since_us`, `until_us`: batches without a record of since_us <= timestamp < until_us may stay, too.
                `end_offset`: batches that begin there or behind may stay.
                `nearest`: ask a replica in the client's zone, if there is one that can answer, instead of an owner
                elsewhere; give `end_offset` where you know that there are records up to it.
                `topic_id`: of the topic that is meant; a later one of its name is unknown then.

        Raises:
            OffsetOutOfRangeError: with the bounds; UnknownTopicError, UnknownPartitionError.
            InvalidRequestError: an option is out of range.
        """
        self._check_usable()
        return await fetch_and_commit.fetch(self._router, topic, partition, offset, **options)

    async def get(self, topic: str, key: bytes, *, partition: int | None = None) -> Record | None:
        """Return the newest committed record of a key; None where there is none.

        A deleted key answers with its tombstone, a record whose value is None, as long as that is in the log. Topics
        with an index of keys answer at once; of others the owner looks through the partition, the newest records first.

        Args:
            topic: its name.
            key: of the record.
            partition: where to look; None for where producers that are not told otherwise put the key now.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing.
        """
        self._check_usable()
        return await key_lookup.newest_of_key(self._router, topic, key, partition)

    async def list_offsets(self, topic: str, at: At, partitions: Iterable[int] | None = None) -> dict[int, Offset]:
        """Find the offset of a point in the log, for each of `partitions` (None: all).

        Args:
            topic: its name.
            at: "earliest", "latest", or a time: a datetime with a zone, or µs since 1970.
            partitions: 0-based.

        Raises:
            UnknownTopicError, UnknownPartitionError, InvalidRequestError: see there.
        """
        self._check_usable()
        return await list_offsets.list_offsets(self._router, topic, at, partitions)

    async def commit(
        self, group: str, topic: str, positions: Mapping[int, int], *, reset: bool = False, note: str = ""
    ) -> dict[int, Committed]:
        """Store a group's positions durably, more than 4,096 one part after another, and return what holds now.

        Args:
            group: its name.
            topic: its name.
            positions: partition -> next offset to read. An older one does not move a position back...
            reset: ...unless this is set.
            note: kept and given back, at most 4,096 bytes.

        Raises:
            UnknownTopicError, UnknownPartitionError, InvalidRequestError: see there.
        """
        self._check_usable()
        return await fetch_and_commit.commit(self._router, group, topic, positions, reset=reset, note=note)

    async def committed(self, group: str, topic: str | None = None) -> list[Committed]:
        """Return a group's positions, of one topic or of all; partitions without one are left out."""
        self._check_usable()
        return await committed_positions.committed(self._router, group, topic)

    # -------------------------------------------------------------------------------- producers, consumers

    def producer(
        self,
        topic: str,
        *,
        name: str | Work | None = None,
        acks: Acks = "quorum",
        compression: Compression | None = None,
        buffer_bytes: int = BUFFER_BYTES_DEFAULT,
        batch_bytes: int = BATCH_BYTES_TARGET,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S_DEFAULT,
        request_timeout_s: float | None = None,
        partitioner: Partitioner | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> Producer:
        """Return a producer for a topic.

        Args:
            topic: its name.
            name: of this producer, for one that is to be the only one of its name: when it begins, all older ones with
                the name are fenced in this topic, and get `ProducerFencedError`. A `Work` may be done once more.
            acks: "quorum": durable on the ack quorum; "1": on the owner, lost with it; "all": on every replica, or
                `StoredOnQuorumError` where that cannot be said because the partition has moved.
            compression: of whole batches: "gzip", "snappy", "lz4", "zstd" or None.
            buffer_bytes: how much may be accepted and not acknowledged; past it you wait, and `put` refuses.
            batch_bytes: how large a batch grows while others are in flight, uncompressed.
            delivery_timeout_s: when to give up a record, retries included.
            request_timeout_s: when to give up one try at a node; the client's unless told.
            partitioner: which partition a record without a given one goes to. By default, and as "murmur3", its key is
                hashed, and without a key it goes where the fewest bytes are under way. "murmur2" and "crc32" hash keys
                as Kafka's clients in Java and C do, "round_robin" ignores them. Or a function of (key or None, number
                of partitions) to a number below that; what it raises, the call raises, and accepts nothing.
            key_serializer: what makes bytes of keys: "json", "utf-8", or a function. None stays None.
            value_serializer: the same of values. Arrow columns are not serialised.

        Raises:
            InvalidRequestError: an argument has no such value.
        """
        self._check_usable(bind=False)
        options = ProducerOptions(
            acks=acks,
            compression=compression,
            buffer_bytes=buffer_bytes,
            batch_bytes=batch_bytes,
            delivery_timeout_s=delivery_timeout_s,
            request_timeout_s=request_timeout_s,
            partitioner=partitioner,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            name=name,
        )
        producer = Producer(self._router, topic, options, self._check_usable, teller=self._teller)
        self._producers.add(producer)
        return producer

    def consumer(
        self,
        *topics: str,
        pattern: str | None = None,
        group: str | Group | None = None,
        start: Start = "earliest",
        partitions: Partitions = None,
        on_out_of_range: OnOutOfRange = "error",
        prefetch_bytes: int | None = None,
        prefetch_records: int | None = None,
        admit: Callable[[int], bool] | None = None,
        dropped: Callable[[int], None] | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        value_deserializer: Deserializer | None = None,
        key_deserializer: Deserializer | None = None,
        on_undecodable: OnUndecodable = "error",
        dead_letter: str | None = None,
    ) -> Consumer:
        """Return a consumer of topics, or of the records in them that match.

        Args:
            topics: their names. Without any, and without a pattern, it reads what it is told to: `Consumer.assign`.
            pattern: instead, a regular expression (RE2) over whole names; topics that match later are taken in, too.
            group: share the topics with the other members of this group, a name or a `Group`; begin where it committed.
                With `partitions`, or a `start` by partition, be no member: only begin and commit under its name.
            start: where to begin without a committed position: "earliest", "latest", a datetime (with a zone), an
                offset for every partition, or {partition: offset}, by TopicPartition or, of one topic, by number. That
                wins over committed positions, and of the topics it names only these partitions are read.
            partitions: which to read, of several topics as {topic: numbers}; None for all, new ones included, unless
                `start` names some; "all" in any case. New ones begin where the group committed, or at their beginning.
            on_out_of_range: where retention has overtaken a position: raise "error", go on at "earliest" or "latest".
            prefetch_bytes: how much may be received ahead of you, of all partitions together, but for a batch a node.
            prefetch_records: the same in records.
            admit: asked with the bytes of what arrives together before it is kept. Where it says no, that is dropped,
                and reading ends with OverloadedError behind what was kept: for who shares memory among many consumers.
            dropped: told of the bytes of what was kept and is let go unread: others of the group get the partition.
            key: only records with this key; with `tag`, with both.
            tag: only records with this tag.
            value_deserializer: "json", "utf-8" or a function of bytes that makes the records' values; None stays None.
            key_deserializer: the same for keys.
            on_undecodable: when a record does not decode: raise "error" (RecordError), or "skip" and count it.
            dead_letter: instead, a topic for them, and for those given to `Consumer.reject`; never one that is read.

        Raises:
            InvalidRequestError, InvalidTopicError: an argument has no such value.
        """
        self._check_usable(bind=False)
        named = group_of(group)
        options = ConsumerOptions.of(
            topics,
            pattern=pattern,
            group=None if named is None else named.name,
            start=start,
            partitions=partitions,
            on_out_of_range=on_out_of_range,
            prefetch_bytes=prefetch_bytes,
            prefetch_records=prefetch_records,
            wanted=record_filter(key, tag),
            decoding=Decoding.of(
                value=value_deserializer, key=key_deserializer, on_undecodable=on_undecodable, dead_letter=dead_letter
            ),
            dead_letter=dead_letter,
        )
        consumer = Consumer(
            self._router,
            options,
            self._check_usable,
            self.producer,
            admit,
            dropped=dropped,
            wish=wish_of(named, is_shared=options.is_shared),
            client_id=self._client_id,
            teller=self._teller,
        )
        self._consumers.add(consumer)
        return consumer

    # ------------------------------------------------------------------------------------------- internals

    def _check_usable(self, *, bind: bool = True) -> None:
        """Refuse use in another process, in another event loop, or after close."""
        self._home.check(bind=bind)
        if self._closed:
            raise ClosedError("the client is closed")
