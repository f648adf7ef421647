"""`tidelog get` prints the newest record of a key."""

from __future__ import annotations

import json

from tests.cli.conftest import Cli


def publish(cli: Cli, topic: str, lines: bytes, *options: str) -> None:
    assert cli("produce", topic, "--key-delimiter", ":", *options, stdin=lines).code == 0


def test_newest_value_of_a_key(cli: Cli, topic: str) -> None:
    publish(cli, topic, b"ann:1\nbob:2\nann:3\n")
    ended = cli("get", topic, "ann")
    assert (ended.code, ended.out) == (0, "3\n")


def test_whole_record_as_json(cli: Cli, topic: str) -> None:
    publish(cli, topic, b'ann:{"n":1.10}\n', "--header", "h=1", "--tag", "t")
    record = json.loads(cli("get", topic, "ann", "--json").out)
    assert (record["topic"], record["key"], record["tag"], record["headers"]) == (topic, "ann", "t", [["h", "1"]])
    assert '"value": {"n":1.10}' in cli("get", topic, "ann", "--json").out
    assert json.loads(cli("get", topic, "ann", "--json", "--value", "text").out)["value"] == '{"n":1.10}'
    partition = str(record["partition"])
    assert cli("get", topic, "ann", "--partition", partition).out == '{"n":1.10}\n'


def test_missing_key_and_tombstone_fail(cli: Cli, topic: str) -> None:
    publish(cli, topic, b"ann:1\nann:\n", "--tombstones")
    missing = cli("get", topic, "bob")
    assert (missing.code, missing.out) == (1, "")
    assert f"no record in the partition of {topic!r} that the key selects has the key 'bob'" in missing.err
    deleted = cli("get", topic, "ann")
    assert (deleted.code, deleted.out) == (1, "")
    assert "is deleted" in deleted.err
    assert "at offset 1" in deleted.err
    assert json.loads(cli("get", topic, "ann", "--json").out)["value"] is None


def test_unknown_topic_and_options_that_need_others(cli: Cli, topic: str) -> None:
    assert cli("get", f"{topic}-none", "ann").code == 1
    refused = cli("get", topic, "ann", "--value", "text")
    assert (refused.code, "--value requires --json" in refused.err) == (2, True)
    outside = cli("get", topic, "ann", "--partition", "99")
    assert (outside.code, outside.out) == (1, "")
    assert "99" in outside.err
