"""The changes that may lead from a schema to the next one. Fields are compared by id.

Every step that is allowed keeps all older records readable under the new schema. A schema that follows the newest one
follows all earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidelog_proto.schema.data_types import LIST
from tidelog_proto.schema.fields import Field, Path, Role, fields_below, path_text
from tidelog_proto.schema.schema_error import SchemaError, refuse, shown
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.widening import widens

_TOP: Final = 0
"""In place of the id of a parent, for fields of the top level."""


class Change(NamedTuple):
    """One difference between a schema and the next.

    Attributes:
        what: "added", "dropped", "renamed", "reordered", "widened", "made optional" or "described".
        path: names of the field, in the new schema unless it was dropped; empty for the order of the top level.
        detail: the values before and after.
    """

    what: str
    path: Path
    detail: str

    def __str__(self) -> str:
        name = shown(path_text(self.path)) if self.path else "the schema"
        return f"{name} {self.what}" + (f": {self.detail}" if self.detail else "")


def changes_between(old: Schema, new: Schema) -> tuple[Change, ...]:
    """Return how the newest schema of a topic changes, if the new one may follow it.

    Raises:
        SchemaError: it may not; each fault names the field, the reason and the remedy.
    """
    if new.number != old.number + 1:
        raise SchemaError(f"the new schema has the number {new.number}; the next one is {old.number + 1}")
    if new.next_field_id < old.next_field_id:
        raise SchemaError(f"the next field id is {new.next_field_id}; it was {old.next_field_id}, and never decreases")
    comparison = _Comparison(old, new)
    steps = list(comparison.of_levels(old.fields, new.fields, _TOP, ()))
    refuse(step for step in steps if isinstance(step, str))
    changes = tuple(step for step in steps if isinstance(step, Change))
    if not changes:
        raise SchemaError(f"the new schema equals schema {old.number}; change something, or keep that schema")
    return changes


def _parents(fields: Sequence[Field], parent: int = _TOP) -> Iterator[tuple[int, int]]:
    """Yield the id of each field and that of its parent."""
    for field in fields:
        yield field.id, parent
        yield from _parents(field.children, field.id)


_Step = Change | str
"""A result of the comparison: a change, or the text of a fault."""


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self._next_id = old.next_field_id
        self._old_parents = dict(_parents(old.fields))
        self._new_parents = dict(_parents(new.fields))

    def of_levels(self, old: Sequence[Field], new: Sequence[Field], parent: int, path: Path) -> Iterator[_Step]:
        """Yield the steps of the fields below one field, or of the top level."""
        before = {field.id: field for field in old}
        for field in new:
            if field.id in before:
                yield from self._of_field(before[field.id], field, path)
            else:
                yield from self._of_added(field, (*path, field.name))
        for field in old:
            if self._new_parents.get(field.id) != parent:
                yield from self._of_dropped(field, (*path, field.name))
        kept = {field.id for field in new if field.id in before}
        if [field.id for field in old if field.id in kept] != [field.id for field in new if field.id in kept]:
            names = ", ".join(field.name for field in new)
            yield Change("reordered", path, names)

    def _of_field(self, old: Field, new: Field, parent: Path) -> Iterator[_Step]:
        path = (*parent, new.name)
        name = f"field {shown(path_text((*parent, old.name)))}"
        if new.name != old.name:
            yield Change("renamed", path, f"from {shown(old.name)} to {shown(new.name)}")
        if new.role is not old.role:
            yield (
                f"{name}: its role changes from {old.role.name.lower()} to {new.role.name.lower()}; the roles of a "
                "topic are permanent, so create a new topic"
            )
        if new.required and not old.required:
            yield f"{name}: it becomes required, and records may have no value; keep it optional"
        elif old.required and not new.required:
            yield Change("made optional", path, "")
        if new.doc != old.doc:
            yield Change("described", path, shown(new.doc))
        if new.type == old.type == LIST and [child.id for child in new.children] != [
            child.id for child in old.children
        ]:
            yield f"{name}: its item is replaced by another field; add a new list instead"
        elif new.type == old.type:
            yield from self.of_levels(old.children, new.children, old.id, path)
        elif widens(old.type, new.type):
            yield Change("widened", path, f"from {old.type} to {new.type}")
        else:
            yield (
                f"{name}: its type changes from {old.type} to {new.type}; fields change to wider types only (int8 to "
                "int64, float32 to float64, more digits of a decimal), so add a new field"
            )

    def _of_added(self, field: Field, path: Path) -> Iterator[_Step]:
        name = f"field {shown(path_text(path))}"
        if field.required:
            yield f"{name}: it is new and required, and older records have no value; make it optional"
        if field.role is not Role.NONE:
            yield (
                f"{name}: it is new and the {field.role.name.lower()}; the roles of a topic are permanent, so add it "
                "without one, or create a new topic"
            )
        for below in fields_below([field]):
            if below.id in self._old_parents:
                yield (
                    f"{name}: the field with the id {below.id} moves to it; fields stay where they are, so add a new "
                    "field and drop that one"
                )
            elif below.id < self._next_id:
                yield (
                    f"{name}: the id {below.id} belonged to a dropped field; use ids from {self._next_id} on, so that "
                    "older records are not read as this field"
                )
        yield Change("added", path, str(field.type))

    def _of_dropped(self, field: Field, path: Path) -> Iterator[_Step]:
        if field.role is not Role.NONE:
            yield (
                f"field {shown(path_text(path))}: it is dropped and the {field.role.name.lower()}; the roles of a "
                "topic are permanent, so keep it, or create a new topic"
            )
        yield Change("dropped", path, str(field.type))
