"""A fetch of missing records, range by range, or of producer state from other replicas.

A peer fetch has at most one outstanding request, so the receiver sets the pace and neither side queues. If a source
does not answer or does not have the range, the next one is asked. Received batches are verified against the digests of
the local log (`replica_state.check_run`) and, for a sealed epoch, against the decision about its end.

A source that does not answer in time may be busy with earlier requests. For a sealed epoch the range is then halved,
and the timeout is doubled after each round without an answer; repeating the same request at the same pace could produce
only late answers, forever.

For the open epoch the range grows while answers are prompt, because under full load the log grows faster than small
ranges can be fetched. When many partitions fetch at once, answers are not prompt and the ranges stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from tidelog_broker.core.replication.ports import Position, Timing
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

DOUBLINGS_MAX: Final = 3
"""Maximum number of doublings of the timeout for a sealed epoch."""

ROUNDS_FOR_THE_DEAD: Final = 10
"""Number of rounds of requests after which a dead source without an answer is assumed not to have the data."""

Step = Literal["resting", "asked", "storing"]
"""State of a peer fetch; see `STEP_TRANSITIONS`."""

STEP_TRANSITIONS: Final[Mapping[Step, frozenset[Step]]] = {
    "resting": frozenset({"resting", "asked", "storing"}),
    "asked": frozenset({"resting", "storing"}),
    "storing": frozenset({"storing", "resting", "asked"}),
}
"""Allowed transitions. A reply counts only in the state `asked`, and only one request is outstanding at a time. The
states are:

    resting  waits for its first request, the next source, or the node's bandwidth budget
    asked    waits for an answer; after the timeout the next source is asked
    storing  waits without a timeout until received data is written, or a wrong copy is set aside
"""


class PeerFetch:
    """Makes the requests for the missing data of one epoch, which the caller sends, and selects their receiver.

    Args:
        sources: the nodes to ask, in this order.
        end: the end of the records to fetch; None: the end of the source's log.
        producers: whether the producer state at the end of `epoch` is fetched instead of records.
        first_bytes: size of the first range of a sealed epoch; None for the open epoch.
    """

    def __init__(
        self,
        key: PartitionKey,
        epoch: int,
        sources: Sequence[str],
        timing: Timing,
        *,
        end: Position | None = None,
        producers: bool = False,
        first_bytes: int | None = None,
    ) -> None:
        assert sources
        self.epoch = epoch
        self.end = end
        self.digest_unknown = False
        """Whether the digest at the start is unknown, because retention has deleted the batch before it."""
        self.range_bytes = min(first_bytes or timing.peer_fetch_bytes, timing.peer_fetch_bytes)
        """Size of the next range."""
        self._least_bytes = self.range_bytes
        self._doublings_max = DOUBLINGS_MAX if first_bytes else 0
        self._was_too_much = False
        """Whether a range timed out or could not be stored, after which ranges grow linearly."""
        self._asked_ms = 0
        self._key = key
        self._sources = tuple(sources)
        self._timing = timing
        self._producers = producers
        self._turn = 0
        self._in_vain = 0
        """Number of sources asked in succession without success."""
        self._silences = 0
        """Number of timeouts since data last arrived."""
        self.rounds_without = 0
        """Number of rounds, since data last arrived, in which each source has answered that it has no such records."""
        self._without: set[str] = set()
        """Sources that have answered in the current round that they have no such records."""
        self._declined: set[str] = set()
        """Sources that have answered, since data last arrived, that they lack the range."""
        self._step: Step = "resting"
        self._retry_ms: int | None = None

    def _become(self, step: Step) -> None:
        assert step in STEP_TRANSITIONS[self._step], f"a peer fetch cannot change from {self._step} to {step}"
        self._step = step

    @property
    def source(self) -> str:
        """The current source."""
        return self._sources[self._turn % len(self._sources)]

    @property
    def is_exhausted(self) -> bool:
        """Whether all sources were asked without success since data last arrived."""
        return self._in_vain >= len(self._sources)

    def refused(self, alive: Callable[[str], bool]) -> bool:
        """Return whether all sources have answered, since data last arrived, that they do not have the requested data.

        Dead sources are ignored after `ROUNDS_FOR_THE_DEAD` rounds, because they may never return.
        """
        silent = set(self._sources) - self._declined
        return not silent or (self._in_vain >= ROUNDS_FOR_THE_DEAD * len(self._sources) and not any(map(alive, silent)))

    @property
    def deadline_ms(self) -> int | None:
        """When to send the next request; None before the first one, and while received data is being written."""
        return self._retry_ms

    def ask(self, position: Position, now_ms: int) -> pb.Backfill:
        """Return a request for the data after `position`, to be sent to `source`."""
        self._become("asked")
        self._asked_ms = now_ms
        silent_rounds = self._silences // len(self._sources)
        self._retry_ms = now_ms + (self._timing.peer_fetch_ms << min(silent_rounds, self._doublings_max))
        return pb.Backfill(
            topic_id=self._key[0],
            partition=self._key[1],
            epoch=self.epoch,
            from_offset=position.offset,
            from_digest=position.digest,
            end_offset=self.end.offset if self.end is not None else 0,
            max_bytes=self.range_bytes,
            producers=self._producers,
            digest_unknown=self.digest_unknown,
        )

    def expects(self, sender: str, reply: pb.BackfillReply, position: Position) -> bool:
        """Return whether a reply answers the outstanding request for the data after `position`.

        An empty producer state has no bytes. A reply with batches is recognised by its source end, which is above 0
        whenever a producer can have sent anything.
        """
        about_producers = reply.producers or not reply.source_end_offset
        return (
            self._step == "asked"
            and sender == self.source
            and reply.epoch == self.epoch
            and bool(about_producers or reply.status != pb.HELD or not self._producers)
            and (reply.status != pb.HELD or reply.base_offset == position.offset)
        )

    def pause(self, until_ms: int) -> None:
        """Delay the next request until a time."""
        self._become("resting")
        self._retry_ms = max(until_ms, self._retry_ms or until_ms)

    def answered_tail(self, now_ms: int) -> None:
        """Record that data of the open epoch was received, and adapt the size of the next range."""
        is_prompt = now_ms - self._asked_ms <= self._timing.prompt_ms
        range_bytes = 2 * self.range_bytes if is_prompt else self.range_bytes // 2
        self.answered()
        self.range_bytes = min(max(range_bytes, self._timing.peer_fetch_bytes), self._timing.tail_bytes)

    def answered(self) -> None:
        """Record that data was received and is being written."""
        self._become("storing")
        more_bytes = self._least_bytes if self._was_too_much else self.range_bytes
        self.range_bytes = min(self.range_bytes + more_bytes, self._timing.peer_fetch_bytes)
        self._in_vain = self._silences = self.rounds_without = 0
        self._declined.clear()
        self._without.clear()
        self._retry_ms = None

    def declined(self, now_ms: int, *, is_without: bool = False) -> None:
        """Record that the source does not provide the data, and schedule a request to the next source.

        Args:
            is_without: whether the source has none of the records; otherwise the source may have another version of
                them, or may be able to provide them later.
        """
        if is_without:
            self._without.add(self.source)
            if self._without == set(self._sources):
                self.rounds_without += 1
                self._without.clear()
        self._declined.add(self.source)
        self._in_vain += 1
        self._next(now_ms, round_ms=self._timing.resend_ms)

    def redirected(self, now_ms: int) -> None:
        """Make another request to the source due: it has no batch boundary at the position, and has named another."""
        self._become("resting")
        self._retry_ms = now_ms

    def store_failed(self, now_ms: int) -> None:
        """Record that received data could not be stored, and schedule a small range from the next source."""
        self.range_bytes, self._was_too_much = self._least_bytes, True
        self._next(now_ms, round_ms=self._timing.peer_fetch_ms)

    def _next(self, now_ms: int, *, round_ms: int) -> None:
        self._become("resting")
        self._turn += 1
        round_done = self._turn % len(self._sources) == 0
        self._retry_ms = now_ms + (round_ms if round_done else 0)

    def overdue(self, now_ms: int) -> bool:
        """Return whether to send a request now; if the last one has timed out, the next source becomes `source`."""
        if self._retry_ms is None or now_ms < self._retry_ms:
            return False
        if self._step == "asked":
            self._become("resting")
            self._turn += 1
            self._in_vain += 1
            self._silences += 1
            self._was_too_much = True
            self.range_bytes = max(self.range_bytes // 2, self._least_bytes)
        return True
