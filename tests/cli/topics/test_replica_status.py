from __future__ import annotations

import pytest

from tidelog import Partition
from tidelog.model import Replica
from tidelog.requests.topic_conversions import topic_of
from tidelog_cli.topics.replica_status import FAULT_WORDS, copies_text
from tidelog_proto import broker_pb2 as pb


def test_copies_are_shown_with_what_they_lack() -> None:
    partition = Partition(
        0, "a", 3, ("a", "b", "c"), replicas=(Replica("a", 9, 0), Replica("b", 2, 7, streaming=False))
    )
    assert copies_text(partition) == "a (0) b (7, catching up) c"
    assert copies_text(Partition(0, "a", 3, ("a", "b"))) == "a b"
    filling = Partition(0, "a", 3, ("a",), replicas=(Replica("a", 9, 0, missing_epochs=2, missing_records=1000),))
    assert copies_text(filling) == "a (0, 1,000 older to fetch)"
    in_doubt = Partition(0, "a", 3, ("a", "b"), replicas=(Replica("a", 9, 0), Replica("b", 9, 0, missing_epochs=1)))
    assert copies_text(in_doubt) == "a (0) b (0, incomplete)"


def test_a_copy_on_a_node_that_is_down_is_marked() -> None:
    replicas = (Replica("a", 9, 0), Replica("b", 9, 0), Replica("c", 2, 7, streaming=False))
    partition = Partition(0, "a", 3, ("a", "b", "c"), replicas=replicas)
    assert copies_text(partition, down={"b", "c"}) == "a (0) b (down) c (7, down)"
    assert copies_text(Partition(0, "a", 3, ("a", "b")), down={"a"}) == "a (down) b"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("short", "may be short"),
        ("damaged", "damaged"),
        ("limbo", "in limbo"),
        ("failed", "its disk failed"),
        ("of a newer node", "of a newer node"),
    ],
)
def test_a_copy_in_doubt_is_shown_with_its_fault(fault: str, words: str) -> None:
    info = pb.PartitionInfo(owner="a", epoch=3, placement=["a", "b"])
    info.replicas.add(node_id="a", streaming=True)
    info.replicas.add(node_id="b", streaming=True, missing_epochs=1, copy_fault=fault)
    (partition,) = topic_of(pb.TopicInfo(name="t", partitions=[info])).partitions
    assert copies_text(partition) == f"a (0) b (0, {words})"


def test_a_fault_is_shown_beside_what_is_still_to_fetch() -> None:
    replica = Replica("a", 2, 7, streaming=False, missing_epochs=3, missing_records=1000, copy_fault="short")
    partition = Partition(0, "a", 3, ("a",), replicas=(replica,))
    assert copies_text(partition) == "a (7, catching up, 1,000 older to fetch, may be short)"


def test_every_fault_has_words_of_its_own() -> None:
    assert len(set(FAULT_WORDS.values())) == len(FAULT_WORDS) == 4
