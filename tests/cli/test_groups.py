from __future__ import annotations

import json

from tests.cli.conftest import Cli


def test_the_lag_is_what_is_left_to_read(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--partition", 1, stdin=b"a\nb\nc\n").code == 0
    assert cli("consume", topic, "--group", "readers-of-lag", "--max", 2).code == 0
    (row,) = json.loads(cli("group", "describe", "readers-of-lag", "--json").out)
    assert row["commit_timestamp_us"] > 0
    assert {key: row[key] for key in ("topic", "partition", "next_offset", "high_watermark", "lag")} == {
        "topic": topic,
        "partition": 1,
        "next_offset": 2,
        "high_watermark": 3,
        "lag": 1,
    }
    assert "lag" in cli("group", "describe", "readers-of-lag", "--topic", topic).out


def test_a_group_that_never_committed_has_no_rows(cli: Cli) -> None:
    assert json.loads(cli("group", "describe", "never-seen", "--json").out) == []
