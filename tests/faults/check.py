"""Verdict on a run: compares the clients' knowledge (`History`) with every replica's files (`Copies`).

The method is that of Jepsen's Kafka workload (jepsen.tests.kafka): unique values, offsets as the order, and a complete
read at the end. In addition each replica's files are compared byte for byte, not only the records that one of them
serves.

Records with a partition chosen by their key may be in any partition of their topic, once. Of a deleted topic only the
clients' records are left: none of them may be stored in a topic that was created later with the same name.

A partition's *truth* is the copy of a node that must have all records up to the committed end. It is checked against
all others, so it does not matter which one it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tests.faults.history import History, Key, Run, name_of
from tests.faults.tenures import Tenures
from tests.faults.values import CONTROL, CORRUPT, producer_of, show

EXAMPLES_MAX: Final = 5


class Fault(Enum):
    """Kinds of faults; the value is the name in the table."""

    LOST = "lost: acknowledged, and not there"
    MOVED = "moved: acknowledged at another offset"
    DUPLICATED = "duplicated: stored more than once"
    REORDERED = "reordered: a producer's records out of order"
    REFUSED = "stored although refused for certain"
    INVENTED = "stored although no client sent it"
    DIVERGED = "diverged: replicas differ below the committed end"
    INCOMPLETE = "incomplete: a replica lacks committed records"
    UNCOMMITTED = "uncommitted reads: delivered, later gone or different"
    FORKED = "offsets delivered with two contents"
    SKIPPED = "skipped: a reader missed records"
    REPEATED = "repeated: a reader got records again"
    UNREAD = "unread: a reader never came to the end"
    STALE = "stale answers: ends and positions that were known to be higher"
    DENIED = "denials: errors for something that exists"
    NAMESAKE = "in a namesake: records of a deleted topic in one made after it"
    DOUBLE = "double: two members of a group had a partition at once"
    FORGOTTEN = "forgotten: a group's committed position was lost, or went back"
    PASSED = "passed: below a group's position, and never handed to a member"
    AGAIN = "again: committed before a member began, and handed to it"
    UNREADABLE = "unreadable: committed, and not served while a quorum was lost"
    IMPOSSIBLE = "acknowledged while a quorum was lost"
    STUCK = "stuck: no progress, or no end in time"
    FAILED = "nodes that failed by themselves, or logged a failure"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch in a replica's file. `digest` is over all its bytes; `numbers` has one entry a record."""

    epoch: int
    base_offset: int
    digest: bytes
    numbers: array[int]

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + len(self.numbers)


@dataclass(frozen=True, slots=True)
class Copies:
    """All copies of one partition.

    Attributes:
        committed_end: records below it must be the same on all replicas, permanently.
        holders: the nodes that must have a complete copy.
        by_node: node -> its batches in the order of its files.
    """

    committed_end: int
    holders: frozenset[str]
    by_node: Mapping[str, Sequence[StoredBatch]]


@dataclass(slots=True)
class Verdict:
    """Number of each kind of fault, with its first examples."""

    counts: dict[Fault, int] = field(default_factory=lambda: dict.fromkeys(Fault, 0))
    examples: dict[Fault, list[str]] = field(default_factory=dict)

    def add(self, fault: Fault, message: str, count: int = 1) -> None:
        """Note a fault that was found `count` times."""
        self.counts[fault] += count
        examples = self.examples.setdefault(fault, [])
        if len(examples) < EXAMPLES_MAX:
            examples.append(message)

    @property
    def total(self) -> int:
        """How many faults there are."""
        return sum(self.counts.values())


def judge(
    history: History,
    copies: Mapping[Key, Copies],
    *,
    must_end: Mapping[str, Collection[Key]] | None = None,
    shared: Tenures | None = None,
) -> Verdict:
    """Return the faults of a run.

    Args:
        history: of the clients.
        copies: of every partition that was written to, drained when all was quiet.
        must_end: readers that were given the time to read all of some partitions.
        shared: observations of the members of a group.
    """
    verdict = Verdict()
    known = {*history.sent, *(key for _, key in history.runs)}
    for key in sorted(key for key in known - set(copies) if key.topic not in history.gone):
        verdict.add(Fault.LOST, f"{key}: no node has the partition", len(history.sent[key].acked) or 1)
    routed: dict[int, Key] = {}
    truths: dict[Key, Sequence[int]] = {}
    for key, held in sorted(copies.items()):
        _check_copies(verdict, key, held)
        truth = truths[key] = _truth(held)
        _check_sent(verdict, history, key, truth)
        _check_routed(verdict, history, key, truth, routed)
        _check_order(verdict, history, key, truth)
        readers = {reader: runs for (reader, of), runs in history.runs.items() if of == key}
        begun = {reader: history.begun.get((reader, key), (0, 0)) for reader in readers}
        _check_reads(verdict, key, truth, readers, begun)
        for reader in sorted(reader for reader, keys in (must_end or {}).items() if key in keys):
            end = readers[reader][-1].end if reader in readers else 0
            if any(number != CONTROL for number in truth[end:]):
                verdict.add(Fault.UNREAD, f"{key}: {reader} has read to {end} of {len(truth)}")
    for (reader, key), runs in sorted(history.runs.items()):
        if key.topic in history.gone:
            _check_reads_of_gone(verdict, history, reader, key, runs)
    _add_noticed(verdict, history)
    if shared is not None:
        _add_shared(verdict, shared, truths)
    return verdict


def _add_shared(verdict: Verdict, shared: Tenures, truths: Mapping[Key, Sequence[int]]) -> None:
    """Add the faults in how a group shared its partitions."""
    kinds = (Fault.DOUBLE, Fault.FORGOTTEN, Fault.PASSED, Fault.AGAIN)
    for fault, messages in zip(kinds, shared.judge(truths), strict=True):
        for message in messages:
            verdict.add(fault, message)


def _add_noticed(verdict: Verdict, history: History) -> None:
    """Add the faults that clients detected."""
    for answer in history.stale:
        verdict.add(Fault.STALE, f"{answer.about}: {answer.what}: {answer.answered} was answered, {answer.floor} known")
    noticed = {
        Fault.DENIED: history.denials,
        Fault.NAMESAKE: history.crossed,
        Fault.UNREADABLE: history.unreadable,
        Fault.IMPOSSIBLE: history.impossible,
    }
    for fault, messages in noticed.items():
        for message in messages:
            verdict.add(fault, message)


def _ending_below(batches: Sequence[StoredBatch], end: int) -> list[StoredBatch]:
    return [batch for batch in batches if batch.base_offset < end]


def _longest(held: Copies) -> Sequence[StoredBatch]:
    """Return the batches of the holder that has most."""
    choice = sorted(held.holders & set(held.by_node)) or sorted(held.by_node)
    below = [_ending_below(held.by_node[node], held.committed_end) for node in choice]
    return max(below, key=lambda batches: sum(len(batch.numbers) for batch in batches), default=[])


def _truth(held: Copies) -> array[int]:
    """Return the record at each offset, up to the committed end; CORRUPT where no replica has one."""
    truth = array("q", [CORRUPT]) * held.committed_end
    for batch in _longest(held):
        stop = min(batch.end_offset, held.committed_end)
        truth[batch.base_offset : stop] = batch.numbers[: stop - batch.base_offset]
    return truth


def _check_copies(verdict: Verdict, key: Key, held: Copies) -> None:
    """Compare the copies with each other and with the required records."""
    reference = {batch.base_offset: batch for batch in _longest(held)}
    for node, batches in sorted(held.by_node.items()):
        position = 0 if node in held.holders else None
        for batch in _ending_below(batches, held.committed_end):
            expected = reference.get(batch.base_offset)
            if expected is None or (expected.epoch, expected.digest) != (batch.epoch, batch.digest):
                what = f"epoch {expected.epoch}" if expected else "no batch"
                verdict.add(
                    Fault.DIVERGED,
                    f"{key}: {node} has a batch of epoch {batch.epoch} at {batch.base_offset}, others {what}",
                )
            if position is not None:
                if batch.base_offset != position:
                    verdict.add(Fault.INCOMPLETE, f"{key}: {node} lacks {position} to {batch.base_offset}")
                position = batch.end_offset
        if position is not None and position < held.committed_end:
            verdict.add(Fault.INCOMPLETE, f"{key}: {node} ends at {position}, {held.committed_end} is committed")
    for node in sorted(held.holders - set(held.by_node)):
        verdict.add(Fault.INCOMPLETE, f"{key}: {node} has no copy")


def _check_sent(verdict: Verdict, history: History, key: Key, truth: Sequence[int]) -> None:
    """Compare the outcomes with the stored records."""
    sent = history.sent[key]
    places: dict[int, int] = {}
    for offset, number in enumerate(truth):
        if number == CONTROL:
            continue
        if number in places and number != CORRUPT:
            verdict.add(Fault.DUPLICATED, f"{key}: {show(number)} is at {places[number]} and {offset}")
        places.setdefault(number, offset)
    for number, offset in zip(sent.acked, sent.offsets, strict=True):
        if number not in places:
            verdict.add(Fault.LOST, f"{key}: {show(number)}, acknowledged at {offset}")
        elif offset >= len(truth) or truth[offset] != number:
            verdict.add(Fault.MOVED, f"{key}: {show(number)}, acknowledged at {offset}, is at {places[number]}")
    open_here = [history.anywhere[topic] for topic in (key.topic, name_of(key.topic)) if topic in history.anywhere]
    refused = sent.refused.union(*(each.refused for each in open_here))
    for number in sorted(refused & places.keys()):
        verdict.add(Fault.REFUSED, f"{key}: {show(number)} is at {places[number]}")
    known = {*sent.acked, *sent.unknown, *refused}.union(*(each.unknown for each in open_here))
    for number in sorted(places.keys() - known):
        meant_for = history.meant_for.get(producer_of(number), key.topic)
        if number != CORRUPT and meant_for != key.topic:
            verdict.add(Fault.NAMESAKE, f"{key}: {show(number)} at {places[number]}, meant for {meant_for}")
        else:
            verdict.add(Fault.INVENTED, f"{key}: {show(number)} at {places[number]}")


def _check_routed(verdict: Verdict, history: History, key: Key, truth: Sequence[int], homes: dict[int, Key]) -> None:
    """Find records that are in two partitions; `homes` has the partitions of the others."""
    if not history.routed:
        return
    for number in {number for number in truth if number >= 0 and producer_of(number) in history.routed}:
        home = homes.setdefault(number, key)
        if home != key:
            verdict.add(Fault.DUPLICATED, f"{show(number)} is in {home} and {key}")


def _check_reads_of_gone(verdict: Verdict, history: History, reader: str, key: Key, runs: Sequence[Run]) -> None:
    """Compare the records delivered from a deleted topic with those meant for it; its files are gone."""
    position = 0
    for run in runs:
        if run.first < position:
            verdict.add(Fault.REPEATED, f"{key}: {reader} had read to {position} and got {run.first}")
        position = run.end
        for offset, number in enumerate(run.numbers, run.first):
            meant_for = history.meant_for.get(producer_of(number), key.topic) if number >= 0 else key.topic
            if number == CORRUPT:
                verdict.add(Fault.INVENTED, f"{key}: {reader} got {show(number)} at {offset}")
            elif meant_for != key.topic:
                verdict.add(Fault.NAMESAKE, f"{key}: {reader} got {show(number)} at {offset}, meant for {meant_for}")


def _check_order(verdict: Verdict, history: History, key: Key, truth: Sequence[int]) -> None:
    newest: dict[int, int] = {}
    for offset, number in enumerate(truth):
        if number < 0:
            continue
        producer = producer_of(number)
        if number < newest.get(producer, -1):
            who = history.producers.get(producer, "somebody")
            message = f"{key}: {show(number)} ({who}) at {offset}, after {show(newest[producer])}"
            verdict.add(Fault.REORDERED, message)
        newest[producer] = max(number, newest.get(producer, -1))


def _check_reads(
    verdict: Verdict,
    key: Key,
    truth: array[int],
    readers: Mapping[str, Sequence[Run]],
    begun: Mapping[str, tuple[int, int]],
) -> None:
    """Compare delivered records with stored ones, and each reader's progress with the offsets."""
    wrong: dict[int, set[int]] = {}
    for reader, runs in readers.items():
        position, latest = begun[reader]
        if runs and position < runs[0].first <= latest:
            position = runs[0].first
        for run in runs:
            if run.first < position:
                verdict.add(Fault.REPEATED, f"{key}: {reader} had read to {position} and got {run.first}")
            elif any(number != CONTROL for number in truth[position : run.first]):
                verdict.add(Fault.SKIPPED, f"{key}: {reader} had read to {position} and got {run.first}")
            position = run.end
            if truth[run.first : run.end] == run.numbers:
                continue
            for offset, number in enumerate(run.numbers, run.first):
                kept = truth[offset] if offset < len(truth) else None
                if number != kept:
                    now = "nothing" if kept is None else show(kept)
                    verdict.add(Fault.UNCOMMITTED, f"{key}: {reader} got {show(number)} at {offset}, now {now}")
                    wrong.setdefault(offset, set()).add(number)
    for offset, numbers in sorted(wrong.items()):
        delivered = {*numbers, *_delivered(offset, readers.values())}
        if len(delivered) > 1:
            verdict.add(Fault.FORKED, f"{key}: at {offset}: {', '.join(map(show, sorted(delivered)))}")


def _delivered(offset: int, readers: Iterable[Sequence[Run]]) -> set[int]:
    return {run.numbers[offset - run.first] for runs in readers for run in runs if run.first <= offset < run.end}
