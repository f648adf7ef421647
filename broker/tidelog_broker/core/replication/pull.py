"""A pull: one range that a replica fetches from others, for a catch-up, a backfill, or producers' state.

One range is fetched at a time and one read of it is outstanding: the asker sets the pace, so neither side queues.
A source that does not answer, or does not have it, is left for the next one. Whatever comes is held against the
digests of this node's log (`log_tail.check_run`) and, for a sealed epoch, against the decision about its end.

Who does not answer in time may be busy with what was asked for before. So of a sealed epoch less is asked for then, and
after a round in which nobody answered, the next one has twice the time. Asking for the same again at the same pace
would bring nothing but answers that come too late, for ever.

Of the open epoch more and more is asked for while answers are prompt, since at full load small ranges are fetched more
slowly than the log grows. Where many partitions fetch at once, answers are not prompt, and the ranges stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from tidelog_broker.core.replication.ports import Position, Timing
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

DOUBLINGS_MAX: Final = 3
"""How often the time for an answer about a sealed epoch is doubled, which nobody waits for."""

ROUNDS_FOR_THE_DEAD: Final = 10
"""How often all sources are asked before those count as having nothing that are not alive and do not answer."""

Step = Literal["resting", "asked", "storing"]
"""What a pull waits for; see `NEXT`."""

NEXT: Final[Mapping[Step, frozenset[Step]]] = {
    "resting": frozenset({"resting", "asked", "storing"}),
    "asked": frozenset({"resting", "storing"}),
    "storing": frozenset({"storing", "resting", "asked"}),
}
"""Which step follows which. Only what comes while a pull is asked is an answer, and it never asks twice at a time.

    resting  until a time: its first turn, the next source's, or its share of the node's bandwidth
    asked    a source has the question; the source is given up when the time for an answer is over
    storing  what came is being written, or the copy on the disk put right; no time ends that
"""


class Pull:
    """One range on its way: of `epoch`, up to `end`, or as far as there is while `end` is None. See `NEXT`."""

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
        """Whether nothing is held where it begins: retention has deleted what lies in front of that."""
        self.range_bytes = min(first_bytes or timing.pull_bytes, timing.pull_bytes)
        """How much is asked for next."""
        self._least_bytes = self.range_bytes
        self._doublings_max = DOUBLINGS_MAX if first_bytes else 0
        self._was_too_much = False
        """Whether a range did not come in time, or could not be kept: from then on they grow by little."""
        self._asked_ms = 0
        self._key = key
        self._sources = tuple(sources)
        self._timing = timing
        self._producers = producers
        self._turn = 0
        self._in_vain = 0
        """How many were asked one after the other and had nothing."""
        self._silences = 0
        """How many were asked since something last came, and did not answer in time."""
        self._declined: set[str] = set()
        """Who has answered since something last came, and had nothing: also who was silent before."""
        self._step: Step = "resting"
        self._retry_ms: int | None = None

    def _become(self, step: Step) -> None:
        assert step in NEXT[self._step], f"{self._step} is not followed by {step}"
        self._step = step

    @property
    def source(self) -> str:
        """Who is asked."""
        return self._sources[self._turn % len(self._sources)]

    @property
    def in_vain(self) -> bool:
        """Whether all sources were asked since something last came, and none had it."""
        return self._in_vain >= len(self._sources)

    def refused(self, alive: Callable[[str], bool]) -> bool:
        """Whether all sources have answered since something last came, and none had it.

        Who is not alive is not waited for longer than `ROUNDS_FOR_THE_DEAD` rounds: it may never come back.
        """
        silent = set(self._sources) - self._declined
        return not silent or (self._in_vain >= ROUNDS_FOR_THE_DEAD * len(self._sources) and not any(map(alive, silent)))

    @property
    def deadline_ms(self) -> int | None:
        """When to ask again, or somebody else; None while what has come is being written."""
        return self._retry_ms

    def ask(self, position: Position, now_ms: int) -> pb.Backfill:
        """Return the request for what follows `position`, to be sent to `source`."""
        self._become("asked")
        self._asked_ms = now_ms
        silent_rounds = self._silences // len(self._sources)
        self._retry_ms = now_ms + (self._timing.pull_ms << min(silent_rounds, self._doublings_max))
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
        """Whether a reply is the one that is waited for.

        No producers at all are no bytes; an answer about batches tells where its source ends instead, and is behind
        offset 0 whenever a producer can have sent anything.
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
        """Ask no sooner than this."""
        self._become("resting")
        self._retry_ms = max(until_ms, self._retry_ms or until_ms)

    def answered_tail(self, now_ms: int) -> None:
        """As `answered`, about the open epoch."""
        is_prompt = now_ms - self._asked_ms <= self._timing.prompt_ms
        range_bytes = 2 * self.range_bytes if is_prompt else self.range_bytes // 2
        self.answered()
        self.range_bytes = min(max(range_bytes, self._timing.pull_bytes), self._timing.tail_bytes)

    def answered(self) -> None:
        """What was asked for is here and being written."""
        self._become("storing")
        more_bytes = self._least_bytes if self._was_too_much else self.range_bytes
        self.range_bytes = min(self.range_bytes + more_bytes, self._timing.pull_bytes)
        self._in_vain = self._silences = 0
        self._declined.clear()
        self._retry_ms = None

    def turned_down(self, now_ms: int) -> None:
        """The source cannot help now: ask the next one, soon."""
        self._declined.add(self.source)
        self._in_vain += 1
        self._next(now_ms, round_ms=self._timing.resend_ms)

    def begins_elsewhere(self, now_ms: int) -> None:
        """The source has no batch that begins where it was asked, and says where to ask instead: at once."""
        self._become("resting")
        self._retry_ms = now_ms

    def not_kept(self, now_ms: int) -> None:
        """What a source gave cannot be kept, perhaps for want of space: ask the next one for little, in a while."""
        self.range_bytes, self._was_too_much = self._least_bytes, True
        self._next(now_ms, round_ms=self._timing.pull_ms)

    def _next(self, now_ms: int, *, round_ms: int) -> None:
        self._become("resting")
        self._turn += 1
        round_done = self._turn % len(self._sources) == 0
        self._retry_ms = now_ms + (round_ms if round_done else 0)

    def overdue(self, now_ms: int) -> bool:
        """Whether it is time to ask; a source that did not answer is given up for the next one."""
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
