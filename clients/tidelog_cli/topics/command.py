"""`tidelog topic create|list|describe|alter|delete|delete-records|compact|schema`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from tidelog import Client, Partition, Topic
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    bytes_text,
    is_confirmed,
    note,
    print_json,
    print_table,
)
from tidelog_cli.base.session import with_client
from tidelog_cli.base.times import ago, is_duration, moment_of
from tidelog_cli.topics.description import (
    append_text,
    index_text,
    plan_text,
    retention_text,
    settings_text,
    stored_text,
    topic_document,
    unapplied_text,
)
from tidelog_cli.topics.replica_status import copies_text
from tidelog_cli.topics.schema_command import SchemaOption, described, register_schema
from tidelog_cli.topics.setting_options import with_setting_options

NameArgument = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add `topic` and its sub-commands to the command."""
    topic_app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)
    topic_app.command("create")(create)
    topic_app.command("list")(list_topics)
    topic_app.command("describe")(describe)
    topic_app.command("alter")(alter)
    topic_app.command("delete")(delete)
    topic_app.command("delete-records")(delete_records)
    topic_app.command("compact")(compact)
    register_schema(topic_app)
    app.add_typer(topic_app, name="topic")


@with_setting_options
def create(
    name: NameArgument,
    *,
    schema: SchemaOption = None,
    key: Annotated[str | None, typer.Option(help="With --schema: the field that is the key.")] = None,
    time: Annotated[str | None, typer.Option(help="With --schema: the field that is the time.")] = None,
    tag: Annotated[str | None, typer.Option(help="With --schema: the field that is the tag.")] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if the topic exists with these settings.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    **settings: Any,
) -> None:
    """Create a topic, with --schema a typed one; settings without an option get the node's defaults."""
    fields = None if schema is None else described(schema)
    topic = with_client(
        bootstrap,
        lambda client: client.create_topic(
            name, exist_ok=exist_ok, schema=fields, key=key, time=time, tag=tag, **settings
        ),
    )
    if as_json:
        print_json(topic_document(topic))
    else:
        count = _count(topic.partition_count, "partition")
        # With --exist-ok the topic may have existed.
        sys.stdout.write(
            f"topic {topic.name} has {count}\n" if exist_ok else f"created topic {topic.name} with {count}\n"
        )


def list_topics(
    *,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """List the topics."""
    topics = sorted(with_client(bootstrap, lambda client: client.topics(internal=internal)), key=lambda t: t.name)
    if as_json:
        print_json([topic_document(topic) for topic in topics])
    else:
        rows = [(t.name, t.partition_count, t.flush, retention_text(t)) for t in topics]
        print_table(("topic", "partitions", "flush", "retention"), rows)


def describe(
    name: NameArgument, *, as_json: JsonOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP
) -> None:
    """Show a topic's configuration, its partitions with offsets, sizes and times, and the next deletions."""
    topic = with_client(bootstrap, lambda client: client.topic(name))
    if as_json:
        print_json(topic_document(topic, copies=True))
        return
    sys.stdout.write(
        f"topic {topic.name}  flush {topic.flush}  {settings_text(topic)}  "
        f"segments {bytes_text(topic.segment_bytes)}  copies {copy_count_text(topic)}  id {topic.topic_id.hex()}\n"
    )
    print_table(
        (
            "partition",
            "owner",
            "epoch",
            "copies (records behind)",
            "log start",
            "high watermark",
            "size",
            "oldest",
            "newest",
            "state",
        ),
        [
            (
                p.partition,
                p.owner,
                p.epoch,
                copies_text(p),
                p.log_start_offset,
                p.high_watermark,
                bytes_text(p.size_bytes),
                append_text(p.oldest_append_us),
                append_text(p.newest_append_us),
                p.state,
            )
            for p in topic.partitions
        ],
    )
    for partition in topic.partitions:
        for text in filter(None, _remarks(topic, partition)):
            sys.stdout.write(f"partition {partition.partition} {text}\n")


def _remarks(topic: Topic, partition: Partition) -> tuple[str, ...]:
    """Return the remarks about a partition below the table; an empty one is not printed."""
    return (
        plan_text(topic, partition),
        index_text(topic, partition),
        stored_text(partition),
        unapplied_text(partition),
    )


@with_setting_options
def alter(
    name: NameArgument, *, as_json: JsonOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP, **changes: Any
) -> None:
    """Change settings of a topic; settings without an option do not change."""
    if not changes:
        raise CommandFailed(
            "no setting to change: give at least one option, see `tidelog topic alter --help`", EXIT_USAGE
        )
    topic = with_client(bootstrap, lambda client: client.alter_topic(name, **changes))
    if as_json:
        print_json(topic_document(topic))
    else:
        sys.stdout.write(f"altered topic {topic.name}\n")


def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics and all their records permanently; nothing is deleted if one of them does not exist."""
    names = list(dict.fromkeys(names))
    if not yes:
        if not sys.stdin.isatty():
            raise CommandFailed(f"the deletion of {', '.join(names)} is permanent: confirm it with --yes", EXIT_USAGE)
        what = f"topic {names[0]} and all its" if len(names) == 1 else f"the topics {', '.join(names)} and all their"
        if not is_confirmed(f"Delete {what} records?"):
            raise CommandFailed(f"the deletion of {', '.join(names)} was not confirmed; nothing was deleted")
    deleted: list[str] = []

    async def work(client: Client) -> None:
        for name in names if len(names) > 1 else ():
            await client.topic(name)
        for name in names:
            await client.delete_topic(name)
            deleted.append(name)

    try:
        with_client(bootstrap, work)
    except BaseException:
        for name in deleted:
            note(f"deleted topic {name}")
        raise
    for name in deleted:
        sys.stdout.write(f"deleted topic {name}\n")


def delete_records(
    name: NameArgument,
    *,
    before: Annotated[
        str, typer.Option(metavar="OFFSET|TIME", help="An offset, a time (ISO 8601), or a duration before now (7d).")
    ],
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition; required for an offset.")] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete all records before an offset or a time permanently. Reads of deleted offsets fail."""
    point = _point_of(before)
    partitions = None if partition is None else [partition]
    starts = with_client(bootstrap, lambda client: client.delete_records(name, point, partitions))
    if as_json:
        print_json([{"partition": number, "log_start_offset": start} for number, start in sorted(starts.items())])
        return
    for number, start in sorted(starts.items()):
        sys.stdout.write(f"partition {number} begins at offset {start:,}\n")


def _point_of(text: str) -> int | datetime:
    """Parse an offset or a time."""
    try:
        if text.isascii() and text.isdigit():
            return int(text)
        return ago(text, datetime.now(UTC)) if is_duration(text) else moment_of(text)
    except ValueError as error:
        raise CommandFailed(
            f"--before {text!r}: give an offset, a time like 2013-01-01T05:00:00, or how long ago, like 7d", EXIT_USAGE
        ) from error


def compact(
    name: NameArgument,
    *,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.", show_default=False)] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Compact a topic now, up to the current end of each partition; return when the compaction is complete."""
    partitions = None if partition is None else [partition]
    done = with_client(bootstrap, lambda client: client.compact_topic(name, partitions))
    if as_json:
        rows = [{"partition": each, "below": one.below, "size_bytes": one.size_bytes} for each, one in done.items()]
        print_json({"name": name, "partitions": rows})
    else:
        table = [(each, one.below, bytes_text(one.size_bytes)) for each, one in done.items()]
        print_table(("partition", "compacted below", "size"), table)


def copy_count_text(topic: Topic) -> str:
    """Return the number of copies, and the configured number if nodes are missing."""
    there = max((len(partition.placement) for partition in topic.partitions), default=0)
    configured = topic.replication_factor
    return str(configured) if there in {configured, 0} else f"{there} (of {configured}: the cluster has too few nodes)"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
