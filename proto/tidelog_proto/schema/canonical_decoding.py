"""Reading the canonical encoding of a schema. The bytes may come from anywhere."""

from __future__ import annotations

from typing import Final

from tidelog_proto.limits import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX
from tidelog_proto.schema.canonical_encoding import ENCODING_VERSION, FIELD_HEADER, MAGIC, SCHEMA_HEADER
from tidelog_proto.schema.data_types import DataType, Kind
from tidelog_proto.schema.field_checks import FIELDS_MAX
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.schema_error import SchemaError, shown
from tidelog_proto.schema.topic_schema import Schema

_KINDS: Final = {int(kind): kind for kind in Kind}
_ROLES: Final = {int(role): role for role in Role}


def decoded_schema(data: bytes) -> Schema:
    """Return the schema with this canonical encoding, after work that its limits bound.

    Raises:
        SchemaError: the bytes are too many, not a canonical encoding, or that of a schema that violates a rule.
    """
    if len(data) > SCHEMA_BYTES_MAX:
        raise SchemaError(f"a schema of {len(data)} bytes was given; at most {SCHEMA_BYTES_MAX} are allowed")
    if len(data) < SCHEMA_HEADER.size:
        raise _damaged(f"it ends after {len(data)} bytes, and its header has {SCHEMA_HEADER.size}")
    magic, version, number, next_field_id, count = SCHEMA_HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _damaged(f"it begins with {shown(magic)} instead of {shown(MAGIC)}")
    if version != ENCODING_VERSION:
        raise SchemaError(
            f"the schema is encoded in version {version}, this build reads version {ENCODING_VERSION}; update it"
        )
    reader = _Reader(data)
    fields = reader.level(count, depth=1)
    if reader.at != len(data):
        raise _damaged(f"{len(data) - reader.at} bytes follow its last field")
    return Schema(number, next_field_id, fields)


class _Reader:
    """Reads fields in order.

    Attributes:
        at: position of the next field.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._count = 0
        self.at = SCHEMA_HEADER.size

    def level(self, count: int, *, depth: int) -> tuple[Field, ...]:
        self._count += count
        if self._count > FIELDS_MAX or depth > SCHEMA_DEPTH_MAX + 1:
            raise SchemaError(
                f"the schema has more than {FIELDS_MAX} fields or {SCHEMA_DEPTH_MAX} levels of them; remove fields"
            )
        return tuple(self._field(depth) for _ in range(count))

    def _field(self, depth: int) -> Field:
        if self.at + FIELD_HEADER.size > len(self._data):
            raise _damaged(f"it ends within the field at byte {self.at}")
        begin = self.at
        header = FIELD_HEADER.unpack_from(self._data, begin)
        number, kind, role, required, precision, scale, name_bytes, doc_bytes, count = header
        if kind not in _KINDS or role not in _ROLES or required > 1:
            raise _damaged(f"the field at byte {begin} has type {kind}, role {role} and required {required}")
        self.at += FIELD_HEADER.size
        name, doc = self._text(name_bytes), self._text(doc_bytes)
        return Field(
            number,
            name,
            DataType(_KINDS[kind], precision, scale),
            required=bool(required),
            role=_ROLES[role],
            children=self.level(count, depth=depth + 1),
            doc=doc,
        )

    def _text(self, size: int) -> str:
        begin, self.at = self.at, self.at + size
        if self.at > len(self._data):
            raise _damaged(f"it ends within the text at byte {begin}")
        try:
            return self._data[begin : self.at].decode()
        except UnicodeDecodeError:
            raise _damaged(f"the text at byte {begin} is not UTF-8") from None


def _damaged(what: str) -> SchemaError:
    return SchemaError(f"the encoding of a schema is damaged: {what}; read it again from its source")
