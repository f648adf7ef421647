from __future__ import annotations

import asyncio
import io
import json
import sys

import pytest
from tests.cli.conftest import Cli
from tests.clients.compacted_topics import create_compacted

from tidelog import Partition, Topic
from tidelog_cli.main import main
from tidelog_cli.topics.command import copy_count_text


def test_a_topic_s_life(cli: Cli) -> None:
    assert cli("topic", "create", "life", "--partitions", 3, "--flush", "never").out == (
        "created topic life with 3 partitions\n"
    )
    again = cli("topic", "create", "life", "--partitions", 3, "--exist-ok")
    assert (again.code, again.out) == (0, "topic life has 3 partitions\n")
    for partition in range(3):  # status lists no copies of empty partitions on a node with many partitions
        assert cli("produce", "life", "--partition", partition, stdin=b"1\n").code == 0
    described = json.loads(cli("topic", "describe", "life", "--json").out)
    assert (described["name"], described["flush"], len(described["partitions"])) == ("life", "never", 3)
    assert [[copy["copy_fault"] for copy in one["replicas"]] for one in described["partitions"]] == [[""]] * 3
    assert cli("topic", "alter", "life", "--partitions", 4, "--retention-bytes", 1 << 30).code == 0
    listed = [topic for topic in json.loads(cli("topic", "list", "--json").out) if topic["name"] == "life"]
    assert [(len(topic["partitions"]), topic["retention_bytes"]) for topic in listed] == [(4, 1 << 30)]
    assert "life" in cli("topic", "list").out
    shown = cli("topic", "describe", "life").out
    assert "high watermark" in shown
    assert f"{described['partitions'][0]['owner']} (0)" in shown, "its only copy lacks nothing"
    assert cli("topic", "delete", "life", "--yes").out == "deleted topic life\n"
    assert "life" not in cli("topic", "list").out


def test_several_topics_are_deleted_or_none(cli: Cli) -> None:
    for name in ("one", "two"):
        assert cli("topic", "create", name).code == 0
    refused = cli("topic", "delete", "one", "missing", "two", "--yes")
    assert (refused.code, refused.out, "'missing'" in refused.err) == (1, "", True)
    assert cli("topic", "delete", "one", "two", "one", "--yes").out == "deleted topic one\ndeleted topic two\n"
    assert {"one", "two"} & {topic["name"] for topic in json.loads(cli("topic", "list", "--json").out)} == set()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_deletion_is_confirmed_on_a_terminal(
    cli: Cli, topic: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for answer, code in (("", 1), ("\n", 1), ("n\n", 1), ("yes, please\n", 1), ("Yes\n", 0)):
        assert topic in cli("topic", "list").out
        monkeypatch.setattr(sys, "stdin", _Terminal(answer))
        assert main(["topic", "delete", topic]) == code
        out, err = capsysbinary.readouterr()
        assert out.decode() == ("" if code else f"deleted topic {topic}\n")
        assert f"Delete topic {topic} and all its records? [y/N]:" in err.decode()


def test_refusals_say_what_is_wrong(cli: Cli, topic: str) -> None:
    again = cli("topic", "create", topic)
    assert (again.code, topic in again.err) == (1, True)
    assert cli("topic", "describe", "nowhere").code == 1
    assert cli("topic", "create", "bad name").code == 1
    assert cli("topic", "alter", topic).code == 2
    unsure = cli("topic", "delete", topic)
    assert (unsure.code, "--yes" in unsure.err) == (2, True)
    assert topic in cli("topic", "list").out


@pytest.mark.parametrize(
    ("placement", "wanted", "text"),
    [(("a", "b"), 2, "2"), (("a", "b"), 3, "2 (of 3: the cluster has too few nodes)"), ((), 3, "3")],
)
def test_missing_copies_are_shown(placement: tuple[str, ...], wanted: int, text: str) -> None:
    partitions = (Partition(0, "a", 1, placement),)
    assert copy_count_text(Topic("t", b"", partitions, replication_factor=wanted)) == text


def test_a_topic_is_compacted(cli: Cli, node: str, topic: str) -> None:
    port = int(node.rpartition(":")[2])
    asyncio.run(create_compacted(port, "table", partitions=2))
    cli("produce", "table", "--key", "k", stdin=b"1\n2\n3\n")
    done = json.loads(cli("topic", "compact", "table", "--json").out)
    assert done["name"] == "table"
    assert sorted(each["below"] for each in done["partitions"]) == [0, 3]
    shown = cli("topic", "compact", "table", "--partition", 1)
    assert (shown.code, "compacted below" in shown.out) == (0, True)
    assert [line.split()[0] for line in shown.out.splitlines() if line.strip()[:1].isdecimal()] == ["1"]
    asyncio.run(create_compacted(port, "held", hold=True))
    for arguments, message in [
        (("nowhere",), "nowhere"),
        (("table", "--partition", 2), "partitions 0 to 1"),
        ((topic,), "is not compacted by its settings"),
        (("held",), "is on hold"),
    ]:
        refused = cli("topic", "compact", *arguments)
        assert (refused.code, message in refused.err) == (1, True), refused.err


def filled(cli: Cli, name: str, *, partitions: int = 1) -> None:
    """Have a topic with ten records in its first partition."""
    assert cli("topic", "create", name, "--partitions", partitions).code == 0
    lines = b"".join(b"%d\n" % number for number in range(10))
    assert cli("produce", name, "--partition", 0, stdin=lines).code == 0


def test_records_are_deleted_before_an_offset_and_a_time(cli: Cli) -> None:
    filled(cli, "cut", partitions=2)
    assert cli("topic", "delete-records", "cut", "--before", 4, "--partition", 0).out == (
        "partition 0 begins at offset 4\n"
    )
    nothing = cli("topic", "delete-records", "cut", "--before", "7d", "--json")
    starts = [{"partition": 0, "log_start_offset": 4}, {"partition": 1, "log_start_offset": 0}]
    assert json.loads(nothing.out) == starts, "nothing is so old"
    assert json.loads(cli("topic", "delete-records", "cut", "--before", "1960-01-01", "--json").out) == starts
    late = cli("topic", "delete-records", "cut", "--before", "9999-12-31T23:59:59")
    assert (late.code, late.out) == (0, "partition 0 begins at offset 10\npartition 1 begins at offset 0\n")


@pytest.mark.parametrize(
    ("before", "code", "said"),
    [
        ("", 2, "give an offset"),
        ("-1", 2, "give an offset"),
        ("yesterday", 2, "give an offset"),
        ("7x", 2, "give an offset"),
        ("9" * 30 + "w", 2, "give an offset"),
        ("2026-13-01", 2, "give an offset"),
        ("10000-01-01", 2, "give an offset"),
        ("9" * 5000, 2, "give an offset"),
        (2**63, 1, "< 2**63"),
        (11, 1, "at most the end of the log, 10"),
        (5, 0, ""),
    ],
)
def test_a_point_before_which_records_are_deleted(cli: Cli, before: object, code: int, said: str) -> None:
    if cli("topic", "create", "points").code == 0:
        assert cli("produce", "points", stdin=b"x\n" * 10).code == 0
    ended = cli("topic", "delete-records", "points", "--before", before)
    assert (ended.code, said in ended.err) == (code, True), ended
    assert "Traceback" not in ended.err


def test_records_of_what_is_not_there_are_not_deleted(cli: Cli) -> None:
    filled(cli, "frozen", partitions=2)
    for arguments, code, said in (
        (("nowhere", "--before", 1), 1, "nowhere"),
        (("__meta", "--before", 1), 1, ""),
        (("frozen", "--before", 1, "--partition", 2), 1, "partitions 0 to 1"),
        (("frozen", "--before", 1, "--partition", -1), 2, "partition"),
        (("frozen", "--before", 1), 1, "2 partitions"),
        (("frozen",), 2, "--before"),
    ):
        ended = cli("topic", "delete-records", *arguments)
        assert (ended.code, said in ended.err) == (code, True), (arguments, ended)
    assert cli("topic", "alter", "frozen", "--hold").code == 0
    ended = cli("topic", "delete-records", "frozen", "--before", 1, "--partition", 0)
    assert (ended.code, "on hold" in ended.err) == (1, True)
    assert cli("topic", "alter", "frozen", "--no-hold").code == 0
    assert cli("topic", "delete-records", "frozen", "--before", 1, "--partition", 0).code == 0
