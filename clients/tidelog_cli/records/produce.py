"""`tidelog produce`: publish standard input or files as Arrow batches, in bounded memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, print_json, print_table
from tidelog_cli.base.session import with_client
from tidelog_cli.base.times import timestamp_us_of
from tidelog_cli.records.csv_rows import delimiter_of, types_of
from tidelog_cli.records.input_formats import NO_FIELDS, Fields, Format, format_of, read_file, read_stream
from tidelog_cli.records.publishing import AcksChoice, AcksOption, Chunk, CompressionOption, publish_all
from tidelog_cli.records.record_fields import Additions, checked_names, with_tombstones, without_headers
from tidelog_cli.records.typed_input import COLUMNAR, preview, typed_lines, typed_rows
from tidelog_proto.schema.topic_schema import Schema

ColumnTypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="COLUMN=TYPE",
        help="Type of a CSV column: integer, number, boolean or text (the default); may be repeated for other columns.",
    ),
]
SkipRowsOption = Annotated[
    int, typer.Option(min=0, metavar="N", help="Skip N rows of a CSV file after the header, to continue it.")
]
PreviewOption = Annotated[
    bool, typer.Option("--preview", help="For a typed topic: print what each column becomes, and publish nothing.")
]
DelimiterOption = Annotated[
    str | None,
    typer.Option(metavar="CHAR", help="Character between the fields of a CSV file, or tab; a comma by default."),
]


def register(app: typer.Typer) -> None:
    """Add `produce` to the command."""
    app.command("produce")(produce)


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILES...|-]", show_default=False)] = None,
    *,
    file_format: Annotated[
        Format | None,
        typer.Option("--format", help="Format of the input; by default from the extension, lines for standard input."),
    ] = None,
    key_field: Annotated[str | None, typer.Option(help="JSON field or column for the key.")] = None,
    key: Annotated[str | None, typer.Option(help="Key of every record.")] = None,
    key_delimiter: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Separator between the key and the value of each line.")
    ] = None,
    timestamp_field: Annotated[
        str | None, typer.Option(help="JSON field or column for the timestamp: ISO 8601 or ms since 1970.")
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="Timestamp of every record: ISO 8601 or ms since 1970.")
    ] = None,
    column_type: ColumnTypeOption = None,
    skip_rows: SkipRowsOption = 0,
    delimiter: DelimiterOption = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Header of every record; may be repeated.")
    ] = None,
    drop_header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Leave out headers of this name, or of all names with this beginning ('tidelog-*'); may be repeated.",
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of every record.")] = None,
    tombstones: Annotated[bool, typer.Option("--tombstones", help="Publish empty values as tombstones.")] = False,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Partition of every record; chosen by key by default.")
    ] = None,
    show_preview: PreviewOption = False,
    compression: CompressionOption = None,
    acks: AcksOption = AcksChoice.QUORUM,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Publish standard input or files: one record per line (text, .ndjson) or per row (.csv, .parquet, .arrow).

    Rows of files without a `value` column become JSON objects. With --format records each line is a complete record, as
    in the output of `tidelog consume --json` and in the HTTP API: its key, value, headers, tag and timestamp_ms are
    published, and its topic, partition and offset are ignored. To publish a dead letter again, add --drop-header
    'tidelog-*'.
    In a typed topic lines are JSON objects, and the columns of files are the fields of the schema; each value must fit
    its field exactly.
    """
    _refuse_both({"--key": key, "--key-field": key_field, "--key-delimiter": key_delimiter})
    _refuse_both({"--timestamp": timestamp, "--timestamp-field": timestamp_field})
    _refuse_no_text(
        {"--key": key, "--key-delimiter": key_delimiter, "--tag": tag, "--key-field": key_field}
        | {"--timestamp-field": timestamp_field, "--header": "".join(header or [])}
    )
    between = None if key_delimiter is None else key_delimiter.encode()
    sign = None if delimiter is None else delimiter_of(delimiter)
    fields = Fields(key_field, timestamp_field, between, types_of(column_type or []), skip_rows, sign)
    additions = Additions.of(key=key, timestamp=_timestamp_us(timestamp), headers=header, tag=tag)
    sources = _formats(files or ["-"], file_format, fields)
    if show_preview:
        _print_preview(topic, sources, fields, bootstrap, as_json=as_json)
        return
    resume = _resumption(sources, skip_rows)
    dropped = checked_names(drop_header or [])
    read = _read_all(sources, fields)
    records = additions.to_all(without_headers(read, dropped) if dropped else read)
    batches = with_tombstones(records) if tombstones else records
    placed = (Chunk(batch, partition) for batch in batches)
    plain = replace(fields, delimiter=None) == NO_FIELDS and not (tombstones or dropped or additions.columns)
    typed = partial(_typed_chunks, topic, sources, fields, partition, plain)
    published = publish_all(
        topic, placed, acks=acks, compression=compression, bootstrap=bootstrap, typed=typed, resume=resume
    )
    published.tell(topic, "published {} to {}", as_json=as_json)


def _typed_chunks(  # noqa: PLR0917 - bound by `produce`
    topic: str, sources: list[tuple[str, Format]], fields: Fields, partition: int | None, plain: bool, schema: Schema
) -> Iterator[Chunk]:
    """Return the rows of all sources for a typed topic.

    Args:
        plain: whether no option for keys, times, tags, headers, types, skipped rows or tombstones is given.

    Raises:
        CommandFailed: such an option is given.
    """
    if not plain:
        raise CommandFailed(
            f"topic {topic} is typed: its rows have the key, the time and the types; omit the options for keys, "
            "timestamps, tags, headers, types, skipped rows and tombstones",
            EXIT_USAGE,
        )
    return (Chunk(batch, partition) for batch in _typed(sources, fields, schema))


def _typed(sources: list[tuple[str, Format]], fields: Fields, schema: Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all sources for a typed topic."""
    for name, input_format in sources:
        if input_format in COLUMNAR:
            if name == "-":
                raise CommandFailed(
                    f"{input_format} for a typed topic cannot be read from standard input; give the path of a file",
                    EXIT_USAGE,
                )
            yield from typed_rows(Path(name), input_format, schema, fields.delimiter)
        elif input_format is Format.RECORDS:
            raise CommandFailed("--format records is not for typed topics; give --format ndjson", EXIT_USAGE)
        else:
            for batch in _read_all([(name, Format.NDJSON)], NO_FIELDS):
                yield typed_lines([line for line in batch.column("value").to_pylist() if line is not None], schema)


def _print_preview(
    topic: str, sources: list[tuple[str, Format]], fields: Fields, bootstrap: str, *, as_json: bool
) -> None:
    schema = with_client(bootstrap, lambda client: client.schema(topic))
    rows: list[tuple[str, str, str, str]] = []
    for name, input_format in sources:
        if name == "-" or input_format not in COLUMNAR:
            raise CommandFailed("--preview is for .parquet, .arrow and .csv files; give one of these", EXIT_USAGE)
        rows += [(name, *row) for row in preview(Path(name), input_format, schema, fields.delimiter)]
    if as_json:
        print_json([dict(zip(("file", "column", "type", "becomes"), row, strict=True)) for row in rows])
    else:
        print_table(("file", "column", "type", "becomes"), rows)


def _resumption(sources: list[tuple[str, Format]], skip_rows: int) -> Callable[[int], str] | None:
    """Return a function that describes how to continue after some acknowledged rows; None if that is not possible."""
    if skip_rows and len(sources) > 1:
        raise CommandFailed(
            f"--skip-rows is for a single file, got {len(sources)} files; publish each file with its own command",
            EXIT_USAGE,
        )
    if [one for _, one in sources] != [Format.CSV]:
        return None
    return lambda acknowledged: f"after the correction continue with --skip-rows {skip_rows + acknowledged}"


def _formats(names: list[str], file_format: Format | None, fields: Fields) -> list[tuple[str, Format]]:
    """Return each file name with its format; all are checked before a file is read.

    Raises:
        CommandFailed: a format is not supported, or not with these options.
    """
    sources = [(name, file_format or (Format.LINES if name == "-" else format_of(Path(name)))) for name in names]
    return [(name, _checked(one, fields)) for name, one in sources]


def _read_all(sources: list[tuple[str, Format]], fields: Fields) -> Iterator[pa.RecordBatch]:
    for name, input_format in sources:
        if name == "-":
            # Unbuffered, so that each line is published when it arrives.
            with FileIO(sys.stdin.fileno(), closefd=False) as stdin:
                try:
                    yield from read_stream(stdin, input_format, fields)
                except OSError as error:
                    raise CommandFailed(f"standard input cannot be read: {error.strerror}") from error
        else:
            yield from read_file(Path(name), input_format, fields)


def _checked(file_format: Format, fields: Fields) -> Format:
    """Return the format; refuse options that do not apply to it.

    Raises:
        CommandFailed: an option for keys, timestamps or CSV does not apply to the format.
    """
    if fields.key_delimiter is not None and (file_format is not Format.LINES or not fields.key_delimiter):
        raise CommandFailed(
            "--key-delimiter must not be empty; give the text between key and value, such as :"
            if file_format is Format.LINES
            else f"--key-delimiter is only for lines, got {file_format}; omit it, or give --format lines",
            EXIT_USAGE,
        )
    if fields.types and file_format is not Format.CSV:
        raise CommandFailed(
            f"--type is only for CSV, got {file_format}; omit it, or give --format csv if the input is CSV", EXIT_USAGE
        )
    for option, value in {"--skip-rows": fields.skip_rows, "--delimiter": fields.delimiter}.items():
        if value and file_format is not Format.CSV:
            raise CommandFailed(
                f"{option} is only for CSV, got {file_format}; omit it, or give --format csv if the input is CSV",
                EXIT_USAGE,
            )
    if file_format is Format.RECORDS and fields != NO_FIELDS:
        raise CommandFailed(
            "--format records takes keys and timestamps from the records; omit --key-field and --timestamp-field",
            EXIT_USAGE,
        )
    return file_format


def _refuse_both(options: dict[str, str | None]) -> None:
    names = [name for name, value in options.items() if value is not None]
    if len(names) > 1:
        raise CommandFailed(f"{' and '.join(names)} are mutually exclusive; give one of them", EXIT_USAGE)


def _refuse_no_text(options: dict[str, str | None]) -> None:
    """Refuse arguments that are not UTF-8, which Python represents with lone surrogates."""
    for name, value in options.items():
        try:
            (value or "").encode()
        except UnicodeEncodeError as error:
            raise CommandFailed(f"{name} {value!r} is not UTF-8; give text in UTF-8", EXIT_USAGE) from error


def _timestamp_us(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return timestamp_us_of(int(text) if text.isascii() and text.isdigit() else text)
    except ValueError as error:
        raise CommandFailed(f"--timestamp {text!r}: {error}", EXIT_USAGE) from error
