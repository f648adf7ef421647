"""CSV becomes JSON objects whose numbers keep their digits; faults name the row."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest
from tests.cli.conftest import Cli

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.records.csv_rows import BLOCK_BYTES, HEADER_BYTES_MAX, ColumnType, delimiter_of, rows_of, types_of
from tidelog_cli.records.input_formats import Fields, Format, read_stream


class Pipe:
    """A stream whose reads are short, as those of a pipe are."""

    def __init__(self, content: bytes, step: int = 3) -> None:
        self._stream, self._step = io.BytesIO(content), step

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, self._step))


def values(content: bytes, *types: str, step: int = 1 << 16) -> list[Any]:
    return [
        value for rows in rows_of(Pipe(content, step), types_of(types)) for value in rows.records["value"].to_pylist()
    ]


@pytest.mark.parametrize("step", [1, 3, 1 << 16])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_rows_become_objects_in_which_numbers_keep_their_digits(step: int, end: bytes) -> None:
    text = b'id,price,big,ok,name\n007,1.10,12345678901234567890.0,true,"a ""b"", \xc3\xa4"\n,,,,""\n8,1e5,0,false,x'
    made = values(text.replace(b"\n", end), "price=number", "big=number", "ok=boolean", step=step)
    assert made == [
        b'{"id":"007","price":1.10,"big":12345678901234567890.0,"ok":true,"name":"a \\"b\\", \xc3\xa4"}',
        b'{"id":null,"price":null,"big":null,"ok":null,"name":""}',
        b'{"id":"8","price":1e5,"big":0,"ok":false,"name":"x"}',
    ]


def test_a_field_may_have_line_ends_and_names_may_be_quoted() -> None:
    assert values(b'\xef\xbb\xbf"a ""\n1",b\n"x\ny",2\n') == [b'{"a \\"\\n1":"x\\ny","b":"2"}']


def test_many_blocks_are_rows_in_their_order() -> None:
    count = 300_000
    made = values(b"n\n" + b"".join(b"%d\n" % number for number in range(count)), "n=integer")
    assert [json.loads(value)["n"] for value in made] == list(range(count))


@pytest.mark.parametrize(
    ("content", "types", "message"),
    [
        (b"", (), "row 1 is missing"),
        (b"a,a\n1,2\n", (), "row 1 has the name 'a' twice"),
        (b"a,\n1,2\n", (), "row 1 has an empty name"),
        (b"\xff\n1\n", (), "row 1 is not a CSV header in UTF-8"),
        (b"a" * (HEADER_BYTES_MAX + 10000), (), "row 1 has more than 65,536 bytes"),
        (b"a,b\n1,2\n3\n", (), "cannot parse CSV: .*row 3"),
        (b"a\n\xff\n", (), "cannot parse CSV: .*UTF8"),
        (
            b'a,b\n1,"' + b"x" * (2 * BLOCK_BYTES),
            (),
            "cannot parse CSV: a row has more than 1,048,576 bytes, or a quote",
        ),
        (
            b"a\n1\nx\n",
            ("a=integer",),
            r"row 3 \(the header is row 1\), column 'a': 'x' is not of type integer; correct it, or give --type a=text",
        ),
        (b"a\n1.5\n", ("a=integer",), "row 2 .*, column 'a': '1.5' is not of type integer"),
        (b"a\nNaN\n", ("a=number",), "'NaN' is not of type number"),
        (b"a\n01\n", ("a=number",), "'01' is not of type number"),
        (b"a\nTRUE\n", ("a=boolean",), "'TRUE' is not of type boolean"),
        (b"a\n1\n", ("b=integer",), "--type names column 'b', which the file does not have; its columns: a"),
        (b"value,other\n1,2\n", (), "remove column 'other'"),
        (b"value\n1\n", ("value=integer",), "omit --type for column 'value'"),
    ],
)
def test_faults_name_the_row_and_the_value(content: bytes, types: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandFailed, match=message):
        values(content, *types)


@pytest.mark.parametrize("given", ["a", "a=", "=integer", "a=int"])
def test_an_unknown_type_is_refused(given: str) -> None:
    with pytest.raises(CommandFailed, match=f"--type must be COLUMN=TYPE .* got '{given}'"):
        types_of([given])
    with pytest.raises(CommandFailed, match="column 'a' twice"):
        types_of(["a=text", "a=integer"])
    assert types_of(["a=b=integer"]) == {"a=b": ColumnType.INTEGER}


def test_keys_and_times_come_from_columns() -> None:
    stream = Pipe(b"user,at\nada,1700000000000\nbob,2023-11-14T22:13:21Z\n,2023-11-14T22:13:22Z\n")
    (batch,) = read_stream(stream, Format.CSV, Fields("user", "at"))
    assert batch.column("key").to_pylist() == [b"ada", b"bob", None]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [
        1_700_000_000_000_000 + at * 10**6 for at in range(3)
    ]
    with pytest.raises(CommandFailed, match="column 'x' does not exist; the columns are a"):
        list(read_stream(Pipe(b"a\n1\n"), Format.CSV, Fields("x")))
    with pytest.raises(CommandFailed, match="column 'a' has no time in at least 1 rows"):
        list(read_stream(Pipe(b"a,b\n,1\n"), Format.CSV, Fields(None, "a")))


def test_a_column_value_makes_records() -> None:
    (batch,) = read_stream(Pipe(b'key,value,tag\nk,"1,2",t\n,"",\n'), Format.CSV)
    assert batch.to_pylist() == [
        {"key": b"k", "value": b"1,2", "tag": "t"},
        {"key": None, "value": b"", "tag": None},
    ]


def test_a_header_alone_has_no_records() -> None:
    assert values(b"a,b\n") == values(b"a,b") == []


def test_rows_before_a_wrong_field_are_published_and_the_load_continues(cli: Cli, topic: str, tmp_path: Any) -> None:
    path = tmp_path / "visits.csv"
    rows = [str(number) for number in range(9)]
    path.write_text("\n".join(["seconds", *rows[:6], "x", *rows[7:]]) + "\n")
    arguments = ("produce", topic, path, "--type", "seconds=integer", "--partition", 0)
    failed = cli(*arguments)
    assert failed.code == 1
    assert "row 8 (the header is row 1), column 'seconds': 'x'" in failed.err
    assert "(6 records were acknowledged before; after the correction continue with --skip-rows 6)" in failed.err
    again = cli(*arguments, "--skip-rows", 6)
    assert "(0 records were acknowledged before; after the correction continue with --skip-rows 6)" in again.err
    path.write_text("\n".join(["seconds", *rows]) + "\n")
    assert cli(*arguments, "--skip-rows", 6).out.startswith("published 3 records")
    assert cli("consume", topic).out.splitlines() == [f'{{"seconds":{row}}}' for row in rows]


def test_skipping_of_rows_is_checked(cli: Cli, topic: str, tmp_path: Any) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("a\n1\n2\n")
    assert "the file has only 2 rows after the header" in cli("produce", topic, path, "--skip-rows", 3).err
    assert cli("produce", topic, path, "--skip-rows", 2).out.startswith("published 0 records")
    assert "--skip-rows is for a single file, got 2" in cli("produce", topic, path, path, "--skip-rows", 1).err
    assert "--skip-rows is only for CSV, got lines" in cli("produce", topic, "--skip-rows", 1, stdin=b"1\n").err


def test_csv_is_published(cli: Cli, topic: str, tmp_path: Any) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("user,seconds\nada,1.50\nbob,2\n")
    assert cli("produce", topic, path, "--key-field", "user", "--type", "seconds=number").code == 0
    assert cli("produce", topic, "--format", "csv", "-", stdin=b"user\neve\n").code == 0
    shown = cli("consume", topic).out.splitlines()
    assert sorted(shown) == ['{"user":"ada","seconds":1.50}', '{"user":"bob","seconds":2}', '{"user":"eve"}']
    refused = cli("produce", topic, "--type", "a=integer", stdin=b"1\n")
    assert (refused.code, "--type is only for CSV, got lines" in refused.err) == (2, True)
    assert "publish CSV with `tidelog produce TOPIC " in cli("import", topic, path).err


@pytest.mark.parametrize(("argument", "character"), [(";", b";"), ("tab", b"\t"), ("|", b"|"), (" ", b" ")])
def test_another_delimiter(argument: str, character: bytes) -> None:
    text = b'a,b\n1,"x,y"\n'.replace(b",", character)
    (rows,) = rows_of(Pipe(text), types_of([]), delimiter=delimiter_of(argument))
    (value,) = rows.records["value"].to_pylist()
    assert json.loads(value or b"") == {"a": "1", "b": f"x{character.decode()}y"}


@pytest.mark.parametrize("text", ["", ";;", '"', "\n", "ä", "comma"])
def test_delimiter_that_cannot_separate_fields_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="--delimiter must be tab, or one ASCII character"):
        delimiter_of(text)


@pytest.mark.parametrize("other", [";", "\t", "|"])
def test_header_of_another_delimiter_is_refused(other: str) -> None:
    with pytest.raises(CommandFailed, match=r"row 1 is one column named .*--delimiter"):
        list(rows_of(Pipe(f"a{other}b\n1{other}2\n".encode()), {}))
    (rows,) = rows_of(Pipe(f"a{other}b\n1{other}2\n".encode()), {}, delimiter=",")
    assert rows.fields.schema.names == [f"a{other}b"]


def test_delimiter_is_an_option_of_produce_for_csv_alone(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--format", "csv", "--delimiter", "tab", stdin=b"a\tb\n1\t2\n").code == 0
    assert json.loads(cli("consume", topic).out) == {"a": "1", "b": "2"}
    refused = cli("produce", topic, "--delimiter", ";", stdin=b"x\n")
    assert (refused.code, "--delimiter is only for CSV" in refused.err) == (2, True)
