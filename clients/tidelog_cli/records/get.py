"""`tidelog get`: print the newest record of a key, which is the one with the highest offset."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidelog import Client, Record
from tidelog.rows.json_rows import row_of_object
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption
from tidelog_cli.base.session import with_client
from tidelog_cli.records.consume import checked_form, standard_output, write_lines
from tidelog_proto.batch.record import Record as BatchRecord
from tidelog_proto.schema.data_types import INTEGERS
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.text.record_lines import ValueForm, record_line


def register(app: typer.Typer) -> None:
    """Add `get` to the command."""
    app.command("get")(get)


def get(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False)],
    *,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The partition to search; by default the one that the key selects.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record as a JSON object instead of its value.")
    ] = False,
    value: Annotated[
        ValueForm | None,
        typer.Option(
            help="With --json: show the value as JSON if it is valid JSON (the default), as text, or as base64."
        ),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the value of the newest record of KEY, which is the one with the highest offset.

    The command fails if no record has the key, or if the newest one is a tombstone, which --json prints.
    Without an index of keys (`tidelog topic alter TOPIC --index key`) the node searches the partition backwards.
    """
    form = checked_form(value, as_json=as_json)
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise CommandFailed(f"KEY {key!r} is not UTF-8; give text in UTF-8", EXIT_USAGE) from error

    async def work(client: Client) -> Record | None:
        described = await client.topic(topic)
        wanted: Any = key.encode()
        if described.schema_number:
            wanted = _typed_key(await client.schema(topic), key)
        return await client.get(topic, wanted, partition=partition, values="json")

    record = with_client(bootstrap, work)
    if record is None:
        hint = "; choose another partition with --partition" if partition is None else ""
        raise CommandFailed(f"no record in {_place(topic, partition)} has the key {key!r}{hint}")
    if form is not None:
        one = BatchRecord(*record[2:])
        write_lines([record_line(one, topic, record.partition, form).encode()], standard_output())
    elif record.value is None:
        raise CommandFailed(
            f"the key {key!r} is deleted: its newest record in {topic}/{record.partition}, at offset {record.offset}, "
            "is a tombstone; --json prints it"
        )
    else:
        write_lines([record.value], standard_output())


def _typed_key(schema: Schema, text: str) -> Any:
    """Return the value of the key field of a typed topic, or the bytes of the text without such a field.

    Raises:
        CommandFailed: the text is not a value of the field.
    """
    field = schema.field_of(Role.KEY)
    if field is None:
        return text.encode()
    try:
        value = int(text) if field.type.kind in INTEGERS else text
        return row_of_object(schema, {field.name: value})[field.name]
    except ValueError as error:
        raise CommandFailed(f"KEY {text!r} is not a {field.type}, the type of {field.name!r}", EXIT_USAGE) from error


def _place(topic: str, partition: int | None) -> str:
    return f"the partition of {topic!r} that the key selects" if partition is None else f"{topic}/{partition}"
