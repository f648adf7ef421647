"""An upgrade that loses, duplicates or moves a record, or floods a log, is detected."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.upgrade.verdict import SAME_LINES_MAX, Seen, faults_of_log, faults_of_records, kinds_of_lines, seen_in

STORED = {(0, 0): "a", (0, 1): "b", (1, 0): "c"}
HEAD = "2026-11-29 09:00:00,000"


def seen(**changes: Any) -> Seen:
    told = Seen({"a": (0, 0), "b": (0, 1), "c": (1, 0)}, Counter(["a", "b", "c"]))
    for name, value in changes.items():
        setattr(told, name, value)
    return told


def test_records_at_the_offsets_of_their_receipts_are_not_a_fault() -> None:
    assert faults_of_records(seen(), STORED) == []
    assert faults_of_records(seen(unknown={"d"}), STORED | {(1, 1): "d"}) == []


@pytest.mark.parametrize(
    ("changes", "stored", "text"),
    [
        ({"acked": {"z": (0, 0)}, "unknown": {"a", "b", "c"}}, STORED, "1 acknowledged records are lost, such as z"),
        ({}, STORED | {(0, 5): "a"}, "1 records are stored more than once, such as a"),
        ({"read": Counter(["a", "b"])}, STORED, "1 acknowledged records were not read by the group, such as c"),
        ({}, {(0, 0): "b", (0, 1): "a", (1, 0): "c"}, "2 acknowledged records are not at the offset of their receipt"),
        ({}, STORED | {(0, 5): "e"}, "1 stored records were not published, such as e"),
    ],
)
def test_each_fault_is_named(changes: dict[str, Any], stored: dict[tuple[int, int], str], text: str) -> None:
    (fault,) = faults_of_records(seen(**changes), stored)
    assert fault.startswith(text)


def test_files_written_by_clients_are_read(tmp_path: Path) -> None:
    lines = [
        {"event": "acked", "value": "a", "partition": 1, "offset": 7},
        {"event": "read", "value": "a", "partition": 1, "offset": 7},
        {"event": "read", "value": "a", "partition": 1, "offset": 7},
        {"event": "refused", "value": "b", "error": "NoError: b"},
        {"event": "ended"},
    ]
    (tmp_path / "out").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = seen_in([tmp_path / "out"])
    assert (told.acked, told.read["a"], told.refused, told.unknown) == ({"a": (1, 7)}, 2, {"NoError: b": 1}, {"b"})


def test_a_flood_and_lines_of_damage_are_found_in_a_log() -> None:
    line = f"{HEAD} WARNING tidelog_broker.wire.links: no link to node '%d': 127.0.0.1:%d refuses connections"
    few = "\n".join(line % (at, at) for at in range(SAME_LINES_MAX))
    assert faults_of_log("n1", few) == []
    assert kinds_of_lines(few) == {
        "tidelog_broker.wire.links: no link to node #: # refuses connections": SAME_LINES_MAX
    }
    assert "61 lines of one kind" in faults_of_log("n1", few + "\n" + line % (1, 1))[0]
    suspect = f"{HEAD} WARNING tidelog_broker.cluster.gossip: node 'n2' (127.0.0.1 port 7400) is suspect\n"
    assert faults_of_log("n1", suspect * 100) == []
    assert faults_of_log("n1", f"{HEAD} INFO x: CORRUPT_BATCH") == [f"n1: {HEAD} INFO x: CORRUPT_BATCH"]
    assert faults_of_log("n1", f"{HEAD} CRITICAL x: the node stops: y", ["the node stops: "]) == []
