"""The canonical encoding of a schema: equal schemas have equal bytes, and each schema has one encoding.

Protobuf promises no order and no single form of its bytes, so the digest of a schema is not computed from them.
docs/formats.md describes the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tidelog_proto.schema.fields import Field

MAGIC: Final = b"TLSC"
ENCODING_VERSION: Final = 1
SCHEMA_HEADER: Final = struct.Struct("<4sIIIH")
"""Magic, version, number, next field id, number of top-level fields."""
FIELD_HEADER: Final = struct.Struct("<IBBBBBBHH")
"""Id, kind, role, required, precision, scale, length of name, length of description, number of children."""


def encoding_of(number: int, next_field_id: int, fields: Sequence[Field]) -> bytes:
    """Return the canonical encoding of a schema whose fields have been checked."""
    parts = [SCHEMA_HEADER.pack(MAGIC, ENCODING_VERSION, number, next_field_id, len(fields))]
    _append_fields(fields, parts)
    return b"".join(parts)


def _append_fields(fields: Sequence[Field], parts: list[bytes]) -> None:
    for field in fields:
        name, doc = field.name.encode(), field.doc.encode()
        kind, precision, scale = field.type
        sizes = (len(name), len(doc), len(field.children))
        parts += (FIELD_HEADER.pack(field.id, kind, field.role, field.required, precision, scale, *sizes), name, doc)
        _append_fields(field.children, parts)
