"""The consumer for blocking programs. The client's loop receives batches; the caller's thread decodes records."""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from tidelog.base.internal import internal
from tidelog.base.loop_thread import LoopThread
from tidelog.consume import consumer as asynchronous
from tidelog.consume.background_commits import OnCommit
from tidelog.consume.consumer import SeekTo
from tidelog.errors import InvalidRequestError, TidelogError
from tidelog.groups.session_clock import session_time
from tidelog.model import Committed, ConsumedBatch, Record, TopicPartition
from tidelog.subscriptions.cursor import Cursor

_SIGNALS_S: Final = 0.5
"""Maximum time of one wait for a lock; then signals are checked and the wait is repeated, because Python misses a
signal that arrives between its last check and the wait."""

T = TypeVar("T")


class _LoopCall(Generic[T]):
    """A call on the event loop, of which at most one is pending.

    If Ctrl-C interrupts the wait for its result, the call continues, and the next `get` returns its result.
    """

    def __init__(self, thread: LoopThread, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._thread = thread
        self._make = make
        self._future: concurrent.futures.Future[T] | None = None

    @property
    def is_late(self) -> bool:
        """Whether an earlier `get` that was interrupted made the call, so that its result may be outdated."""
        return self._future is not None

    def get(self, timeout_s: float | None = None) -> T:
        """Wait for the result.

        Raises:
            TimeoutError: the call is still pending.
        """
        if self._future is None:
            self._future = self._thread.submit(self._make)
        future = self._future
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not future.done():
            left_s = _SIGNALS_S if deadline is None else min(_SIGNALS_S, deadline - time.monotonic())
            concurrent.futures.wait([future], timeout=max(0.0, left_s))
            if deadline is not None and time.monotonic() >= deadline and not future.done():
                raise TimeoutError
        self._future = None
        return self._thread.result_of(future)


class _Taken(NamedTuple):
    """A batch that the loop has taken, and its partition's reset count then; see `Cursor.resets_of`."""

    batch: ConsumedBatch
    where: TopicPartition
    resets: int


def _of(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


class Consumer:
    """See `tidelog.Consumer`. Created by `tidelog.sync.Client.consumer`."""

    def __init__(self, client: object, thread: LoopThread, consumer: asynchronous.Consumer) -> None:
        self._client = client  # Keeps the client alive: its finalizer would close it while this consumer exists.
        self._thread = thread
        self._consumer = consumer
        self._cursor = consumer.cursor
        # The only call that loads the cursor: a second one could overwrite the loaded batch.
        self._more = _LoopCall(thread, consumer.more)
        self._next = _LoopCall(thread, self._take_next)
        self._held: list[_Taken] = []
        """Batches of an interrupted wait whose partition was paused afterwards."""
        self._turns = _LoopCall(thread, consumer.turn)
        self._is_member = consumer.reads_until < math.inf
        self._taken: list[Record] = []
        """Records that an interrupted `poll` has taken and not returned."""
        self._resets: dict[TopicPartition, int] = {}
        """Partition of each record in `_taken` -> its reset count (`Cursor.resets_of`) when the record was kept."""

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __iter__(self) -> Iterator[Record]:
        return self._records_of_member() if self._is_member else self._records()

    def _records(self) -> Iterator[Record]:
        cursor = self._cursor
        while True:
            try:
                yield from cursor.records
            except Exception as error:  # noqa: BLE001 - the application's deserializer may raise anything
                cursor.failed(error)
                continue
            except KeyboardInterrupt:  # Raised inside a deserializer: the record was not delivered.
                cursor.again()
                raise
            if not cursor.open() and not self.fill():
                return

    def _records_of_member(self) -> Iterator[Record]:
        """Yield records, and check the group session before each.

        After the end of the session another member may own the partition.
        """
        cursor, valid_until = self._cursor, 0.0
        while True:
            if session_time() >= valid_until:
                valid_until = self._check_session()
            try:
                record = next(cursor.records, None)
            except Exception as error:  # noqa: BLE001 - see above
                cursor.failed(error)
                continue
            except KeyboardInterrupt:
                cursor.again()
                raise
            if record is not None:
                yield record
            elif not cursor.open() and not self.fill():
                return

    def _check_session(self) -> float:
        """Drop records if the session has expired; return the `session_time` until which the session is valid."""
        if session_time() >= self.reads_until:
            self.turn()
        return self.reads_until

    def __next__(self) -> Record:
        return next(iter(self))

    def batches(self) -> Iterator[ConsumedBatch]:
        """See `tidelog.Consumer.batches`."""
        while True:
            self._check_session()
            batch = self._cursor.rest()
            if batch is not None:
                yield batch
                del batch
            elif not self.fill():
                return

    def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Record]:
        """See `tidelog.Consumer.poll`. The next call returns records that a call interrupted by Ctrl-C has taken."""
        if max_records < 1 or timeout_s < 0:
            raise InvalidRequestError(f"max_records must be >= 1 and timeout_s >= 0, got {max_records} and {timeout_s}")
        self.begin()
        taken = [each for each in self._taken if self._resets[_of(each)] == self._resets_of_record(each)]
        self._taken = []
        if not taken:
            self.ask(polls=True)
        try:
            self._take_more(taken, max_records, time.monotonic() + timeout_s)
        except BaseException:  # Ctrl-C, or an error after some records
            self._keep(self._cursor.still_assigned(taken))
            raise
        if len(taken) > max_records:
            self._keep(taken[max_records:])
        return taken[:max_records]

    def _resets_of_record(self, record: Record) -> int:
        return self._cursor.resets_of(_of(record))

    def _keep(self, records: list[Record]) -> None:
        """Store taken records for the next call."""
        self._taken = records
        self._resets = {_of(each): self._resets_of_record(each) for each in records}

    def _take_more(self, taken: list[Record], max_records: int, deadline: float) -> None:
        """Append available records to `taken`, which keeps them if the call is interrupted."""
        valid_until, losses = self._check_session(), self._cursor.losses
        while len(taken) < max_records:
            try:
                before = len(taken)
                self._cursor.take(max_records - before, taken)
                # `has_left` means that an undecodable record follows: the next call continues there.
                is_end = len(taken) == before or self._cursor.has_left or not self.has_arrivals
                if len(taken) >= max_records or (taken and is_end):
                    break
                wait_s = _SIGNALS_S if taken else max(0.0, deadline - time.monotonic())
                if not self._more.get(wait_s):
                    break
            except TimeoutError:
                break
            except TidelogError:
                if not taken:
                    raise
                break
        if session_time() >= valid_until:
            self._check_session()
        if self._cursor.losses != losses:
            # Only lost partitions: a graceful revocation waits until the returned records are processed.
            taken[:] = self._cursor.still_assigned(taken)

    @internal
    def ask(self, *, polls: bool = False) -> None:
        """See `tidelog.Consumer.ask`."""
        if self._consumer.commits_processed:
            self._thread.run(lambda: self._consumer.ask(polls=polls))
        else:
            self._cursor.asked(polls=polls)

    @internal
    def more(self) -> bool:
        """See `tidelog.Consumer.more`."""
        return self._more.get()

    def next_batch(self) -> ConsumedBatch | None:
        """See `tidelog.Consumer.next_batch`."""
        if self._held and (taken := self._no_longer_paused()) is not None:
            return taken.batch
        while True:
            is_late = self._next.is_late
            if (taken := self._next.get()) is None:
                return None
            # After an interrupted wait the batch may be old: the partition may have been revoked, sought or paused.
            self._check_session()
            if not self._is_current(taken):
                continue
            if is_late and taken.where in self.paused():
                self._held.append(taken)
                continue
            return taken.batch

    def _is_current(self, taken: _Taken) -> bool:
        return self._cursor.resets_of(taken.where) == taken.resets

    def _no_longer_paused(self) -> _Taken | None:
        """Remove and return the first held batch whose partition is not paused; None if all are paused."""
        self._check_session()
        self._held = [each for each in self._held if self._is_current(each)]
        paused = self.paused()
        for each in self._held:
            if each.where not in paused:
                self._held.remove(each)
                return each
        return None

    async def _take_next(self) -> _Taken | None:
        batch = await self._consumer.next_batch()
        if batch is None:
            return None
        where = TopicPartition(batch.topic, batch.partition)
        return _Taken(batch, where, self._cursor.resets_of(where))

    @internal
    def fill(self) -> bool:
        """See `tidelog.Consumer.fill`."""
        self.ask()
        return self._more.get()

    @property
    @internal
    def reads_until(self) -> float:
        """See `tidelog.Consumer.reads_until`."""
        return self._consumer.reads_until

    @internal
    def turn(self) -> None:
        """See `tidelog.Consumer.turn`."""
        self._turns.get()

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed."""
        return self._consumer.closed

    @property
    def skipped(self) -> int:
        """See `tidelog.Consumer.skipped`."""
        return self._consumer.skipped

    @property
    @internal
    def cursor(self) -> Cursor:
        """See `tidelog.Consumer.cursor`."""
        return self._cursor

    @property
    @internal
    def has_arrivals(self) -> bool:
        """See `tidelog.Consumer.has_arrivals`."""
        return self._consumer.has_arrivals

    # Generated by `make generate`: begin

    def assign(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """See `tidelog.Consumer.assign`."""
        self._thread.run(lambda: self._consumer.assign(positions))

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """See `tidelog.Consumer.unassign`."""
        self._thread.run(lambda: self._consumer.unassign(partitions))

    def commit(
        self, positions: Mapping[TopicPartition, int] | None = None, *, note: str = ""
    ) -> dict[TopicPartition, Committed]:
        """See `tidelog.Consumer.commit`."""
        return self._thread.run(lambda: self._consumer.commit(positions, note=note))

    def reject(self, record: Record, reason: str | Exception) -> None:
        """See `tidelog.Consumer.reject`."""
        self._thread.run(lambda: self._consumer.reject(record, reason))

    def seek(self, partition: TopicPartition | int, to: SeekTo) -> None:
        """See `tidelog.Consumer.seek`."""
        self._thread.run(lambda: self._consumer.seek(partition, to))

    def seek_to_key(self, partition: TopicPartition | int, key: bytes) -> bool:
        """See `tidelog.Consumer.seek_to_key`."""
        return self._thread.run(lambda: self._consumer.seek_to_key(partition, key))

    def begin(self) -> None:
        """See `tidelog.Consumer.begin`."""
        self._thread.run(self._consumer.begin)

    # Generated by `make generate`: end

    def assignment(self) -> frozenset[TopicPartition]:
        """See `tidelog.Consumer.assignment`."""
        return self._in_loop(self._consumer.assignment)

    def pause(self, *partitions: TopicPartition) -> None:
        """See `tidelog.Consumer.pause`."""
        self._in_loop(lambda: self._consumer.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """See `tidelog.Consumer.resume`."""
        self._in_loop(lambda: self._consumer.resume(*partitions))

    def paused(self) -> frozenset[TopicPartition]:
        """See `tidelog.Consumer.paused`."""
        return self._in_loop(self._consumer.paused)

    def position(self) -> dict[TopicPartition, int]:
        """See `tidelog.Consumer.position`."""
        return self._consumer.position()

    def commit_soon(
        self, positions: Mapping[TopicPartition, int] | None = None, *, on_commit: OnCommit | None = None
    ) -> None:
        """See `tidelog.Consumer.commit_soon`.

        `on_commit` is called in the client's thread, where blocking methods of this client must not be called.
        """
        self._in_loop(lambda: self._consumer.commit_soon(positions, on_commit=on_commit))

    @property
    def generation(self) -> int:
        """See `tidelog.Consumer.generation`."""
        return self._consumer.generation

    @property
    def member_id(self) -> str:
        """See `tidelog.Consumer.member_id`."""
        return self._consumer.member_id

    def close(self) -> None:
        """See `tidelog.Consumer.close`."""
        if not self._thread.closed:
            self._thread.run(self._consumer.close)

    def abort(self) -> None:
        """See `tidelog.Consumer.abort`."""
        if not self._thread.closed:
            self._thread.run(self._consumer.abort)

    def _in_loop(self, do: Callable[[], T]) -> T:
        """Call a function in the loop's thread, the only one that may change the assignment."""

        async def done() -> T:
            return do()

        return self._thread.run(done)
