"""The rules that the fields of one schema follow. Each fault names the field, the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from tidelog_proto.limits import (
    FIELD_DOC_BYTES_MAX,
    FIELD_ID_MAX,
    FIELD_NAME_BYTES_MAX,
    SCHEMA_ARRAYS_AND_BUFFERS_MAX,
    SCHEMA_BUFFERS_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_LEAVES_MAX,
)
from tidelog_proto.schema.data_types import DECIMAL_PRECISION_MAX, INTEGERS, NESTED, DataType, Kind
from tidelog_proto.schema.fields import ITEM, Field, Path, Role, fields_below, path_text
from tidelog_proto.schema.schema_error import shown

FIELDS_MAX: Final = SCHEMA_DEPTH_MAX * SCHEMA_LEAVES_MAX
"""Maximum number of fields with lists and structs: each of these has a leaf below it, in at most so many levels."""

ROLE_KINDS: Final = {
    Role.NONE: frozenset(Kind),
    Role.TIME: frozenset({Kind.TIMESTAMP_UTC}),
    Role.KEY: frozenset({Kind.STRING, Kind.BINARY, Kind.DATE32, Kind.TIMESTAMP, Kind.TIMESTAMP_UTC, *INTEGERS}),
    Role.TAG: frozenset({Kind.STRING}),
}
"""The types that a field of each role may have."""

_BUFFERS: Final = {Kind.STRUCT: 1, Kind.STRING: 3, Kind.BINARY: 3}
"""Buffers of an Arrow array: which values are null, offsets of strings and lists, data. Other kinds have 2."""
_UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\uffff\U000e0000-\U000e0fff]"
)
"""Characters that hide or reorder others. A list of Unicode categories would depend on the version of Python."""


def faults_of_fields(fields: Sequence[Field], next_field_id: int) -> Iterator[str]:
    """Yield what is wrong with the fields of a schema, after bounded work."""
    if not fields:
        yield "the schema has no fields; add at least one"
        return
    counts = _Counts()
    yield from _faults_of_level(fields, (), counts)
    if counts.fields > FIELDS_MAX or counts.leaves > SCHEMA_LEAVES_MAX:
        yield (
            f"the schema has more than {SCHEMA_LEAVES_MAX} fields that hold values; remove fields, or divide them "
            "among topics"
        )
        return
    yield from _faults_of_ids(counts.ids, next_field_id)
    yield from _faults_of_roles(fields)
    yield from _faults_of_buffers(fields)


class _Counts:
    """The fields that a walk has reached; it stops after `FIELDS_MAX` fields."""

    def __init__(self) -> None:
        self.fields = 0
        self.leaves = 0
        self.ids: list[tuple[str, int]] = []

    @property
    def are_too_many(self) -> bool:
        return self.fields > FIELDS_MAX or self.leaves > SCHEMA_LEAVES_MAX


def _faults_of_level(fields: Sequence[Field], parent: Path, counts: _Counts) -> Iterator[str]:
    """Yield the faults of the children of one field, and of everything below them."""
    names: dict[str, str] = {}
    for field in fields:
        if counts.are_too_many:
            return
        path = (*parent, field.name)
        text = f"field {shown(path_text(path))}"
        counts.fields += 1
        counts.leaves += field.is_leaf
        counts.ids.append((text, field.id))
        yield from _faults_of_name(field.name, text)
        folded = field.name.casefold()
        if folded in names:
            yield (
                f"{text}: {shown(names[folded])} has the same name, ignoring case; rename one of them, because SQL "
                "engines ignore case"
            )
        names[folded] = field.name
        yield from _faults_of_type(field.type, text)
        yield from _faults_of_role(field, text, is_nested=bool(parent))
        yield from _faults_of_doc(field.doc, text)
        yield from _faults_of_children(field, path, text, counts)


def _faults_of_name(name: str, text: str) -> Iterator[str]:
    if not name:
        yield f"{text}: the name is empty; give the field a name"
    elif name.startswith("_"):
        yield f"{text}: names that begin with _ are reserved for columns of records; choose another name"
    if bad := _UNSEEN.search(name):
        yield f"{text}: the name has the character U+{ord(bad[0]):04X}; use visible characters only"
    elif (size := len(name.encode())) > FIELD_NAME_BYTES_MAX:
        yield f"{text}: the name has {size} bytes of UTF-8; use at most {FIELD_NAME_BYTES_MAX}"
    if name != name.strip():
        yield f"{text}: the name begins or ends with a space; remove it"


def _faults_of_type(data_type: DataType, text: str) -> Iterator[str]:
    kind, precision, scale = data_type
    if kind is not Kind.DECIMAL128:
        if precision or scale:
            yield f"{text}: {data_type} has a precision or scale of {precision} and {scale}; only decimals have them"
    elif not 1 <= precision <= DECIMAL_PRECISION_MAX:
        yield f"{text}: {data_type} has a precision of {precision}; use 1 to {DECIMAL_PRECISION_MAX} digits"
    elif not 0 <= scale <= precision:
        yield f"{text}: {data_type} has a scale of {scale}; use 0 to the precision, {precision}"


def _faults_of_role(field: Field, text: str, *, is_nested: bool) -> Iterator[str]:
    if field.role is Role.NONE:
        return
    role = field.role.name.lower()
    if is_nested:
        yield f"{text}: only fields of the top level may be the {role}; move the field there"
    kinds = ROLE_KINDS[field.role]
    if field.type.kind not in kinds:
        names = ", ".join(str(DataType(kind)) for kind in sorted(kinds))
        yield f"{text}: the {role} cannot have the type {field.type}; choose a field with one of these: {names}"
    if field.role is Role.TIME and not field.required:
        yield f"{text}: each record has a time, and the field is optional; make it required"


def _faults_of_doc(doc: str, text: str) -> Iterator[str]:
    size = len(doc.encode("utf-8", "surrogatepass"))
    if size > FIELD_DOC_BYTES_MAX:
        yield f"{text}: the description has {size} bytes of UTF-8; use at most {FIELD_DOC_BYTES_MAX}"
    if any("\ud800" <= char <= "\udfff" for char in doc):
        yield f"{text}: the description has half a surrogate pair; use valid Unicode"


def _faults_of_children(field: Field, path: Path, text: str, counts: _Counts) -> Iterator[str]:
    kind = field.type.kind
    if kind not in NESTED:
        if field.children:
            yield f"{text}: {field.type} has {len(field.children)} fields below it; only lists and structs may"
        return
    if not field.children:
        what = f"an item, named {ITEM}" if kind is Kind.LIST else "at least one field"
        yield f"{text}: the {field.type} is empty; give it {what}"
    elif kind is Kind.LIST and [child.name for child in field.children] != [ITEM]:
        names = [child.name for child in field.children[:3]]
        yield f"{text}: a list has one field below it, named {ITEM}, got {shown(names)}; use a list of structs"
    elif len(path) >= SCHEMA_DEPTH_MAX:
        yield (
            f"{text}: the fields below it would be at level {len(path) + 1}; at most {SCHEMA_DEPTH_MAX} levels are "
            "allowed, so flatten it"
        )
    else:
        yield from _faults_of_level(field.children, path, counts)


def _faults_of_ids(ids: Sequence[tuple[str, int]], next_field_id: int) -> Iterator[str]:
    if not 1 <= next_field_id <= FIELD_ID_MAX:
        yield f"the next field id is {next_field_id}; it must be 1 to {FIELD_ID_MAX}"
    owners: dict[int, str] = {}
    for text, number in ids:
        if not 1 <= number < next_field_id:
            yield f"{text}: the id is {number}; it must be 1 to {next_field_id - 1}, below the next field id"
        elif number in owners:
            yield f"{text}: {owners[number]} has the same id, {number}; ids must be unique"
        owners.setdefault(number, text)


def _faults_of_roles(fields: Sequence[Field]) -> Iterator[str]:
    for role in (Role.TIME, Role.KEY, Role.TAG):
        names = [field.name for field in fields if field.role is role]
        if len(names) > 1:
            yield f"fields {shown(names)} are each the {role.name.lower()}; choose one of them"
    if all(field.role is not Role.NONE for field in fields):
        yield "each field is the time, the key or the tag; add a field without such a role"


def _faults_of_buffers(fields: Sequence[Field]) -> Iterator[str]:
    below = list(fields_below([field for field in fields if field.role is Role.NONE]))
    buffers = sum(_BUFFERS.get(field.type.kind, 2) for field in below)
    if buffers > SCHEMA_BUFFERS_MAX or len(below) + buffers > SCHEMA_ARRAYS_AND_BUFFERS_MAX:
        yield (
            f"the schema has {len(below)} Arrow arrays in {buffers} buffers; at most {SCHEMA_BUFFERS_MAX} buffers, and "
            f"{SCHEMA_ARRAYS_AND_BUFFERS_MAX} arrays and buffers, are allowed: remove lists, structs or other fields"
        )
