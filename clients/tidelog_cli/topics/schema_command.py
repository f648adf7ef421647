"""`tidelog topic schema show|check|evolve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from tidelog import Client
from tidelog.admin.schema_changes import NextSchema
from tidelog.schemas.any_input import proposal_of_file, proposal_of_text
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    note,
    print_json,
    print_table,
)
from tidelog_cli.base.session import with_client
from tidelog_cli.topics.schema_text import FIELD_HEADINGS, Language, field_rows, schema_document, text_in
from tidelog_proto.limits import MIB
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_file import schemas_line

_TopicArgument: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
SchemaOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="FILE|-",
        help="Fields of the records: a .parquet, .csv, .json (JSON Schema) or .avsc file; -: JSON from standard input.",
    ),
]
_AddOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--add", metavar="'NAME TYPE'", help="Add an optional field; may be repeated.")
]
_RenameOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--rename", metavar="FIELD=NAME", help="Rename a field; may be repeated.")
]
_WidenOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--widen", metavar="FIELD:TYPE", help="Give a field a wider type; may be repeated.")
]
_DropOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--drop", metavar="FIELD", help="Drop a field; may be repeated.")
]
_OptionalOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--optional", metavar="FIELD", help="Make a field optional; may be repeated.")
]
_DescribeOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--describe", metavar="FIELD=TEXT", help="Describe a field; may be repeated.")
]
_ExpectOption: TypeAlias = Annotated[
    int | None, typer.Option("--expect", min=1, metavar="N", help="Fail unless the newest schema has this number.")
]


def register_schema(topic_app: typer.Typer) -> None:
    """Add `schema` and its sub-commands to `tidelog topic`."""
    schema_app = typer.Typer(help="Show and change the schema of a typed topic.", no_args_is_help=True)
    schema_app.command("show")(show)
    schema_app.command("check")(check)
    schema_app.command("evolve")(evolve)
    topic_app.add_typer(schema_app, name="schema")


def described(source: str) -> list[Any] | Any:
    """Return the fields that a file, or standard input for "-", describes; print what becomes something else.

    Raises:
        CommandFailed: it describes no schema.
    """
    try:
        if source == "-":
            proposal = proposal_of_text(sys.stdin.buffer.read(MIB + 1), "standard input")
        else:
            proposal = proposal_of_file(Path(source))
    except (SchemaError, OSError) as error:
        raise CommandFailed(f"--schema {source}: {error}", EXIT_USAGE) from error
    for each in proposal.notes:
        note(each)
    return proposal


def show(
    name: _TopicArgument,
    *,
    number: Annotated[int | None, typer.Option(min=1, help="Number of the schema; the newest by default.")] = None,
    language: Annotated[
        Language | None, typer.Option("--as", help="Print the schema in another language instead of a table.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="With --as file: all schemas, which `tidelog log dump --schemas` reads.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Print a schema of a typed topic."""
    if every != (language is Language.FILE) or (every and number is not None):
        raise CommandFailed("--all and --as file belong together, without --number; give both or none", EXIT_USAGE)
    if every:
        sys.stdout.write(with_client(bootstrap, lambda client: _all_schemas(client, name)) + "\n")
        return
    schema = with_client(bootstrap, lambda client: client.schema(name, number))
    if language is not None:
        sys.stdout.write(text_in(schema, language, name) + "\n")
    elif as_json:
        print_json(schema_document(schema))
    else:
        sys.stdout.write(f"topic {name}  schema {schema.number}  digest {schema.digest:08x}\n")
        print_table(FIELD_HEADINGS, list(field_rows(schema)))


async def _all_schemas(client: Client, topic: str) -> str:
    """Return all schemas of a topic as a line of a file of schemas."""
    newest = await client.schema(topic)
    schemas = [await client.schema(topic, number) for number in range(1, newest.number)]
    return schemas_line(topic, (await client.topic(topic)).topic_id, [*schemas, newest])


def check(
    name: _TopicArgument,
    *,
    schema: SchemaOption = None,
    add: _AddOption = None,
    rename: _RenameOption = None,
    widen: _WidenOption = None,
    drop: _DropOption = None,
    optional: _OptionalOption = None,
    describe: _DescribeOption = None,
    expect: _ExpectOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Print how a change would change the schema of a topic; nothing is changed."""
    source = None if schema is None else described(schema)
    changes = _changes(add, rename, widen, drop, optional, describe)
    found = with_client(bootstrap, lambda client: client.check_schema(name, source, expected=expect, **changes))
    _tell(name, found, "would become", as_json=as_json)


def evolve(
    name: _TopicArgument,
    *,
    schema: SchemaOption = None,
    add: _AddOption = None,
    rename: _RenameOption = None,
    widen: _WidenOption = None,
    drop: _DropOption = None,
    optional: _OptionalOption = None,
    describe: _DescribeOption = None,
    expect: _ExpectOption = None,
    raise_floor: Annotated[
        bool, typer.Option("--raise-floor", help="Let producers use only the new schema from now on.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Change the schema of a topic. All earlier records stay readable; `check` shows the change first."""
    source = None if schema is None else described(schema)
    changes = _changes(add, rename, widen, drop, optional, describe)
    found = with_client(
        bootstrap,
        lambda client: client.evolve_schema(name, source, expected=expect, raise_floor=raise_floor, **changes),
    )
    _tell(name, found, "is now", as_json=as_json)


def _tell(name: str, found: NextSchema, verb: str, *, as_json: bool) -> None:
    if as_json:
        changes = [{"what": each.what, "path": ".".join(each.path), "detail": each.detail} for each in found.changes]
        print_json({"topic": name, "changes": changes, "schema": schema_document(found.schema)})
        return
    sys.stdout.write(f"schema {found.before.number} of topic {name} {verb} schema {found.schema.number}:\n")
    for change in found.changes:
        sys.stdout.write(f"  {change}\n")


def _changes(  # noqa: PLR0917 - one for each kind of change
    add: list[str] | None,
    rename: list[str] | None,
    widen: list[str] | None,
    drop: list[str] | None,
    optional: list[str] | None,
    describe: list[str] | None,
) -> Any:
    """Return the arguments of `Client.evolve_schema`."""
    return {
        "add": add or [],
        "rename": _pairs("--rename", rename, "=", "dest=to"),
        "widen": _pairs("--widen", widen, ":", "flight:int64"),
        "drop": drop or [],
        "optional": optional or [],
        "describe": _pairs("--describe", describe, "=", "dest=airport"),
    }


def _pairs(option: str, given: list[str] | None, sign: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or []:
        name, found, value = text.partition(sign)
        if not (name and found and value):
            raise CommandFailed(f"{option} {text!r}: give a field and its new value, such as {example}", EXIT_USAGE)
        if name in pairs:
            raise CommandFailed(f"{option} names the field {name!r} twice; give it once", EXIT_USAGE)
        pairs[name] = value
    return pairs
