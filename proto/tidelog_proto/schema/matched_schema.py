"""Making the next schema of a topic of a full description without ids: fields are matched by name, once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from tidelog_proto.schema.evolution_rules import Change, changes_between
from tidelog_proto.schema.field_paths import field_at
from tidelog_proto.schema.fields import Field, Path, Role, path_text
from tidelog_proto.schema.next_schema import with_ids
from tidelog_proto.schema.schema_error import SchemaError, refuse, shown
from tidelog_proto.schema.topic_schema import Schema


def matched_schema(
    schema: Schema, fields: Sequence[Field], *, rename: Mapping[str, str], drop: Collection[str]
) -> tuple[Schema, tuple[Change, ...]]:
    """Return the schema that follows `schema` and has the given fields, and the list of changes.

    Fields keep their role, and their description if `fields` has no other. The time stays required.

    Args:
        fields: a proposal, without ids and roles.
        rename: new names of fields of `schema`, by path.
        drop: paths of fields of `schema` that `fields` lacks.

    Raises:
        SchemaError: a field is missing and neither dropped nor renamed, or a change is not allowed.
    """
    matching = _Matching(schema, rename, drop)
    matched = matching.level(schema.fields, fields, ())
    refuse(matching.faults)
    new = Schema(schema.number + 1, next(matching.ids), matched)
    return new, changes_between(schema, new)


class _Matching:
    def __init__(self, schema: Schema, rename: Mapping[str, str], drop: Collection[str]) -> None:
        self.faults: list[str] = []
        self.ids = count(schema.next_field_id)
        self._renamed = {found.id: name for path, name in rename.items() if (found := self._look(schema, path))}
        self._dropped = {found.id for path in drop if (found := self._look(schema, path))}

    def level(self, old: Sequence[Field], new: Sequence[Field], path: Path) -> tuple[Field, ...]:
        """Return the fields of a level of the proposal with ids."""
        given = {field.name for field in new}
        before: dict[str, Field] = {}
        for field in old:
            name = self._renamed.get(field.id, field.name)
            text = path_text((*path, field.name))
            self._check(field, name, given, text)
            if field.id in self._dropped:
                continue
            if name in before:
                self.faults.append(f"fields {shown(before[name].name)} and {shown(text)} both become {shown(name)}")
            before[name] = field
        return tuple(self._field(before.get(field.name), field, (*path, field.name)) for field in new)

    def _field(self, old: Field | None, new: Field, path: Path) -> Field:
        if old is None:
            (added,) = with_ids([new], self.ids)
            return added
        if old.type.kind is new.type.kind:
            children = self.level(old.children, new.children, path)
        else:
            children = with_ids(new.children, self.ids)
        return replace(
            new,
            id=old.id,
            role=old.role,
            doc=new.doc or old.doc,
            required=new.required or old.role is Role.TIME,
            children=children,
        )

    def _check(self, field: Field, name: str, given: Collection[str], path: str) -> None:
        if field.id in self._dropped:
            if name in given:
                self.faults.append(f"field {shown(path)} is dropped, and the new schema has it; do one of the two")
        elif field.id in self._renamed and name not in given:
            self.faults.append(
                f"field {shown(path)} is renamed to {shown(name)}, and the new schema lacks that; add it"
            )
        elif name not in given:
            self.faults.append(f"field {shown(path)} is missing in the new schema; drop it or rename it explicitly")

    def _look(self, schema: Schema, path: str) -> Field | None:
        try:
            return field_at(schema.fields, path)
        except SchemaError as error:
            self.faults += error.faults
            return None
