"""Making the first schema of a topic, and the next one by changes of single fields."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

from tidelog_proto.schema.data_types import STRUCT, DataType
from tidelog_proto.schema.evolution_rules import Change, changes_between
from tidelog_proto.schema.field_paths import field_at
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.schema_error import SchemaError, refuse, shown
from tidelog_proto.schema.topic_schema import Schema

_T = TypeVar("_T")


def first_schema(
    fields: Sequence[Field], *, time: str | None = None, key: str | None = None, tag: str | None = None
) -> Schema:
    """Return schema 1 of a topic.

    Args:
        fields: a proposal, without ids and roles.
        time: name of the field that is the records' time; it becomes required.
        key: name of the field that is the records' key.
        tag: name of the field that is the records' tag.

    Raises:
        SchemaError: a rule is violated, or a role names a field that does not exist.
    """
    names = {Role.TIME: time, Role.KEY: key, Role.TAG: tag}
    refuse(_faults_of_role_names(fields, names))
    ids = count(1)
    numbered = with_ids(fields, ids)
    roles = {name: role for role, name in names.items() if name is not None}
    given = tuple(_with_role(each, roles.get(each.name, Role.NONE)) for each in numbered)
    return Schema(1, next(ids), given)


def with_ids(fields: Sequence[Field], ids: count[int]) -> tuple[Field, ...]:
    """Return fields that have the next ids, each parent before its children."""
    return tuple(replace(each, id=next(ids), children=with_ids(each.children, ids)) for each in fields)


def _with_role(given: Field, role: Role) -> Field:
    return replace(given, role=role, required=given.required or role is Role.TIME)


def _faults_of_role_names(fields: Sequence[Field], names: Mapping[Role, str | None]) -> Iterable[str]:
    known = {each.name for each in fields}
    owners: dict[str, Role] = {}
    for role, name in names.items():
        if name is None:
            continue
        if name not in known:
            yield f"the {role.name.lower()} is {shown(name)}, and no field of the top level has this name; name a field"
        elif name in owners:
            yield f"field {shown(name)} is the {owners[name].name.lower()} and the {role.name.lower()}; choose one"
        owners[name] = role


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes of single fields. All paths are those of the schema before the changes.

    Attributes:
        add: new fields without ids, each with the path of the struct that gets it; "" for the top level.
        rename: new names, by path.
        widen: new types, by path.
        drop: paths.
        optional: paths of fields that are required no longer.
        describe: new descriptions, by path.
    """

    add: Sequence[tuple[str, Field]] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    widen: Mapping[str, DataType] = field(default_factory=dict)
    drop: Sequence[str] = ()
    optional: Sequence[str] = ()
    describe: Mapping[str, str] = field(default_factory=dict)


def edited_schema(schema: Schema, edits: Edits) -> tuple[Schema, tuple[Change, ...]]:
    """Return the schema that follows `schema` after some changes, and the list of changes.

    Raises:
        SchemaError: a path names no field, or a change is not allowed; all faults of one kind are listed.
    """
    found = _Found(schema)
    changed = _Changed(
        added=found.by_parent(edits.add),
        names=found.by_id(edits.rename),
        types=found.by_id(edits.widen),
        docs=found.by_id(edits.describe),
        dropped=found.by_id(dict.fromkeys(edits.drop, None)).keys(),
        optional=found.by_id(dict.fromkeys(edits.optional, None)).keys(),
    )
    refuse(found.faults)
    ids = count(schema.next_field_id)
    fields = changed.level(schema.fields, 0, ids)
    new = Schema(schema.number + 1, next(ids), fields)
    return new, changes_between(schema, new)


class _Found:
    """Looks up the fields that edits name, and gathers faults."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.faults: list[str] = []

    def by_id(self, by_path: Mapping[str, _T]) -> dict[int, _T]:
        found: dict[int, _T] = {}
        for path, value in by_path.items():
            if (each := self._look(path)) is not None:
                found[each.id] = value
        return found

    def by_parent(self, added: Iterable[tuple[str, Field]]) -> dict[int, list[Field]]:
        found: dict[int, list[Field]] = {}
        for path, new in added:
            parent = self._look(path) if path else None
            if parent is not None and parent.type != STRUCT:
                self.faults.append(f"field {shown(path)} is a {parent.type}; fields are added to structs")
            found.setdefault(parent.id if parent else 0, []).append(new)
        return found

    def _look(self, path: str) -> Field | None:
        try:
            return field_at(self._schema.fields, path)
        except SchemaError as error:
            self.faults += error.faults
            return None


@dataclass(frozen=True, slots=True)
class _Changed:
    """The changes, by the ids of fields; 0 for the top level."""

    added: Mapping[int, Sequence[Field]]
    names: Mapping[int, str]
    types: Mapping[int, DataType]
    docs: Mapping[int, str]
    dropped: Collection[int]
    optional: Collection[int]

    def level(self, fields: Sequence[Field], parent: int, ids: count[int]) -> tuple[Field, ...]:
        kept = tuple(self._field(each, ids) for each in fields if each.id not in self.dropped)
        return (*kept, *with_ids(self.added.get(parent, ()), ids))

    def _field(self, old: Field, ids: count[int]) -> Field:
        return replace(
            old,
            name=self.names.get(old.id, old.name),
            type=self.types.get(old.id, old.type),
            doc=self.docs.get(old.id, old.doc),
            required=old.required and old.id not in self.optional,
            children=self.level(old.children, old.id, ids),
        )
