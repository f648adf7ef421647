"""Schemas that users describe: the first one of a topic, and the next one by changes or by a full description."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from tidelog.errors import InvalidRequestError
from tidelog.schemas.any_input import proposal_of
from tidelog_proto.schema.data_types import STRUCT
from tidelog_proto.schema.evolution_rules import Change
from tidelog_proto.schema.field_paths import field_at
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.matched_schema import matched_schema
from tidelog_proto.schema.next_schema import Edits, edited_schema, first_schema
from tidelog_proto.schema.proposal import Proposal
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.type_text import field_of_text, type_of_text

_log: Final = logging.getLogger("tidelog.client")


class SchemaChanges(TypedDict, total=False):
    """Changes of single fields. Paths have dots between names, such as `place.city`.

    Attributes:
        add: new fields, such as "gate string" or "place.zip int32".
        rename: new names, by path.
        widen: new types, by path, such as "int64".
        drop: paths.
        optional: paths of fields that are required no longer.
        describe: new descriptions, by path.
    """

    add: Sequence[str]
    rename: Mapping[str, str]
    widen: Mapping[str, str]
    drop: Sequence[str]
    optional: Sequence[str]
    describe: Mapping[str, str]


class SchemaEdits(NamedTuple):
    """A full description of a schema, None without one, and changes of single fields; see `SchemaChanges`."""

    schema: Any = None
    add: Sequence[str] = ()
    rename: Mapping[str, str] = {}
    widen: Mapping[str, str] = {}
    drop: Sequence[str] = ()
    optional: Sequence[str] = ()
    describe: Mapping[str, str] = {}

    def next_of(self, before: Schema) -> tuple[Schema, tuple[Change, ...]]:
        """Return the schema that follows `before`, and the list of changes.

        Raises:
            SchemaError: a change is not allowed, or is given together with a full description that contains it.
        """
        if self.schema is None:
            edits = Edits(
                add=[_placed(before, text) for text in self.add],
                rename=self.rename,
                widen={path: type_of_text(text) for path, text in self.widen.items()},
                drop=self.drop,
                optional=self.optional,
                describe=self.describe,
            )
            return edited_schema(before, edits)
        if self.add or self.widen or self.optional or self.describe:
            raise SchemaError(
                "a full description has all fields and types, so only rename and drop go with it; put other changes "
                "into the description"
            )
        return matched_schema(before, proposal_of(self.schema).fields, rename=self.rename, drop=self.drop)


def first_schema_of(
    described: Any, *, key: str | None = None, time: str | None = None, tag: str | None = None
) -> Schema:
    """Return the first schema of a topic; types that change are logged.

    Args:
        described: see `proposal_of`.
        key, time, tag: names of the fields with these roles.

    Raises:
        InvalidRequestError: no schema can be made of the description.
    """
    try:
        proposal: Proposal = proposal_of(described)
        schema = first_schema(proposal.fields, key=key, time=time, tag=tag)
    except (SchemaError, OSError) as error:
        raise InvalidRequestError(f"schema: {error}") from error
    for note in proposal.notes:
        _log.info("schema: %s", note)
    return schema


def _placed(before: Schema, text: str) -> tuple[str, Field]:
    """Return a new field with the path of its struct; "" for the top level."""
    name, _, rest = text.strip().partition(" ")
    parent, dot, own = name.rpartition(".")
    if dot:
        try:
            if field_at(before.fields, parent).type == STRUCT:
                return parent, field_of_text(f"{own} {rest}")
        except SchemaError:
            pass  # a name with a dot
    return "", field_of_text(text)
