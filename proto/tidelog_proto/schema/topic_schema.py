"""A schema of a typed topic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from crc32c import crc32c

from tidelog_proto.limits import SCHEMA_BYTES_MAX, SCHEMAS_PER_TOPIC_MAX
from tidelog_proto.schema.canonical_encoding import encoding_of
from tidelog_proto.schema.field_checks import faults_of_fields
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.schema_error import SchemaError, refuse


@dataclass(frozen=True)
class Schema:
    """One of the schemas of a topic. Each instance is valid: the constructor checks it.

    Attributes:
        number: identifies the schema within its topic, from 1 on.
        next_field_id: larger than every id that this schema or an earlier one of the topic has used.
        fields: those of the top level, in the order in which people see them.

    Raises:
        SchemaError: a rule is violated; all faults are listed.
    """

    number: int
    next_field_id: int
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.number <= SCHEMAS_PER_TOPIC_MAX:
            raise SchemaError(
                f"the schema has the number {self.number}; a topic has the numbers 1 to {SCHEMAS_PER_TOPIC_MAX}: "
                "create a new topic for further changes"
            )
        refuse(faults_of_fields(self.fields, self.next_field_id))
        if (size := len(self.encoding)) > SCHEMA_BYTES_MAX:
            raise SchemaError(
                f"the schema has {size} bytes in its encoding, at most {SCHEMA_BYTES_MAX} are allowed; shorten names "
                "and descriptions, or divide the fields among topics"
            )

    def __hash__(self) -> int:
        """Return the digest: caches of plans look schemas up for each batch."""
        return self.digest

    @cached_property
    def encoding(self) -> bytes:
        """The canonical encoding."""
        return encoding_of(self.number, self.next_field_id, self.fields)

    @cached_property
    def digest(self) -> int:
        """The CRC32C of the canonical encoding, which batches of this schema contain."""
        return crc32c(self.encoding)

    @cached_property
    def value_fields(self) -> tuple[Field, ...]:
        """The fields without a role: those of the struct in the column `value`, in order; at least one."""
        return tuple(field for field in self.fields if field.role is Role.NONE)

    def field_of(self, role: Role) -> Field | None:
        """Return the field that is the time, the key or the tag, if the schema has one."""
        return next((field for field in self.fields if field.role is role), None)
