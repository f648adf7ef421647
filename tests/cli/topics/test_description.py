from __future__ import annotations

import json
from typing import Any

import pytest

from tidelog import NextDeletion, Partition, Topic
from tidelog.model import Replica, StoredEpochs
from tidelog_cli.base.output import ABSENT
from tidelog_cli.topics.description import (
    append_text,
    duration_text,
    index_text,
    plan_text,
    retention_text,
    settings_text,
    stored_text,
    topic_document,
    unapplied_text,
)

ID = bytes(range(16))
DAY_MS = 86_400_000


def topic(*partitions: Partition, **settings: Any) -> Topic:
    return Topic("t", ID, partitions, **settings)


def planned(at_us: int | None, bytes_more: int | None) -> Partition:
    return Partition(0, "a", 3, next_deletion=NextDeletion(1_500, 2_048, at_us, bytes_more))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3_600, "1 h"),
        (3_601, "1 h"),
        (86_399, "23 h 59 min"),
        (7 * 86_400 - 1, "6 d 23 h"),
        (86_400 + 60, "1 d"),
        (400 * 86_400, "400 d"),
    ],
)
def test_a_duration_is_read_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_retention_settings_are_shown() -> None:
    assert retention_text(topic()) == "everything"
    assert retention_text(topic(retention_ms=7 * DAY_MS)) == "7 d"
    assert retention_text(topic(retention_bytes=1_536)) == "1.5 KiB"
    assert retention_text(topic(retention_ms=500, retention_bytes=3)) == "500 ms, 3 B"


def test_settings_are_named_where_they_are_not_the_usual_ones() -> None:
    assert settings_text(topic()) == "retention everything"
    assert settings_text(topic(index_tag=True)) == "retention everything  index tag"
    unusual = topic(retention_ms=DAY_MS, cleanup="compact,delete", index_key=True, index_tag=True, hold=True)
    assert settings_text(unusual) == "retention 1 d  cleanup compact,delete  index key,tag  on hold"


def test_when_something_was_appended() -> None:
    assert append_text(0) == ABSENT
    assert append_text(86_400_001_999) == "1970-01-02T00:00:00.001Z"


@pytest.mark.parametrize(
    ("at_us", "bytes_more", "when"),
    [
        (190_000_000, None, "in 1 min 30 s"),
        (101_000_000, None, "in 1 s"),
        (100_999_999, None, "now"),
        (5_000_000, None, "now"),
        (None, 1_024, "once 1.0 KiB more are stored"),
        (None, 0, "with the next segment"),
        (160_000_000, 7, "in 1 min or once 7 B more are stored"),
    ],
)
def test_next_deletion_is_shown(at_us: int | None, bytes_more: int | None, when: str) -> None:
    text = plan_text(topic(), planned(at_us, bytes_more), now_s=100.0)
    assert text == f"deletes the oldest segment (2.0 KiB, offsets below 1,500) {when}"


def test_nothing_is_planned_where_nothing_is_deleted() -> None:
    assert plan_text(topic(), Partition(0, "a", 3)) == ""
    assert plan_text(topic(hold=True), planned(1, 1)) == "deletes nothing: the topic is on hold"


def test_the_time_is_that_of_the_machine_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 100.0)
    assert plan_text(topic(), planned(130_000_000, None)).endswith(" in 30 s")


def test_a_document_has_the_copies_and_ages_only_where_asked_for() -> None:
    shown = Partition(
        2, "a", 3, ("a", "b"), 4, 9, 100, "active", (Replica("a", 9, 0),), 5_999, 0, NextDeletion(6, 50, 8_999, None)
    )
    document = topic_document(topic(shown, retention_ms=5, hold=True))
    assert (document["name"], document["topic_id"]) == ("t", ID.hex())
    assert (document["retention_ms"], document["hold"], document["cleanup"]) == (5, True, "delete")
    usual = {"partition": 2, "owner": "a", "epoch": 3, "placement": ["a", "b"], "log_start_offset": 4}
    usual |= {"high_watermark": 9, "size_bytes": 100, "state": "active"}
    assert document["partitions"] == [usual]
    (detailed,) = topic_document(topic(shown), copies=True)["partitions"]
    assert detailed.items() >= usual.items()
    assert (detailed["oldest_append_ms"], detailed["newest_append_ms"]) == (5, None)
    assert detailed["next_deletion"] == {"below": 6, "size_bytes": 50, "at_ms": 8, "bytes_more": None}
    assert [replica["node_id"] for replica in detailed["replicas"]] == ["a"]
    assert json.loads(json.dumps(detailed)) == detailed


def test_a_document_says_null_where_no_deletion_follows() -> None:
    (detailed,) = topic_document(topic(Partition(0, "a", 3)), copies=True)["partitions"]
    assert (detailed["next_deletion"], detailed["replicas"]) == (None, [])


def test_unindexed_bytes_are_shown_above_a_threshold() -> None:
    behind = Partition(0, "a", 3, unindexed_bytes=40 << 20)
    text = index_text(topic(index_key=True), behind)
    assert text == "has 40.0 MiB of records that are not indexed yet, so lookups scan them"
    assert index_text(topic(), behind) == ""
    assert index_text(topic(index_tag=True), Partition(0, "a", 3, unindexed_bytes=1 << 20)) == ""


def test_settings_of_before_a_change_are_shown_with_the_reason() -> None:
    waiting = Partition(0, "a", 3, unapplied="flush=always engine=segment: too few of its replicas keep up")
    assert unapplied_text(waiting) == "still has flush=always engine=segment: too few of its replicas keep up"
    assert unapplied_text(Partition(0, "a", 3)) == ""
    (detailed,) = topic_document(topic(waiting), copies=True)["partitions"]
    assert detailed["unapplied"] == waiting.unapplied


def test_storage_of_each_epoch_is_shown_if_one_has_no_files_of_its_own() -> None:
    segments = StoredEpochs(1, 2, "segment")
    assert stored_text(Partition(0, "a", 3)) == ""
    assert stored_text(Partition(0, "a", 3, stored=(segments,))) == ""
    later = (StoredEpochs(3, 3, "segment-shared"), StoredEpochs(4, 6, "rocksdb"), StoredEpochs(7, 7, "memory-async"))
    assert stored_text(Partition(0, "a", 7, stored=(segments, *later))) == (
        "has epochs 1 to 2 in files of its own, epoch 3 in shared files, epochs 4 to 6 in rocksdb, "
        "epoch 7 in memory, written later"
    )
