"""`tidelog topic create|list|describe|alter|delete|compact`."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from tidelog import Client, Topic
from tidelog_cli.copies import copies_text, copy_documents
from tidelog_cli.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, bytes_text, print_json, print_table
from tidelog_cli.quantities import duration_ms, size_bytes
from tidelog_cli.session import with_client


class FlushChoice(StrEnum):
    """When an acknowledged record is synced."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


NameArgument = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]
FlushOption = Annotated[FlushChoice | None, typer.Option(help="Sync before acknowledging, at intervals, or never.")]
FlushIntervalOption = Annotated[
    int | None,
    typer.Option(
        "--flush-interval",
        "--flush-interval-ms",
        parser=duration_ms,
        metavar="TIME",
        help="With --flush interval: 200ms, 5s; plain numbers are ms.",
    ),
]
RetentionOption = Annotated[
    int | None,
    typer.Option(parser=size_bytes, metavar="SIZE", help="Kept per partition: 512MiB, 20GB; 0: everything."),
]
SegmentOption = Annotated[
    int | None, typer.Option(parser=size_bytes, metavar="SIZE", help="The size of a segment file: 64MiB.")
]


def register(app: typer.Typer) -> None:
    """Add `topic` and its sub-commands to the command."""
    topic_app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)
    topic_app.command("create")(create)
    topic_app.command("list")(list_topics)
    topic_app.command("describe")(describe)
    topic_app.command("alter")(alter)
    topic_app.command("delete")(delete)
    topic_app.command("compact")(compact)
    app.add_typer(topic_app, name="topic")


def create(
    name: NameArgument,
    *,
    partitions: Annotated[int, typer.Option(min=1)] = 1,
    flush: FlushOption = None,
    flush_interval_ms: FlushIntervalOption = None,
    retention_bytes: RetentionOption = None,
    segment_bytes: SegmentOption = None,
    replication_factor: Annotated[int | None, typer.Option(min=1, help="Copies; as many as there are nodes.")] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a topic; what is not given takes the node's default."""

    async def work(client: Client) -> Topic:
        return await client.create_topic(
            name,
            partitions=partitions,
            flush=None if flush is None else flush.value,
            flush_interval_ms=flush_interval_ms,
            retention_bytes=retention_bytes,
            segment_bytes=segment_bytes,
            replication_factor=replication_factor,
        )

    topic = with_client(bootstrap, work)
    if as_json:
        print_json(topic_document(topic))
    else:
        sys.stdout.write(f"created topic {topic.name} with {_count(topic.partition_count, 'partition')}\n")


def list_topics(
    *,
    internal: Annotated[bool, typer.Option("--internal", help="Also the broker's own topics.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """List the topics."""
    topics = sorted(with_client(bootstrap, lambda client: client.topics(internal=internal)), key=lambda t: t.name)
    if as_json:
        print_json([topic_document(topic) for topic in topics])
    else:
        rows = [(t.name, t.partition_count, t.flush, _retention_text(t.retention_bytes)) for t in topics]
        print_table(("topic", "partitions", "flush", "retention"), rows)


def describe(
    name: NameArgument, *, as_json: JsonOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP
) -> None:
    """Show a topic's configuration and, for each partition, owner, epoch, copies, offsets and size."""
    topic = with_client(bootstrap, lambda client: client.topic(name))
    if as_json:
        print_json(topic_document(topic, copies=True))
        return
    sys.stdout.write(
        f"topic {topic.name}  flush {topic.flush}  retention {_retention_text(topic.retention_bytes)}  "
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
                p.state,
            )
            for p in topic.partitions
        ],
    )


def alter(
    name: NameArgument,
    *,
    partitions: Annotated[int | None, typer.Option(min=1, help="Can only grow.")] = None,
    flush: FlushOption = None,
    flush_interval_ms: FlushIntervalOption = None,
    retention_bytes: RetentionOption = None,
    segment_bytes: SegmentOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Change a topic; what is not given stays."""
    asked: dict[str, Any] = {
        "partitions": partitions,
        "flush": None if flush is None else flush.value,
        "flush_interval_ms": flush_interval_ms,
        "retention_bytes": retention_bytes,
        "segment_bytes": segment_bytes,
    }
    changes = {key: value for key, value in asked.items() if value is not None}
    if not changes:
        raise CommandFailed("nothing to change: give at least one option, see `tidelog topic alter --help`", EXIT_USAGE)
    topic = with_client(bootstrap, lambda client: client.alter_topic(name, **changes))
    if as_json:
        print_json(topic_document(topic))
    else:
        sys.stdout.write(f"altered topic {topic.name}\n")


def delete(
    name: NameArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a topic and all its records, for good."""
    if not yes:
        if not sys.stdin.isatty():
            raise CommandFailed("deleting is for good: confirm with --yes", EXIT_USAGE)
        if not typer.confirm(f"Delete topic {name} and all its records?"):
            raise CommandFailed("nothing was deleted")
    with_client(bootstrap, lambda client: client.delete_topic(name))
    sys.stdout.write(f"deleted topic {name}\n")


def compact(
    name: NameArgument,
    *,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this one.", show_default=False)] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Compact a topic now, up to its newest record; ends when it is done."""
    asked = None if partition is None else [partition]
    done = with_client(bootstrap, lambda client: client.compact_topic(name, asked))
    if as_json:
        rows = [{"partition": each, "below": one.below, "size_bytes": one.size_bytes} for each, one in done.items()]
        print_json({"name": name, "partitions": rows})
    else:
        table = [(each, one.below, bytes_text(one.size_bytes)) for each, one in done.items()]
        print_table(("partition", "compacted below", "size"), table)


def topic_document(topic: Topic, *, copies: bool = False) -> dict[str, Any]:
    """Return a topic as the JSON object that every command prints; with the copies of each partition if asked to."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "flush": topic.flush,
        "flush_interval_ms": topic.flush_interval_ms,
        "retention_bytes": topic.retention_bytes,
        "segment_bytes": topic.segment_bytes,
        "replication_factor": topic.replication_factor,
        "engine": topic.engine,
        "partitions": [
            {
                "partition": p.partition,
                "owner": p.owner,
                "epoch": p.epoch,
                "placement": list(p.placement),
                "log_start_offset": p.log_start_offset,
                "high_watermark": p.high_watermark,
                "size_bytes": p.size_bytes,
                "state": p.state,
            }
            | ({"replicas": copy_documents(p)} if copies else {})
            for p in topic.partitions
        ],
    }


def copy_count_text(topic: Topic) -> str:
    """Return how many copies there are, and how many there will be when nodes join."""
    there = max((len(partition.placement) for partition in topic.partitions), default=0)
    wanted = topic.replication_factor
    return str(wanted) if there in {wanted, 0} else f"{there} (of {wanted}, for lack of nodes)"


def _retention_text(retention_bytes: int) -> str:
    return bytes_text(retention_bytes) if retention_bytes else "everything"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
