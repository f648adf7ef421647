from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli


def consumed(cli: Cli, topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli("consume", topic, "--json").out.splitlines()]


def test_lines_become_records_with_one_key(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--key", "k", stdin=b"a\n\nb").out == f"published 3 records to {topic}\n"
    records = consumed(cli, topic)
    assert [(record["key"], record["value"]) for record in records] == [("k", "a"), ("k", ""), ("k", "b")]
    assert len({record["partition"] for record in records}) == 1


def test_files_and_standard_input_follow_each_other(cli: Cli, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from a\n")
    (tmp_path / "b.ndjson").write_text('\n{"from":"b"}\n\n')
    ended = cli("produce", topic, tmp_path / "a.txt", "-", tmp_path / "b.ndjson", "--partition", 1, stdin=b"stdin\n")
    assert ended.out == f"published 3 records to {topic}\n"
    assert cli("consume", topic).out == 'from a\nstdin\n{"from":"b"}\n'


def test_the_key_field_keeps_a_key_in_order_on_one_partition(cli: Cli, topic: str) -> None:
    content = b"".join(b'{"id":%d,"n":%d}\n' % (n % 7, n) for n in range(700))
    report = json.loads(cli("produce", topic, "--key-field", "id", "--json", stdin=content).out)
    assert report["records"] == 700
    assert sum(p["last_offset"] - p["first_offset"] + 1 for p in report["partitions"]) == 700
    of_key: dict[object, list[int]] = {}
    partitions_of_key: dict[object, set[object]] = {}
    for record in consumed(cli, topic):
        of_key.setdefault(record["key"], []).append(record["value"]["n"])
        partitions_of_key.setdefault(record["key"], set()).add(record["partition"])
    assert of_key == {str(key): list(range(key, 700, 7)) for key in range(7)}
    assert all(len(partitions) == 1 for partitions in partitions_of_key.values())


def test_invalid_line_is_named(cli: Cli, topic: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.ndjson"
    bad.write_text('{"id":1}\n{"id":')
    refused = cli("produce", topic, bad, "--key-field", "id")
    assert (refused.code, "bad.ndjson: line 2 is not JSON" in refused.err) == (1, True)
    assert cli("produce", topic, tmp_path / "absent").code == 1
    assert cli("produce", topic, "--key", "a", "--key-field", "b").code == 2
    assert cli("produce", topic, "--timestamp", "0", "--timestamp-field", "b").code == 2
    assert cli("produce", topic, "--timestamp", "noon").code == 2
    assert cli("produce", topic, "--key-delimiter", "").code == 2
    assert cli("produce", topic, "--format", "records", "--key-field", "b").code == 2
    assert cli("produce", topic, "--partition", 9, stdin=b"x\n").code == 1
    for option in ("--key", "--tag", "--key-delimiter", "--key-field"):
        refused = cli("produce", topic, option, "\udcff", stdin=b"x\n")
        assert (refused.code, f"{option} '\\udcff' is not UTF-8" in refused.err) == (2, True)
    refused = cli("produce", topic, "--header", "a=\udcff", stdin=b"x\n")
    assert (refused.code, "is not UTF-8" in refused.err) == (2, True)
    assert "nowhere" in cli("produce", "nowhere", stdin=b"x\n").err
    nothing = cli("produce", "nowhere", stdin=b"")
    assert (nothing.code, nothing.out, "nowhere" in nothing.err) == (1, "", True)


@pytest.mark.parametrize("name", ["x.xls", "x.json", "x.tsv", "x.gz", "x.log.gz", "x.avro", "x.XLSX"])
def test_a_file_of_a_kind_that_is_not_read_is_refused_before_anything_is_published(
    cli: Cli, topic: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / "first.txt").write_text("first\n")
    (tmp_path / name).write_text("a,b\n1,2\n")
    ended = cli("produce", topic, tmp_path / "first.txt", tmp_path / name)
    assert ended.code == 2
    assert "are not supported" in ended.err
    assert "--format lines" in ended.err
    assert cli("consume", topic).out == ""
    assert cli("produce", topic, "--format", "lines", tmp_path / name).code == 0
    assert cli("consume", topic).out == "a,b\n1,2\n"


@pytest.mark.parametrize("name", ["x", "x.txt", "x.log", "x.log.1", "X.TXT"])
def test_a_file_of_text_is_read_by_lines(cli: Cli, topic: str, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a\nb\n")
    assert cli("produce", topic, tmp_path / name).out == f"published 2 records to {topic}\n"
