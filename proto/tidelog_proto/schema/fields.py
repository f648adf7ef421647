"""A field of a schema, and walks through its children."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tidelog_proto.schema.data_types import NESTED, DataType

ITEM: Final = "item"
"""Name of the one child of a list."""

Path = tuple[str, ...]
"""The names from a top-level field to a field."""


class Role(IntEnum):
    """The column of a batch that holds a field; `NONE` is the struct in the column `value`.

    The numbers are those of the canonical encoding and of `schema.proto`; they never change.
    """

    NONE = 0
    TIME = 1
    KEY = 2
    TAG = 3


@dataclass(frozen=True, slots=True)
class Field:
    """A field: at the top level a column of the topic, else a child of a struct or the item of a list.

    A field is checked as part of its schema only.

    Attributes:
        id: identifies the field in all schemas of its topic; 0 in a proposal, in which no field has an id yet.
        required: a value is never null.
        children: the fields of a struct, or the item of a list.
        doc: a description, for people.
    """

    id: int
    name: str
    type: DataType
    required: bool = False
    role: Role = Role.NONE
    children: tuple[Field, ...] = ()
    doc: str = ""

    @property
    def is_leaf(self) -> bool:
        """Whether the field holds values itself."""
        return self.type.kind not in NESTED


def fields_below(fields: Sequence[Field]) -> Iterator[Field]:
    """Yield fields and their descendants, each parent before its children."""
    for field in fields:
        yield field
        yield from fields_below(field.children)


def paths_below(fields: Sequence[Field], parent: Path = ()) -> Iterator[tuple[Path, Field]]:
    """Yield fields and their descendants with their paths, each parent before its children."""
    for field in fields:
        path = (*parent, field.name)
        yield path, field
        yield from paths_below(field.children, path)


def path_text(path: Path) -> str:
    """Return a path as people write it: the names with dots between them."""
    return ".".join(path)
