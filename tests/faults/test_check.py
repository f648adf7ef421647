"""The checker finds each kind of fault, and none in a run without faults."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from tests.faults.check import Copies, Fault, StoredBatch, Verdict, judge
from tests.faults.history import History, Key
from tests.faults.values import CONTROL, CORRUPT, number_in, number_of, producer_of, value_of

KEY = Key("t", 0)
NODES = ("n1", "n2", "n3")
GROWN = Key("t", 1)
END = {"r1": [KEY, GROWN], "r2": [KEY, GROWN]}


def numbers(producer: int, *sequences: int) -> list[int]:
    return [number_of(producer, sequence) for sequence in sequences]


def stored(epoch: int, base_offset: int, records: Sequence[int], salt: bytes = b"") -> StoredBatch:
    return StoredBatch(epoch, base_offset, repr((epoch, base_offset, records)).encode() + salt, array("q", records))


@dataclass
class Scene:
    """A run of two producers and two readers that went well; tests spoil it."""

    history: History = field(default_factory=History)
    logs: dict[str, list[StoredBatch]] = field(default_factory=dict)
    end: int = 9
    holders: frozenset[str] = frozenset(NODES)

    def __post_init__(self) -> None:
        batches = [
            (1, 0, numbers(1, 0, 1, 2)),
            (1, 3, numbers(2, 0, 1)),
            (2, 5, [CONTROL]),
            (2, 6, numbers(1, 3, 4, 5)),
        ]
        self.logs = {node: [stored(*batch) for batch in batches] for node in NODES}
        for _, base_offset, records in batches:
            for offset, number in enumerate(records, base_offset):
                if number != CONTROL:
                    self.history.send(KEY, number)
                    self.history.ack(KEY, number, offset)
        for reader in ("r1", "r2"):
            self.history.read(reader, KEY, 0, numbers(1, 0, 1, 2))
            self.history.read(reader, KEY, 3, numbers(2, 0, 1))
            self.history.read(reader, KEY, 6, numbers(1, 3, 4, 5))

    def judge(self) -> Verdict:
        return judge(self.history, {KEY: Copies(self.end, self.holders, self.logs)}, must_end=END)

    def replace_everywhere(self, index: int, batch: StoredBatch) -> None:
        for log in self.logs.values():
            log[index] = batch


def test_a_run_without_faults_has_none() -> None:
    assert Scene().judge().total == 0


def test_indefinite_sends_may_be_stored_or_not_and_old_tails_do_not_count() -> None:
    scene = Scene()
    for number in numbers(3, 0, 1, 2):
        scene.history.send(KEY, number)
    scene.history.refuse(KEY, number_of(3, 2))
    scene.end = 10
    for log in scene.logs.values():
        log.append(stored(2, 9, numbers(3, 0)))
    for reader in ("r1", "r2"):
        scene.history.read(reader, KEY, 9, numbers(3, 0))
    scene.logs["n3"].append(stored(2, 10, numbers(3, 1)))
    assert scene.judge().total == 0


def lose(scene: Scene) -> None:
    scene.history.send(KEY, number_of(3, 0))
    scene.history.ack(KEY, number_of(3, 0), 9)


def move(scene: Scene) -> None:
    scene.history.sent[KEY].offsets[0] = 1


def duplicate(scene: Scene) -> None:
    scene.replace_everywhere(3, stored(2, 6, numbers(1, 3, 4, 4)))


def reorder(scene: Scene) -> None:
    scene.replace_everywhere(3, stored(2, 6, numbers(1, 4, 3, 5)))


def store_refused(scene: Scene) -> None:
    sent = scene.history.sent[KEY]
    sent.refused.add(sent.acked.pop())
    sent.offsets.pop()


def invent(scene: Scene) -> None:
    scene.replace_everywhere(3, stored(2, 6, [*numbers(1, 3, 4), CORRUPT]))


def diverge_in_bytes(scene: Scene) -> None:
    scene.logs["n2"][1] = stored(1, 3, numbers(2, 0, 1), salt=b"another append time")


def diverge_in_epoch(scene: Scene) -> None:
    scene.logs["n2"][3] = stored(1, 6, numbers(1, 3, 4, 5))


def diverge_outside(scene: Scene) -> None:
    scene.holders = frozenset({"n1", "n2"})
    scene.logs["n3"] = [stored(1, 3, numbers(3, 0, 1))]


def be_short(scene: Scene) -> None:
    scene.logs["n3"].pop()


def have_a_hole(scene: Scene) -> None:
    del scene.logs["n3"][1]


def have_none(scene: Scene) -> None:
    del scene.logs["n3"]


def deliver_uncommitted(scene: Scene) -> None:
    scene.history.send(KEY, number_of(3, 0))
    scene.history.read("r3", KEY, 9, numbers(3, 0))


def deliver_twice(scene: Scene) -> None:
    scene.history.send(KEY, number_of(3, 0))
    scene.history.read("r3", KEY, 0, numbers(3, 0))


def skip(scene: Scene) -> None:
    scene.history.runs["r1", KEY][-1].first += 1
    del scene.history.runs["r1", KEY][-1].numbers[0]


def repeat(scene: Scene) -> None:
    scene.history.read("r1", KEY, 8, numbers(1, 5))


def stop_reading(scene: Scene) -> None:
    scene.history.runs["r2", KEY].pop()


def answer_late(scene: Scene) -> None:
    scene.history.told_end(KEY, 9, 8)


def lower_a_position(scene: Scene) -> None:
    scene.history.told_position("g", KEY, 9, 6)


def deny(scene: Scene) -> None:
    scene.history.complain("reader", "EpochChangingError", "that is fine")
    scene.history.complain("reader", "OffsetOutOfRangeError", "offset 3 is not in 0..2")


def ask_for_a_record_in_vain(scene: Scene) -> None:
    scene.history.told_record(KEY, 8, 8)


def forget_partitions(scene: Scene) -> None:
    scene.history.told_partitions("t", 3, 2)


def acknowledge_without_a_quorum(scene: Scene) -> None:
    scene.history.send(KEY, number_of(3, 0))
    scene.history.quorum_lost()
    scene.history.send(KEY, number_of(3, 1))
    scene.history.send("t", number_of(4, 0))
    scene.history.ack(KEY, number_of(3, 0), 9)
    scene.history.ack("t", number_of(4, 0), 10, KEY)
    scene.history.quorum_back()
    scene.history.ack(KEY, number_of(3, 1), 11)


def be_unreadable(scene: Scene) -> None:
    scene.history.unreadable.append("t/0 was read from n1 to 3 of 9")


def invert_over_a_websocket(scene: Scene) -> None:
    """Pubs of one key of one socket: sent 3, 4, 5, acknowledged as such, stored 4, 3, 5."""
    invert = numbers(7, 4, 3, 5)
    scene.replace_everywhere(3, stored(2, 6, invert))
    sent = scene.history.sent[KEY]
    del sent.acked[5:], sent.offsets[5:]
    for number in numbers(7, 3, 4, 5):
        scene.history.send("t", number)
        scene.history.ack("t", number, 6 + invert.index(number), KEY)
    for reader in ("r1", "r2"):
        scene.history.runs[reader, KEY].pop()
        scene.history.read(reader, KEY, 6, invert)


def lose_what_the_topic_placed(scene: Scene) -> None:
    scene.history.send("t", number_of(3, 0))
    scene.history.ack("t", number_of(3, 0), 9, KEY)


def store_what_the_topic_refused(scene: Scene) -> None:
    sent = scene.history.sent[KEY]
    number = sent.acked.pop()
    sent.offsets.pop()
    scene.history.send("t", number)
    scene.history.refuse("t", number)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (ask_for_a_record_in_vain, Fault.STALE),
        (forget_partitions, Fault.STALE),
        (be_unreadable, Fault.UNREADABLE),
        (invert_over_a_websocket, Fault.REORDERED),
        (lose_what_the_topic_placed, Fault.LOST),
        (store_what_the_topic_refused, Fault.REFUSED),
        (lose, Fault.LOST),
        (move, Fault.MOVED),
        (duplicate, Fault.DUPLICATED),
        (reorder, Fault.REORDERED),
        (store_refused, Fault.REFUSED),
        (invent, Fault.INVENTED),
        (diverge_in_bytes, Fault.DIVERGED),
        (diverge_in_epoch, Fault.DIVERGED),
        (diverge_outside, Fault.DIVERGED),
        (be_short, Fault.INCOMPLETE),
        (have_a_hole, Fault.INCOMPLETE),
        (have_none, Fault.INCOMPLETE),
        (deliver_uncommitted, Fault.UNCOMMITTED),
        (deliver_twice, Fault.FORKED),
        (skip, Fault.SKIPPED),
        (repeat, Fault.REPEATED),
        (stop_reading, Fault.UNREAD),
        (answer_late, Fault.STALE),
        (lower_a_position, Fault.STALE),
        (deny, Fault.DENIED),
    ],
)
def test_each_fault_is_found(spoil: Callable[[Scene], None], fault: Fault) -> None:
    scene = Scene()
    spoil(scene)
    verdict = scene.judge()
    assert verdict.counts[fault] == 1
    assert verdict.examples[fault]


def test_acknowledgement_without_a_quorum_is_found_and_earlier_records_do_not_count() -> None:
    scene = Scene()
    acknowledge_without_a_quorum(scene)
    verdict = scene.judge()
    assert verdict.counts[Fault.IMPOSSIBLE] == 1
    assert "record 0 of producer 4" in verdict.examples[Fault.IMPOSSIBLE][0]


def test_a_partition_that_no_node_has_is_lost() -> None:
    scene = Scene()
    verdict = judge(scene.history, {})
    assert verdict.counts[Fault.LOST] == 8


def test_a_reader_that_begins_late_has_skipped_unless_it_says_so() -> None:
    scene = Scene()
    scene.history.read("r3", KEY, 3, numbers(2, 0, 1))
    assert scene.judge().counts[Fault.SKIPPED] == 1
    scene.history.begin("r3", KEY, 3)
    assert scene.judge().total == 0


@pytest.mark.parametrize(("latest", "skipped"), [(2, 1), (3, 0), (4, 0)])
def test_a_member_may_begin_at_an_attempted_commit_of_an_earlier_one(latest: int, skipped: int) -> None:
    scene = Scene()
    scene.history.begin("r3", KEY, 1, latest=latest)
    scene.history.read("r3", KEY, 3, numbers(2, 0, 1))
    assert scene.judge().counts[Fault.SKIPPED] == skipped


def test_only_values_of_records_identify_their_record() -> None:
    values = {number_of(producer, sequence): None for producer in (1, 77) for sequence in range(300)}
    assert len({value_of(number) for number in values}) == len(values)
    assert len({len(value_of(number)) for number in values}) > 10
    for number in values:
        value = value_of(number)
        assert number_in(value) == number
        assert number_in(value + value[:8]) == CORRUPT
        assert number_in(value[:-1] + bytes([value[-1] ^ 1])) == CORRUPT
    assert producer_of(number_of(77, 5)) == 77
    assert number_in(None) == number_in(b"short") == number_in(b"\xff" * 8) == CORRUPT


def grown(scene: Scene, placed: Sequence[int] = ()) -> dict[Key, Copies]:
    """Let the topic of a scene have grown, and its second partition hold two records by key."""
    by_key = list(placed) or numbers(5, 0, 1)
    for number in numbers(5, 0, 1):
        scene.history.send("t", number)
    for reader in ("r1", "r2"):
        scene.history.read(reader, GROWN, 0, by_key)
    logs = {node: [stored(1, 0, by_key)] for node in NODES}
    return {
        KEY: Copies(scene.end, scene.holders, scene.logs),
        GROWN: Copies(len(by_key), scene.holders, logs),
    }


def test_a_partition_that_was_added_is_as_good_as_any_other() -> None:
    scene = Scene()
    copies = grown(scene)
    scene.history.ack("t", number_of(5, 0), 0, GROWN)
    verdict = judge(scene.history, copies, must_end=END)
    assert verdict.total == 0, verdict.examples


def test_lost_or_unread_records_of_an_added_partition_are_found() -> None:
    scene = Scene()
    copies = grown(scene)
    scene.history.send(GROWN, number_of(6, 0))
    scene.history.ack(GROWN, number_of(6, 0), 2)
    del scene.history.runs["r2", GROWN]
    verdict = judge(scene.history, copies, must_end=END)
    assert (verdict.counts[Fault.LOST], verdict.counts[Fault.UNREAD], verdict.total) == (1, 1, 2)


def test_a_record_in_two_partitions_is_found_twice() -> None:
    scene = Scene()
    copies = grown(scene)
    twice = numbers(5, 0)
    for node, log in scene.logs.items():
        log.append(stored(2, 9, twice, salt=b""))
        assert copies[KEY].by_node[node] is log
    for reader in ("r1", "r2"):
        scene.history.read(reader, KEY, 9, twice)
    copies[KEY] = Copies(10, scene.holders, scene.logs)
    verdict = judge(scene.history, copies, must_end=END)
    assert (verdict.counts[Fault.DUPLICATED], verdict.total) == (1, 1)


OLD, NEW = Key("r@00000001", 0), Key("r@00000002", 0)


def made_again(in_the_new: Sequence[int]) -> tuple[History, dict[Key, Copies]]:
    """Return a run in which producer 1 wrote to a topic that was deleted, and producer 2 to the one made after it."""
    history = History()
    history.gone.add(OLD.topic)
    for producer, key in ((1, OLD), (2, NEW)):
        history.meant_for[producer] = key.topic
        for offset, number in enumerate(numbers(producer, 0, 1)):
            history.send(key, number)
            history.ack(key, number, offset)
    history.send("r", number_of(3, 0))  # of a producer that did not know which of them it had
    history.read("reader#1", OLD, 0, numbers(1, 0, 1))
    history.read("reader#2", NEW, 0, in_the_new)
    return history, {NEW: Copies(len(in_the_new), frozenset(NODES), {n: [stored(1, 0, in_the_new)] for n in NODES})}


def test_a_recreated_topic_starts_at_offset_zero() -> None:
    history, copies = made_again([*numbers(2, 0, 1), number_of(3, 0)])
    assert judge(history, copies, must_end={"reader#2": [NEW]}).total == 0


def test_a_record_of_the_old_topic_in_the_new_one_is_found() -> None:
    history, copies = made_again([*numbers(2, 0, 1), number_of(1, 2)])
    history.send(OLD, number_of(1, 2))
    verdict = judge(history, copies, must_end={"reader#2": [NEW]})
    assert (verdict.counts[Fault.NAMESAKE], verdict.total) == (1, 1)
    assert "record 2 of producer 1 at 2, meant for r@00000001" in verdict.examples[Fault.NAMESAKE][0]
    history.ack(OLD, number_of(1, 2), 2)
    assert judge(history, copies, must_end={"reader#2": [NEW]}).counts[Fault.NAMESAKE] == 1


def test_a_record_that_was_lost_with_the_new_topic_is_found() -> None:
    history, copies = made_again(numbers(2, 0))
    verdict = judge(history, copies, must_end={"reader#2": [NEW]})
    assert (verdict.counts[Fault.LOST], verdict.total) == (1, 1)


def test_readers_of_a_deleted_topic_got_its_records_in_order() -> None:
    history, copies = made_again(numbers(2, 0, 1))
    history.read("reader#3", OLD, 0, [*numbers(1, 0), *numbers(2, 0)])
    history.read("reader#4", OLD, 0, numbers(1, 0))
    history.read("reader#4", OLD, 0, numbers(1, 0))
    history.crossed.append("reader#5 read on in r@00000002")
    verdict = judge(history, copies, must_end={"reader#2": [NEW]})
    assert (verdict.counts[Fault.NAMESAKE], verdict.counts[Fault.REPEATED], verdict.total) == (2, 1, 3)


def test_a_topic_may_be_denied_while_it_does_not_exist() -> None:
    history = History()
    history.complain("writer", "UnknownTopicError", "there is no topic 'r'", there=False)
    assert judge(history, {}).total == 0
    history.complain("writer", "UnknownTopicError", "there is no topic 'r'")
    assert judge(history, {}).counts[Fault.DENIED] == 1


def test_records_that_one_reader_has_and_another_lacks() -> None:
    history = History()
    history.read("r1", KEY, 0, [*numbers(1, 0, 1), CONTROL])
    history.read("r2", KEY, 0, numbers(1, 0))
    assert history.lacks("r2", KEY, "r1")
    history.read("r2", KEY, 1, numbers(1, 1))
    assert not history.lacks("r2", KEY, "r1")
    history.read("r1", KEY, 3, numbers(1, 2))
    assert history.lacks("r2", KEY, "r1")
