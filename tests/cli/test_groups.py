from __future__ import annotations

import json

from tests.cli.conftest import Cli

from tidelog_cli.output import ABSENT


def test_the_lag_is_what_is_left_to_read(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--partition", 1, stdin=b"a\nb\nc\n").code == 0
    assert cli("consume", topic, "--group", "readers-of-lag", "--max", 2).code == 0
    assert cli("produce", topic, "--partition", 0, stdin=b"a\nb\n").code == 0
    unread, row = json.loads(cli("group", "describe", "readers-of-lag", "--json").out)
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
    rows = json.loads(cli("group", "describe", "half", "--json").out)
    assert [(row["partition"], row["next_offset"], row["lag"]) for row in rows] == [(0, 1, 0), (1, None, 2)]
    assert ABSENT in cli("group", "describe", "half").out


def test_a_group_that_never_committed_has_no_rows(cli: Cli) -> None:
    assert json.loads(cli("group", "describe", "never-seen", "--json").out) == []
