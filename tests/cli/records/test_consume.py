from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.conftest import Cli, Ended
from tests.proto.derived_batches import END_OFFSET, compacted_log

from tidelog import ConsumedBatch
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.start_points import parse_since, parse_start
from tidelog_cli.records.consume import Reading, write_out
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch


@pytest.fixture
def filled(cli: Cli, topic: str) -> str:
    """Hold 0..99 in partition 0 and nothing in partition 1."""
    assert cli("produce", topic, "--partition", 0, stdin=b"".join(b"%d\n" % n for n in range(100))).code == 0
    return topic


def numbers(text: str) -> list[int]:
    return [int(line) for line in text.split()]


def test_it_ends_at_the_end_and_at_the_limit(cli: Cli, filled: str) -> None:
    assert numbers(cli("consume", filled).out) == list(range(100))
    assert numbers(cli("consume", filled, "--max", 3).out) == [0, 1, 2]
    assert numbers(cli("consume", filled, "--from", 97, "--partition", 0).out) == [97, 98, 99]
    assert cli("consume", filled, "--from", "latest").out == ""
    assert cli("consume", filled, "--partition", 1).out == ""
    assert cli("consume", filled, "--from", "2100-01-01").out == ""
    assert numbers(cli("consume", filled, "--from", "2000-01-01T00:00:00Z", "--max", 1).out) == [0]


def test_an_offset_beyond_the_end_is_refused_with_the_bounds(cli: Cli, filled: str) -> None:
    ended = cli("consume", filled, "--from", 99999)
    assert (ended.code, ended.out) == (1, "")
    assert "offset 99999" in ended.err
    assert "partition 0 has offsets 0 up to its end at 100, partition 1 has offsets 0 up to its end at 0" in ended.err
    assert cli("consume", filled, "--from", 99999, "--follow").code == 1
    partly = cli("consume", filled, "--from", 98)
    assert (partly.code, partly.out) == (1, "")
    assert "partition 1 has offsets 0 up to its end at 0" in partly.err
    assert "--partition" in partly.err
    assert cli("consume", filled, "--from", 100, "--partition", 0) == Ended(0, "", ""), "the end itself is in range"


def test_a_group_goes_on_where_it_stopped_to_the_record(cli: Cli, filled: str) -> None:
    read = [numbers(cli("consume", filled, "--group", f"g.{filled}", "--max", 30).out) for _ in range(5)]
    assert read == [list(range(30)), list(range(30, 60)), list(range(60, 90)), list(range(90, 100)), []]


def test_a_group_that_begins_at_the_end_goes_on_from_there(cli: Cli, filled: str) -> None:
    assert cli("consume", filled, "--group", f"g.{filled}", "--from", "latest") == Ended(0, "", "")
    assert cli("produce", filled, "--partition", 0, stdin=b"100\n").code == 0
    assert numbers(cli("consume", filled, "--group", f"g.{filled}", "--from", "latest").out) == [100]


def test_consumed_json_can_be_published_again(cli: Cli, topic: str) -> None:
    lines = b'k:{"a": 1}\nk:plain\nk:\n'
    options = ("--key-delimiter", ":", "--tombstones", "--header", "h=1", "--tag", "t", "--timestamp", "1970-01-02")
    assert cli("produce", topic, *options, stdin=lines).code == 0
    printed = cli("consume", topic, "--json").out
    records = [json.loads(line) for line in printed.splitlines()]
    assert [record["value"] for record in records] == [{"a": 1}, "plain", None]
    assert {(record["key"], record["tag"], record["timestamp_ms"]) for record in records} == {("k", "t", 86_400_000)}
    assert records[0]["headers"] == [["h", "1"]]
    assert cli("produce", topic, "--format", "records", stdin=printed.encode()).code == 0
    again = [json.loads(line) for line in cli("consume", topic, "--json", "--value", "text").out.splitlines()][3:]
    assert [record["value"] for record in again] == ['{"a": 1}', "plain", None]
    kept = ("key", "tag", "timestamp_ms", "headers", "partition")
    assert [[record[name] for name in kept] for record in again] == [[r[name] for name in kept] for r in records]


def test_one_dead_letter_is_fixed_and_published_again(cli: Cli, topic: str, tmp_path: Path) -> None:
    record = {"key": "k", "value": "bad", "headers": [["a", "1"], ["tidelog-topic", topic], ["tidelog-error", "no"]]}
    sent = json.dumps(record | {"timestamp_ms": 1000, "topic": "other", "partition": 99, "offset": 5})
    assert cli("produce", topic, "--format", "records", "--partition", 1, stdin=sent.encode()).code == 0
    one = cli("consume", topic, "--partition", 1, "--from", 0, "--max", 1, "--json").out
    letter = tmp_path / "letter.json"
    letter.write_text(one.replace("bad", "good"))
    options = ("--format", "records", "--drop-header", "tidelog-*", "--partition", 0)
    assert cli("produce", topic, *options, letter).code == 0
    (line,) = cli("consume", topic, "--partition", 0, "--json").out.splitlines()
    expected = {"topic": topic, "partition": 0, "offset": 0, "key": "k", "value": "good", "timestamp_ms": 1000}
    assert json.loads(line) == expected | {"headers": [["a", "1"]]}
    refused = cli("produce", topic, "--drop-header", "a*b", stdin=b"x\n")
    assert (refused.code, "--drop-header 'a*b': give a name" in refused.err) == (2, True)


def test_how_values_are_printed_is_a_question_of_json(cli: Cli, filled: str) -> None:
    assert cli("consume", filled, "--value", "base64").code == 2
    assert '"value": "NDI="' in cli("consume", filled, "--json", "--value", "base64").out


def test_json_gives_every_field(cli: Cli, filled: str) -> None:
    (line,) = cli("consume", filled, "--json", "--from", 42, "--max", 1, "--partition", 0).out.splitlines()
    record = json.loads(line)
    assert record.pop("timestamp_ms") > 1_600_000_000_000
    assert record == {"topic": filled, "partition": 0, "offset": 42, "key": None, "value": "42"}


def test_following_goes_on_until_interrupted(cli: Cli, filled: str, node: str) -> None:
    command = [sys.executable, "-m", "tidelog_cli", "consume", filled, "--follow", "--from", "99", "--partition", "0"]
    environ = os.environ | {"TIDELOG_BOOTSTRAP": node}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "99\n"
        assert cli("produce", filled, "--partition", 0, stdin=b"more\n").code == 0
        assert process.stdout.readline() == "more\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""


def test_closed_pipe_prints_no_traceback(cli: Cli, topic: str, node: str) -> None:
    # More than a pipe holds, so that the writer is still writing when the reader leaves.
    assert cli("produce", topic, "--partition", 0, stdin=b"0123456789\n" * 100_000).code == 0
    ended = subprocess.run(
        f"{sys.executable} -m tidelog_cli consume {topic} | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TIDELOG_BOOTSTRAP": node},
    )
    assert (ended.stdout, ended.stderr) == ("0123456789\n", "")


def test_a_reader_that_never_reads_can_be_left(cli: Cli, topic: str, node: str) -> None:
    """Nothing that is stuck in the pipe counts as read by the group."""
    assert cli("produce", topic, "--partition", 0, stdin=b"0123456789\n" * 100_000).code == 0
    command = [sys.executable, "-m", "tidelog_cli", "consume", topic, "--group", "stuck"]
    reading, writing = os.pipe()
    with subprocess.Popen(
        command, stdout=writing, stderr=subprocess.PIPE, env=os.environ | {"TIDELOG_BOOTSTRAP": node}, text=True
    ) as process:
        os.close(writing)
        assert process.stderr is not None
        assert os.read(reading, 5) == b"01234"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""
    os.close(reading)
    assert cli("consume", topic, "--group", "stuck", "--max", 1, "--json").out.count('"offset": 0,') == 1


class Trickle:
    """A raw stream that takes a few bytes at a time."""

    def __init__(self, taken: int | None) -> None:
        self.content = bytearray()
        self.taken = taken

    def write(self, content: memoryview, /) -> int | None:
        self.content += content[: self.taken]
        return self.taken and min(self.taken, len(content))


def a_batch() -> Any:
    """Return as much of a consumed batch as writing values takes."""
    return SimpleNamespace(batch=SimpleNamespace(values=lambda: [b"first", None, b"third"]), reader=lambda: None)


def test_everything_is_written_in_parts() -> None:
    sink = Trickle(2)
    write_out(a_batch(), 3, sink, None)
    assert sink.content == b"first\n\nthird\n"
    write_out(a_batch(), 0, sink, None)
    assert sink.content == b"first\n\nthird\n"


def test_a_stream_that_does_not_wait_is_an_error() -> None:
    with pytest.raises(CommandFailed, match="cat"):
        write_out(a_batch(), 1, Trickle(None), None)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("17", 17),
        ("2013-01-01T05:00:00", datetime(2013, 1, 1, 5, tzinfo=UTC)),
        ("2013-01-01T05:00:00+01:00", datetime(2013, 1, 1, 4, tzinfo=UTC)),
    ],
)
def test_where_to_begin(text: str, start: object) -> None:
    assert parse_start(text) == start


def test_a_beginning_some_time_ago() -> None:
    start = parse_start("2h")
    assert isinstance(start, datetime)
    assert timedelta(hours=2) <= datetime.now(UTC) - start < timedelta(hours=3)


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "d", "-7d", "٣"])
def test_invalid_start_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="earliest"):
        parse_start(text)


def test_start_without_offsets_names_the_units_of_durations() -> None:
    for text in ("60min", "1 hour"):
        with pytest.raises(CommandFailed) as refused:
            parse_since(text)
        assert "unit ms, s, m, h, d or w" in str(refused.value)
        assert "an offset" not in str(refused.value)
    with pytest.raises(CommandFailed, match="--since takes a time, got 1795964400000: an integer would be an offset"):
        parse_since("1795964400000")


def batch_at(partition: int, base_offset: int, count: int) -> ConsumedBatch:
    data = bytearray(encode_batch(columns_of([b"v"] * count), now_us=1).to_bytes())
    stamp_owner(data, base_offset=base_offset, append_timestamp_us=1, epoch=0, owner_incarnation=1, previous_digest=0)
    return ConsumedBatch("t", partition, RecordBatch.parse(data))


def test_records_after_the_end_are_not_printed() -> None:
    reading = Reading({0: 0, 1: 0}, {0: 5, 1: 0})
    assert reading.unfinished() == [0]
    batch = batch_at(0, 3, 10)
    assert reading.take(batch) == 2
    reading.written(batch, 2)
    assert (reading.positions, reading.unfinished()) == ({0: 5, 1: 0}, [])
    behind = batch_at(0, 13, 4)
    assert reading.take(behind) == 0
    reading.written(behind, 0)
    assert reading.positions == {0: 5, 1: 0}


def test_the_limit_holds_over_partitions() -> None:
    reading = Reading({0: 0, 1: 0}, records_left=5)
    first = batch_at(0, 0, 3)
    second = batch_at(1, 0, 9)
    reading.written(first, reading.take(first))
    assert reading.take(second) == 2
    reading.written(second, 2)
    assert (reading.positions, reading.unfinished()) == ({0: 3, 1: 2}, [])


def test_partition_without_known_start_or_end_is_unfinished() -> None:
    reading = Reading({0: 0}, {0: 0}, None, unbegun={1, 2})
    reading.learned({0: 9, 1: 4}, [0])
    assert (reading.positions, reading.unfinished()) == ({0: 0, 1: 4}, [0, 1, 2])
    reading.learned({0: 9, 1: 5, 2: 0}, [])
    assert (reading.positions, reading.unfinished()) == ({0: 0, 1: 4, 2: 0}, [1, 2])


def test_gaps_are_passed() -> None:
    log = [ConsumedBatch("t", 0, RecordBatch.parse(data)) for data in compacted_log()]
    reading = Reading({0: 0}, {0: END_OFFSET})
    positions: list[int] = []
    for batch in log:
        assert reading.unfinished() == [0]
        reading.written(batch, reading.take(batch))
        positions.append(reading.positions[0])
    assert positions == [2, 20, 40, 50, 60, 62, END_OFFSET]
    assert reading.unfinished() == [], "nothing is left up to the end"


@pytest.mark.parametrize(("end", "count", "position"), [(6, 0, 6), (7, 1, 9), (9, 1, 9), (10, 2, 20), (3, 0, 6)])
def test_an_end_within_a_batch_with_gaps_is_reached(end: int, count: int, position: int) -> None:
    """The log was compacted since its end was asked for: nothing is left between what is read and the end."""
    reading = Reading({0: 2}, {0: end})
    batch = ConsumedBatch("t", 0, RecordBatch.parse(compacted_log()[1]))
    assert reading.take(batch) == count
    reading.written(batch, count)
    assert (reading.positions, reading.unfinished()) == ({0: position}, [])


def test_a_limit_within_a_batch_with_gaps() -> None:
    reading = Reading({0: 2}, records_left=1)
    batch = ConsumedBatch("t", 0, RecordBatch.parse(compacted_log()[1]))
    reading.written(batch, reading.take(batch))
    assert reading.positions == {0: 9}, "where the next record is"


def test_only_records_with_a_key_or_tag(cli: Cli, topic: str) -> None:
    lines = b"".join(b"%d:%d\n" % (number % 7, number) for number in range(70))
    assert cli("produce", topic, "--key-delimiter", ":", "--tag", "first", stdin=lines).code == 0
    assert cli("produce", topic, "--key-delimiter", ":", stdin=lines).code == 0
    mine = list(range(3, 70, 7))
    assert numbers(cli("consume", topic, "--key", "3").out) == mine + mine
    assert sorted(numbers(cli("consume", topic, "--tag", "first").out)) == list(range(70))
    assert numbers(cli("consume", topic, "--tag", "first", "--key", "3", "--max", 4).out) == mine[:4]
    assert cli("consume", topic, "--key", "nobody") == Ended(0, "", "")
    group = ("consume", topic, "--key", "3", "--group", f"g.{topic}")
    assert numbers(cli(*group).out) == mine + mine
    assert cli(*group).out == ""
