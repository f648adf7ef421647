"""Schemas that other languages can express."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st
from tests.proto.schemas import schemas

from tidelog_proto.schema.fields import ITEM, Field, Role
from tidelog_proto.schema.topic_schema import Schema


def roles_of(schema: Schema) -> dict[str, str]:
    """Return the roles of a schema as a caller gives them: no description of fields has them."""
    return {field.role.name.lower(): field.name for field in schema.fields if field.role is not Role.NONE}


def _renamed(fields: Sequence[Field], words: Sequence[str]) -> tuple[Field, ...]:
    found = []
    for at, field in enumerate(fields):
        name = ITEM if field.name == ITEM else f"{words[at % len(words)]}{at if at >= len(words) else ''}"
        # Only fields with a name have a description.
        doc = "" if field.name == ITEM else field.doc
        found.append(replace(field, name=name, doc=doc, children=_renamed(field.children, words)))
    return tuple(found)


named_schemas: st.SearchStrategy[Schema] = st.builds(
    lambda schema, words: replace(schema, fields=_renamed(schema.fields, words)),
    schemas(),
    st.permutations(["date", "datetime", "int", "str", "a", "Decimal", "Field", "Annotated", "list", "A", "field"]).map(
        lambda words: list({word.casefold(): word for word in words}.values())
    ),
)
"""Schemas whose names are words of Python, among them those of types."""
