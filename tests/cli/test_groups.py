from __future__ import annotations

import json

from tests.cli.conftest import Cli

from tidelog_cli.output import ABSENT


def test_the_lag_is_what_is_left_to_read(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--partition", 1, stdin=b"a\nb\nc\n").code == 0
    assert cli("consume", topic, "--group", "readers-of-lag", "--max", 2).code == 0
    assert cli("produce", topic, "--partition", 0, stdin=b"a\nb\n").code == 0
    unread, row = json.loads(cli("group", "lag", "readers-of-lag", "--json").out)
    assert (unread["partition"], unread["next_offset"], unread["lag"]) == (0, None, 2)
    assert row["commit_timestamp_ms"] > 1_600_000_000_000
    assert {key: row[key] for key in ("topic", "partition", "next_offset", "high_watermark", "lag")} == {
        "topic": topic,
        "partition": 1,
        "next_offset": 2,
        "high_watermark": 3,
        "lag": 1,
    }
    assert "lag" in cli("group", "describe", "readers-of-lag", "--topic", topic).out


def test_a_partition_without_a_position_counts_with_all_it_holds(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--partition", 0, stdin=b"a\n").code == 0
    assert cli("produce", topic, "--partition", 1, stdin=b"a\nb\n").code == 0
    assert cli("consume", topic, "--group", "half", "--partition", 0).code == 0
    rows = json.loads(cli("group", "lag", "half", "--json").out)
    assert [(row["partition"], row["next_offset"], row["lag"]) for row in rows] == [(0, 1, 0), (1, None, 2)]
    assert ABSENT in cli("group", "describe", "half").out


def test_a_group_that_never_committed_is_unknown(cli: Cli) -> None:
    assert json.loads(cli("group", "lag", "never-seen", "--json").out) == []
    for command in (("describe",), ("delete",), ("reset", "--to", "earliest")):
        refused = cli("group", command[0], "never-seen", *command[1:])
        assert refused.code != 0
        assert "no group 'never-seen'" in refused.err


def test_a_group_is_listed_described_moved_and_deleted(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--partition", 0, stdin=b"a\nb\nc\n").code == 0
    assert cli("consume", topic, "--group", "moved", "--partition", 0).code == 0
    (listed,) = [each for each in json.loads(cli("group", "list", "--json").out) if each["name"] == "moved"]
    assert (listed["state"], listed["member_count"], listed["position_count"]) == ("empty", 0, 1)
    described = json.loads(cli("group", "describe", "moved", "--json").out)
    assert [row["next_offset"] for row in described["partitions"]] == [3, None]
    assert "0 members" in cli("group", "describe", "moved").out
    tried = cli("group", "reset", "moved", "--to", "1", "--topic", topic, "--partition", 0, "--dry-run", "--json")
    assert [row["next_offset"] for row in json.loads(tried.out)] == [1]
    assert [row["next_offset"] for row in json.loads(cli("group", "lag", "moved", "--json").out)] == [3, None]
    assert cli("group", "reset", "moved", "--to", "earliest").code == 0
    assert [row["next_offset"] for row in json.loads(cli("group", "lag", "moved", "--json").out)] == [0, 0]
    assert cli("group", "reset", "moved", "--to", "5", "--partition", 0).code != 0  # of which topic?
    assert cli("group", "delete", "moved").code == 0
    assert "moved" not in [each["name"] for each in json.loads(cli("group", "list", "--json").out)]
