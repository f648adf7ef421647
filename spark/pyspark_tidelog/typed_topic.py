"""Lookup of the typed topic that a load reads, or that rows are written to."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_tidelog.errors import OptionError, TidelogSourceError
from pyspark_tidelog.options import ReadOptions
from tidelog.errors import UnknownSchemaError, UnknownTopicError
from tidelog.sync import Client
from tidelog_proto.schema.topic_schema import Schema


@dataclass(frozen=True, slots=True)
class TypedTopic:
    """A typed topic and the schema whose fields are the columns. Pickled for planning processes and tasks."""

    name: str
    topic_id: bytes
    schema: Schema

    def check_id(self, topic_id: bytes) -> None:
        """Refuse another topic of the same name, whose schemas have other fields.

        Raises:
            TidelogSourceError: the topic was deleted and created again.
        """
        if topic_id != self.topic_id:
            raise TidelogSourceError(
                f"topic {self.name!r} was deleted and recreated after the DataFrame was created, so it may have other "
                "columns: create the DataFrame again; for a stream, restart the query."
            )


def typed_topic(client: Client, name: str, number: int | None = None) -> TypedTopic | None:
    """Return a topic with its newest schema, or the one of a number; None if it has no schema.

    Raises:
        OptionError: the topic has no schema of this number.
        UnknownTopicError: the topic does not exist.
        TidelogError: a request failed.
    """
    found = client.topic(name)
    if not found.schema_number:
        return None
    try:
        return TypedTopic(name, found.topic_id, client.schema(name, number))
    except UnknownSchemaError as error:
        raise OptionError(
            f"option 'schemaNumber': topic {name!r} has no schema {number}; give 1 to {found.schema_number}."
        ) from error


def topic_to_read(client: Client, options: ReadOptions) -> TypedTopic | None:
    """Return the typed topic that options name; None if it is not typed, does not exist, or is not named alone.

    Several topics have the columns of records only, even if they are typed: their fields differ.

    Raises:
        OptionError, TidelogError: as `typed_topic`.
    """
    name = options.single_topic
    if name is None:
        return None
    try:
        return typed_topic(client, name, options.schema_number)
    except UnknownTopicError:
        return None  # Planning reports it. A stream may begin before its topic exists.
