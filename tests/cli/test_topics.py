from __future__ import annotations

import asyncio
import json

import pytest
from tests.cli.conftest import Cli
from tests.clients.compacted_topics import create_compacted

from tidelog import Partition, Topic
from tidelog_cli.topics import copy_count_text


def test_a_topic_s_life(cli: Cli) -> None:
    assert cli("topic", "create", "life", "--partitions", 3, "--flush", "never").out == (
        "created topic life with 3 partitions\n"
    )
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
    [(("a", "b"), 2, "2"), (("a", "b"), 3, "2 (of 3, for lack of nodes)"), ((), 3, "3")],
)
def test_copies_that_are_missing_are_said(placement: tuple[str, ...], wanted: int, text: str) -> None:
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
        ((topic,), "is not to be compacted"),
        (("held",), "is on hold"),
    ]:
        refused = cli("topic", "compact", *arguments)
        assert (refused.code, message in refused.err) == (1, True), refused.err
