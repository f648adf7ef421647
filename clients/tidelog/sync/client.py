"""The blocking client and producer."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, Unpack

import pyarrow as pa

from tidelog import client as asynchronous
from tidelog.base.loop_thread import LoopThread
from tidelog.base.refuse_pickling import refuse_to_pickle
from tidelog.client import REQUEST_TIMEOUT_S_DEFAULT
from tidelog.client_options import ClientOptions
from tidelog.cluster.contexts import require_context
from tidelog.credentials import ApiKey, Credentials
from tidelog.errors import TidelogError
from tidelog.fetch_options import FetchOptions
from tidelog.groups.options import Group
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
    Receipt,
    Record,
    Recovery,
    Topic,
    TopicFigures,
    TopicSettings,
)
from tidelog.produce import producer as asynchronous_producer
from tidelog.produce.open_batch import OnDelivery
from tidelog.produce.partition_queue import BATCH_BYTES_TARGET
from tidelog.produce.partitioners import Partitioner
from tidelog.produce.producer_options import BUFFER_BYTES_DEFAULT, DELIVERY_TIMEOUT_S_DEFAULT
from tidelog.produce.receipts import Receipts
from tidelog.produce.serializers import Serializer
from tidelog.produce.thread_handoff import ThreadHandoff
from tidelog.requests.conversions import At
from tidelog.subscriptions.consumer_options import OnOutOfRange, Partitions, Start
from tidelog.subscriptions.deserializers import Deserializer, OnUndecodable
from tidelog.sync.consumer import Consumer
from tidelog.sync.groups import Groups, with_callbacks_in_threads
from tidelog.sync.receipts import PendingReceipt, PendingReceipts
from tidelog.sync.security import Security
from tidelog.tls import Tls
from tidelog_proto.batch.columns import Headers, import_for_columns
from tidelog_proto.process.busy_poll import POLL_US_DEFAULT

LAST_FLUSH_S: Final = 5.0
"""How long an unclosed client may flush when the program ends."""

_log: Final = logging.getLogger("tidelog.sync")


class Client:
    """See `tidelog.Client`; every method does the same and blocks."""

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
    ) -> None:
        self._client = asynchronous.Client(
            bootstrap,
            client_id=client_id,
            request_timeout_s=request_timeout_s,
            quorum_timeout_s=quorum_timeout_s,
            unreachable_timeout_s=unreachable_timeout_s,
            idle_poll_us=idle_poll_us,
            zone=zone,
            metrics=metrics,
            api_key=api_key,
            credentials=credentials,
            tls=tls,
        )
        self._thread = LoopThread(f"tidelog {client_id}")
        self.groups = Groups(self._thread, self._client.groups)
        """See `tidelog.Client.groups`."""
        self.security = Security(self._thread, self._client.security)
        """See `tidelog.Client.security`."""
        self._producers = weakref.WeakSet[Producer]()
        # Closes the client at interpreter exit or garbage collection if the application has not.
        name = f"{client_id!r} of {bootstrap}"
        self._finalizer = weakref.finalize(self, _shut_down, self._thread, self._client, name)

    @classmethod
    def from_context(cls, name: str | None = None, **options: Unpack[ClientOptions]) -> Self:
        """See `tidelog.Client.from_context`."""
        context = require_context(name)
        return cls(context.bootstrap, **context.with_options(options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def connect(self) -> None:
        """See `tidelog.Client.connect`."""
        self._thread.run(self._client.connect)

    def close(self) -> None:
        """See `tidelog.Client.close`."""
        self._end(self._client.close)

    def abort(self) -> None:
        """See `tidelog.Client.abort`."""
        self._end(self._client.abort)

    def create_topic(
        self, name: str, *, partitions: int | None = None, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> Topic:
        """See `tidelog.Client.create_topic`."""
        return self._thread.run(
            lambda: self._client.create_topic(name, partitions=partitions, exist_ok=exist_ok, **settings)
        )

    def topics(self, *, internal: bool = False) -> list[Topic]:
        """See `tidelog.Client.topics`."""
        return self._thread.run(lambda: self._client.topics(internal=internal))

    def topic_page(self, *, after: str = "", limit: int = 100) -> tuple[list[Topic], bool]:
        """See `tidelog.Client.topic_page`."""
        return self._thread.run(lambda: self._client.topic_page(after=after, limit=limit))

    def topic(self, name: str) -> Topic:
        """See `tidelog.Client.topic`."""
        return self._thread.run(lambda: self._client.topic(name))

    def alter_topic(self, name: str, **changes: Any) -> Topic:
        """See `tidelog.Client.alter_topic`."""
        return self._thread.run(lambda: self._client.alter_topic(name, **changes))

    def delete_topic(self, name: str) -> None:
        """See `tidelog.Client.delete_topic`."""
        self._thread.run(lambda: self._client.delete_topic(name))

    def delete_records(
        self, topic: str, before: int | datetime, partitions: Iterable[int] | None = None
    ) -> dict[int, int]:
        """See `tidelog.Client.delete_records`."""
        return self._thread.run(lambda: self._client.delete_records(topic, before, partitions))

    def cluster_status(self) -> ClusterStatus:
        """See `tidelog.Client.cluster_status`."""
        return self._thread.run(self._client.cluster_status)

    def topic_figures(self, *, internal: bool = False) -> dict[str, TopicFigures]:
        """See `tidelog.Client.topic_figures`."""
        return self._thread.run(lambda: self._client.topic_figures(internal=internal))

    def nodes(self) -> tuple[Node, ...]:
        """See `tidelog.Client.nodes`."""
        return self._thread.run(self._client.nodes)

    def drain_node(self, node_id: str, *, draining: bool = True) -> int:
        """See `tidelog.Client.drain_node`."""
        return self._thread.run(lambda: self._client.drain_node(node_id, draining=draining))

    def remove_node(self, node_id: str, *, accept_data_loss: bool = False) -> None:
        """See `tidelog.Client.remove_node`."""
        self._thread.run(lambda: self._client.remove_node(node_id, accept_data_loss=accept_data_loss))

    def rebalance(self) -> int:
        """See `tidelog.Client.rebalance`."""
        return self._thread.run(self._client.rebalance)

    def finalize_level(self) -> int:
        """See `tidelog.Client.finalize_level`."""
        return self._thread.run(self._client.finalize_level)

    def recover_unsafely(self, topic: str, partition: int, node_id: str) -> Recovery:
        """See `tidelog.Client.recover_unsafely`."""
        return self._thread.run(lambda: self._client.recover_unsafely(topic, partition, node_id))

    def compact_topic(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, Compacted]:
        """See `tidelog.Client.compact_topic`."""
        return self._thread.run(lambda: self._client.compact_topic(topic, partitions))

    def fetch(self, topic: str, partition: int, offset: int, **options: Unpack[FetchOptions]) -> Fetched:
        """See `tidelog.Client.fetch`."""
        return self._thread.run(lambda: self._client.fetch(topic, partition, offset, **options))

    def get(self, topic: str, key: bytes, *, partition: int | None = None) -> Record | None:
        """See `tidelog.Client.get`."""
        return self._thread.run(lambda: self._client.get(topic, key, partition=partition))

    def list_offsets(self, topic: str, at: At, partitions: Iterable[int] | None = None) -> dict[int, Offset]:
        """See `tidelog.Client.list_offsets`."""
        return self._thread.run(lambda: self._client.list_offsets(topic, at, partitions))

    def commit(
        self, group: str, topic: str, positions: Mapping[int, int], *, reset: bool = False, note: str = ""
    ) -> dict[int, Committed]:
        """See `tidelog.Client.commit`."""
        return self._thread.run(lambda: self._client.commit(group, topic, positions, reset=reset, note=note))

    def committed(self, group: str, topic: str | None = None) -> list[Committed]:
        """See `tidelog.Client.committed`."""
        return self._thread.run(lambda: self._client.committed(group, topic))

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
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
        """See `tidelog.Client.producer`."""
        producer = self._client.producer(
            topic,
            name=name,
            acks=acks,
            compression=compression,
            buffer_bytes=buffer_bytes,
            batch_bytes=batch_bytes,
            delivery_timeout_s=delivery_timeout_s,
            request_timeout_s=request_timeout_s,
            partitioner=partitioner,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        import_for_columns()
        made = Producer(self, self._thread, producer)
        self._producers.add(made)
        return made

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
        """See `tidelog.Client.consumer`."""
        consumer = self._client.consumer(
            *topics,
            pattern=pattern,
            group=with_callbacks_in_threads(group) if isinstance(group, Group) else group,
            start=start,
            partitions=partitions,
            on_out_of_range=on_out_of_range,
            prefetch_bytes=prefetch_bytes,
            prefetch_records=prefetch_records,
            admit=admit,
            dropped=dropped,
            key=key,
            tag=tag,
            value_deserializer=value_deserializer,
            key_deserializer=key_deserializer,
            on_undecodable=on_undecodable,
            dead_letter=dead_letter,
        )
        return Consumer(self, self._thread, consumer)

    def _end(self, how: Any) -> None:
        if self._thread.closed:
            return
        self._thread.check_other_thread()
        try:
            if self._thread.started:
                try:
                    self._thread.run(how)
                finally:
                    for producer in list(self._producers):
                        producer.abort()  # fails records that other threads put during the close
        finally:
            self._finalizer.detach()
            self._thread.stop()


class Producer:
    """See `tidelog.Producer`. Made by `Client.producer`."""

    def __init__(self, client: Client, thread: LoopThread, producer: asynchronous_producer.Producer) -> None:
        self.topic = producer.topic
        self._client = client  # prevents its finalizer from running while this producer exists
        self._thread = thread
        self._producer = producer
        self._handoff = ThreadHandoff(thread, producer.internals)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._thread.run(self._producer.abort)

    def put(
        self,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> PendingReceipt:
        """See `tidelog.Producer.put`; never blocks, thread-safe, and the receipt has a `result()`.

        Records of one thread keep their order; those of several threads are interleaved. `on_delivery` is called in the
        client's thread, where blocking methods of this client must not be called.
        """
        batch, index = self._handoff.put(value, key, headers, tag, partition, timestamp_us, on_delivery)
        return PendingReceipt(self._thread, batch, index)

    def send(
        self,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> Receipt:
        """See `tidelog.Producer.send`."""
        return self._thread.run(
            lambda: self._producer.send(
                value, key=key, headers=headers, tag=tag, partition=partition, timestamp_us=timestamp_us
            )
        )

    def enqueue(
        self,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        tag: str | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> PendingReceipt:
        """See `tidelog.Producer.enqueue`; the receipt has a `result()`."""
        pending = self._thread.run(
            lambda: self._producer.enqueue(
                value, key=key, headers=headers, tag=tag, partition=partition, timestamp_us=timestamp_us
            )
        )
        return PendingReceipt(self._thread, pending.batch, pending.index)

    def send_many(
        self,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> Receipts:
        """See `tidelog.Producer.send_many`."""
        return self._thread.run(lambda: self._producer.send_many(values, keys=keys, partition=partition))

    def enqueue_many(
        self,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> PendingReceipts:
        """See `tidelog.Producer.enqueue_many`; the receipts have a `result()`."""
        pending = self._thread.run(lambda: self._producer.enqueue_many(values, keys=keys, partition=partition))
        return PendingReceipts(self._thread, pending)

    def send_arrow(self, data: pa.RecordBatch | pa.Table, *, partition: int | None = None) -> Receipts:
        """See `tidelog.Producer.send_arrow`."""
        return self._thread.run(lambda: self._producer.send_arrow(data, partition=partition))

    def enqueue_arrow(self, data: pa.RecordBatch | pa.Table, *, partition: int | None = None) -> PendingReceipts:
        """See `tidelog.Producer.enqueue_arrow`; the receipts have a `result()`."""
        pending = self._thread.run(lambda: self._producer.enqueue_arrow(data, partition=partition))
        return PendingReceipts(self._thread, pending)

    def begin(self) -> None:
        """See `tidelog.Producer.begin`."""
        self._thread.run(self._producer.begin)

    def ready(self) -> None:
        """See `tidelog.Producer.ready`: the room is reserved for the next `put` of this thread, for up to a second."""
        self._handoff.ready()

    def flush(self) -> None:
        """See `tidelog.Producer.flush`."""
        self._thread.run(self._producer.flush)

    @property
    def closed(self) -> bool:
        """Whether it was closed or aborted."""
        return self._producer.closed

    def close(self) -> None:
        """See `tidelog.Producer.close`."""
        if not self._thread.closed:
            self._thread.run(self._producer.close)

    def abort(self) -> None:
        """See `tidelog.Producer.abort`."""
        if not self._thread.closed:
            self._handoff.wait_for_puts()
            self._thread.run(self._producer.abort)


def _shut_down(thread: LoopThread, client: asynchronous.Client, name: str) -> None:
    """Close an unclosed client; errors are only logged."""
    if thread.closed or not thread.started:
        return

    def close() -> Coroutine[Any, Any, None]:
        return client.close()

    try:
        thread.run(close, timeout_s=LAST_FLUSH_S)
    except (TidelogError, TimeoutError) as error:
        why = str(error) or f"not acknowledged within {LAST_FLUSH_S:g} s"
        _log.warning(
            "client %s was not closed and has lost records (%s); use `with`, or call close(), which raises such errors",
            name,
            why,
        )
    finally:
        thread.stop()


refuse_to_pickle(Client, Producer, Consumer)
