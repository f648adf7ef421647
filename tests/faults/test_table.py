"""The table lists all violations, or that none was found."""

from __future__ import annotations

from tests.faults.check import Fault, Verdict
from tests.faults.history import History, Key
from tests.faults.table import Summary, table


def shown(verdict: Verdict, skipped: str = "") -> str:
    history = History()
    key = Key("t", 0)
    for number in range(3):
        history.send(key, number)
    history.ack(key, 0, 0)
    history.refuse(key, 1)
    summary = Summary(7, 61.0, 3, 6, 1, {"kill all": 2, "mute": 1}, {"kill all": 1.25}, skipped)
    return table(summary, history, verdict)


def test_a_good_run() -> None:
    lines = shown(Verdict()).splitlines()
    assert lines[0].startswith("seed 7: 3 nodes, 6 partitions, 61 s")
    assert lines[-1] == "0 faults found"
    rows = {line.rsplit(maxsplit=1)[0].strip(): line.split()[-1] for line in lines if line.split()}
    assert (rows["all faults"], rows["acknowledged"], rows["refused for certain"]) == ("3", "1", "1")
    assert rows["outcome unknown"] == "1"
    assert all(rows[fault.value] == "0" for fault in Fault)


def test_a_failed_run_is_reported_with_examples() -> None:
    verdict = Verdict()
    for number in range(9):
        verdict.add(Fault.LOST, f"record {number}")
    text = shown(verdict, skipped="not permitted")
    assert "9 FAULTS FOUND" in text
    assert "  record 4\n" in text
    assert "record 5" not in text
    assert "SKIPPED: faults of networks and disks: not permitted" in text
