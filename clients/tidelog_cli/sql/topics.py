"""The topics of a statement in the cluster: their current offsets, and waiting for new records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.offset_extents import Extent, Since, extents_of
from tidelog_cli.base.output import note
from tidelog_cli.base.session import place_and_options, with_client
from tidelog_cli.sql.columns import FIELDS_MAX, Shape, ValueKind
from tidelog_cli.sql.tables import Cluster, TopicTable, no_such_table
from tidelog_proto.names import INTERNAL_PREFIX

if TYPE_CHECKING:
    from tidelog import Client
    from tidelog_proto.schema.topic_schema import Schema

LOOK_EVERY_S: Final = 1.0
"""Polling interval of `Topics.wait_for_more`."""


class Topics:
    """Looks up the topics that a statement names, with their offsets and columns, and waits for new records.

    Args:
        bootstrap: the value of --bootstrap.
        kinds: kinds of values by topic; the key None is for all other topics.
        sample: approximate number of records that are sampled.
        quote: the engine's quote for names.

    Attributes:
        used: the offset ranges of the last result, by topic.
        empty: topics without records so far, whose columns are unknown.
        mixed: why fields of a topic are not columns, by topic.
    """

    def __init__(
        self, bootstrap: str, since: Since, kinds: Mapping[str | None, ValueKind], sample: int, quote: str = '"'
    ) -> None:
        self.used: dict[str, Extent] = {}
        self.empty: set[str] = set()
        self.mixed: dict[str, str] = {}
        self._bootstrap = bootstrap
        self._since: Since = since
        self._kinds = kinds
        self._sample = sample
        self._quote = quote
        self._shapes: dict[str, Shape] = {}
        self._ids: dict[str, bytes] = {}
        """Ids of the topics in `used`."""
        self._read: dict[str, Extent] = {}
        """Offset ranges of records that were read and are not read again."""

    def names(self) -> list[str]:
        """Return the names of all topics except internal ones, sorted."""
        return sorted(topic.name for topic in with_client(self._bootstrap, lambda client: client.topics()))

    def provide(self, names: Sequence[str], optional: Sequence[str] = ()) -> list[TopicTable]:
        """Return topics by name, with their current offsets. See `Provide`."""
        import asyncio  # noqa: PLC0415 - a statement without topics starts faster

        async def work(client: Client) -> tuple[dict[str, Extent], dict[str, Schema]]:
            listed = await client.topics(internal=True)
            known = {topic.name: topic.topic_id for topic in listed}
            for name in names:
                if name not in known:
                    user_topics = (one for one in known if not one.startswith(INTERNAL_PREFIX))
                    raise no_such_table(name, user_topics, self._quote)
            there = [name for name in optional if name in known]
            ids = {name: known[name] for name in (*names, *there)}
            extents = await extents_of(client, ids, self._since)
            for name in ids.keys() & self._read.keys():
                if ids[name] == self._ids[name]:  # Otherwise the topic was recreated, and is read from its beginning.
                    extents[name] = extents[name].after(self._read[name])
            self._ids = ids
            # Ends first, schemas second: all records below the ends have a schema that is known then.
            typed = [topic.name for topic in listed if topic.name in ids and topic.schema_number]
            schemas = await asyncio.gather(*map(client.schema, typed))
            return extents, dict(zip(typed, schemas, strict=True))

        if not names and not optional:
            return []
        extents, schemas = with_client(self._bootstrap, work)
        self.used |= extents
        cluster = Cluster(*place_and_options(self._bootstrap))
        if misnamed := schemas.keys() & self._kinds.keys():
            raise CommandFailed(
                f"--values {min(misnamed)}={self._kinds[min(misnamed)]}: the topic is typed, and its columns are the "
                "fields of its schema; omit the option",
                EXIT_USAGE,
            )
        return [
            TopicTable(cluster, extent, None, schemas[name])
            if name in schemas
            else TopicTable(cluster, extent, self._shape(cluster, extent))
            for name, extent in extents.items()
        ]

    def wait_for_more(self, *, only_new: bool = False) -> None:
        """Wait until one of the topics has more records.

        Args:
            only_new: whether the next result only reads records that no earlier one has read.
        """
        import asyncio  # noqa: PLC0415 - a statement without topics starts faster

        async def work(client: Client) -> None:
            while True:
                now = await extents_of(client, self.used, "latest")
                if any(now[name].ends != extent.ends for name, extent in self.used.items()):
                    return
                await asyncio.sleep(LOOK_EVERY_S)

        with_client(self._bootstrap, work)
        self._read = self.used if only_new else {}
        self.used = {}

    def _shape(self, cluster: Cluster, extent: Extent) -> Shape:
        name = extent.topic
        if name not in self._shapes:
            shape = cluster.look(extent, self._kinds.get(name, self._kinds.get(None)), self._sample)
            if shape.hidden:
                fields = ", ".join(map(repr, shape.hidden))
                note(
                    f"{name}: fields {fields} are not columns, because a name is empty or equals, ignoring case, that "
                    f"of a column, or there are more than {FIELDS_MAX:,} fields; read them from the column value"
                )
            if not extent.records:
                self.empty.add(name)
                return shape  # the topic has no records to sample
            self.empty.discard(name)
            for line in shape.told():
                note(f"{name}: {line}")
            if reason := shape.missing_fields(name):
                self.mixed[name] = reason
            self._shapes[name] = shape
        return self._shapes[name]
