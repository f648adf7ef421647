from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.cli.base.test_standard_output import full_output
from tests.cli.conftest import Cli

from tidelog_cli.base.output import ABSENT
from tidelog_cli.main import main


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
    assert (unread["note"], row["note"]) == (None, None)
    for command in ("describe", "lag"):
        told = cli("group", command, "readers-of-lag", "--topic", topic).out
        assert told.endswith("total lag: 3 records in 2 partitions\n")
    other = cli("group", "lag", "readers-of-nothing", "--topic", topic)
    assert (other.code, "group 'readers-of-nothing' does not exist" in other.err) == (1, True)


def test_lost_output_of_a_dry_run_is_not_called_success(cli: Cli, topic: str) -> None:
    reset = ("group", "reset", "dry", "--to", "earliest", "--topic", topic)
    with full_output():
        tried = cli(*reset, "--dry-run")
    assert (tried.code, "succeeded" in tried.err) == (1, False)
    with full_output():
        done = cli(*reset)
    assert (done.code, "group reset succeeded" in done.err) == (0, True)


def test_a_partition_without_a_position_counts_with_all_it_holds(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--partition", 0, stdin=b"a\n").code == 0
    assert cli("produce", topic, "--partition", 1, stdin=b"a\nb\n").code == 0
    assert cli("consume", topic, "--group", "half", "--partition", 0).code == 0
    rows = json.loads(cli("group", "lag", "half", "--json").out)
    assert [(row["partition"], row["next_offset"], row["lag"]) for row in rows] == [(0, 1, 0), (1, None, 2)]
    assert ABSENT in cli("group", "describe", "half").out


def test_a_group_that_never_committed_is_unknown(cli: Cli) -> None:
    commands = (("describe",), ("lag",), ("lag", "--json"), ("delete",), ("reset", "--to", "earliest"))
    for command in commands:
        refused = cli("group", command[0], "never-seen", *command[1:])
        assert refused.code != 0
        assert "group 'never-seen' does not exist" in refused.err


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
    for to, places in (("7d", [0, 0]), ("2000-01-01", [0, 0]), ("9000-01-01T00:00:00Z", [3, 0])):
        by_time = cli("group", "reset", "moved", "--to", to, "--dry-run", "--json")
        assert by_time.code == 0, by_time.err
        assert [row["next_offset"] for row in json.loads(by_time.out)] == places, to
    beyond = cli("group", "reset", "moved", "--to", "1795964400000", "--topic", topic, "--partition", 0, "--dry-run")
    assert beyond.code == 0
    assert f"{topic}/0: offset 1795964400000 does not exist, so the position is" in beyond.err
    assert "give a time in ISO 8601" in beyond.err
    assert "does not exist" not in tried.err
    wrong = cli("group", "reset", "moved", "--to", "gestern")
    assert (wrong.code, wrong.err.count("--to 'gestern': give earliest"), "--from" in wrong.err) == (2, 1, False)
    assert cli("group", "reset", "moved", "--to", "earliest").code == 0
    assert [row["next_offset"] for row in json.loads(cli("group", "lag", "moved", "--json").out)] == [0, 0]
    assert cli("group", "reset", "moved", "--to", "5", "--partition", 0).code != 0  # of which topic?
    assert cli("group", "delete", "moved").code == 0
    assert "moved" not in [each["name"] for each in json.loads(cli("group", "list", "--json").out)]


@contextmanager
def shell(node: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command in a process of its own, and interrupt it at the end."""
    command = [sys.executable, "-m", "tidelog_cli", "consume", *arguments, "--bootstrap", node]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


def lines(process: subprocess.Popen[bytes], count: int) -> list[bytes]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip() for _ in range(count)]


def wait_for_members(cli: Cli, group: str, count: int) -> dict[str, Any]:
    for _ in range(200):
        described = cli("group", "describe", group, "--json")
        told: dict[str, Any] = json.loads(described.out) if described.code == 0 else {"members": []}
        if len(told["members"]) == count and all(member["reads"] == member["is_to_read"] for member in told["members"]):
            return told
        time.sleep(0.05)
    raise AssertionError(f"{group} has not got {count} members")


@pytest.mark.long
def test_two_shells_that_follow_share_a_topic(cli: Cli, node: str, topic: str) -> None:
    with shell(node, topic, "--group", topic, "--follow") as first:
        wait_for_members(cli, topic, 1)
        assert cli("produce", topic, "--partition", 0, stdin=b"a\n").code == 0
        assert cli("produce", topic, "--partition", 1, stdin=b"b\n").code == 0
        assert sorted(lines(first, 2)) == [b"a", b"b"]
        with shell(node, topic, "--group", topic, "--follow") as second:
            told = wait_for_members(cli, topic, 2)
            assert sorted(len(member["reads"]) for member in told["members"]) == [1, 1]
            assert "reader" in cli("group", "describe", topic).out
            assert cli("produce", topic, "--partition", 0, stdin=b"c\n").code == 0
            assert cli("produce", topic, "--partition", 1, stdin=b"d\n").code == 0
            assert {*lines(first, 1), *lines(second, 1)} == {b"c", b"d"}
        wait_for_members(cli, topic, 1)
        for options in ((), ("--follow", "--partition", 0)):
            refused = cli("consume", topic, "--group", topic, *options)
            assert (refused.code, refused.out) == (1, "")
            assert "join it with --follow" in refused.err
        assert "stop the members first" in cli("group", "delete", topic).err
        assert "stop the members first" in cli("group", "reset", topic, "--to", "earliest").err
    assert json.loads(cli("group", "describe", topic, "--json").out)["members"] == []
    assert [row["next_offset"] for row in json.loads(cli("group", "lag", topic, "--json").out)] == [2, 2]


def test_a_shell_that_follows_ends_after_so_many_and_commits_to_the_record(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--partition", 0, stdin=b"a\nb\nc\nd\n").code == 0
    assert cli("consume", topic, "--group", topic, "--follow", "--max", 3).out == "a\nb\nc\n"
    assert cli("consume", topic, "--group", topic, "--follow", "--max", 1).out == "d\n"
    assert cli("consume", topic, "--group", topic).out == ""
    beyond = cli("consume", topic, "--group", f"{topic}.new", "--follow", "--from", 99)
    assert beyond.code == 1
    assert "offset 99" in beyond.err


def test_a_group_that_follows_from_the_end_goes_on_from_there(cli: Cli, node: str, topic: str) -> None:
    assert cli("produce", topic, "--partition", 0, stdin=b"a\n").code == 0
    with shell(node, topic, "--group", topic, "--follow", "--from", "latest"):
        wait_for_members(cli, topic, 1)
    assert cli("produce", topic, "--partition", 0, stdin=b"b\n").code == 0
    assert cli("consume", topic, "--group", topic).out == "b\n"


class _Terminal(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_deletion_of_a_group_is_confirmed_on_a_terminal(
    cli: Cli, topic: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli("produce", topic, "--partition", 0, stdin=b"a\n").code == 0
    assert cli("consume", topic, "--group", "asked", "--partition", 0).code == 0
    monkeypatch.setattr(sys, "stdin", _Terminal("n\n"))
    assert main(["group", "delete", "asked"]) == 1
    assert "Delete the group 'asked' and all its positions? [y/N]: " in capsysbinary.readouterr().err.decode()
    monkeypatch.setattr(sys, "stdin", _Terminal(""))
    assert main(["group", "delete", "asked", "--yes"]) == 0
    assert "deleted group 'asked'" in capsysbinary.readouterr().out.decode()
