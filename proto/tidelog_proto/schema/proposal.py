"""Fields that are made of a description in another language, with a report of what becomes what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidelog_proto.limits import SCHEMA_DEPTH_MAX
from tidelog_proto.schema.data_types import DataType, decimal128
from tidelog_proto.schema.field_checks import FIELDS_MAX
from tidelog_proto.schema.fields import Field, Path, path_text
from tidelog_proto.schema.schema_error import FAULTS_MAX, SchemaError, refuse, shown

FoundType = tuple[DataType, tuple[Field, ...]]
"""The type of a field, and its children."""


class Proposal(NamedTuple):
    """Fields for a schema.

    Attributes:
        fields: without ids and roles.
        notes: the differences from the description, one text for each field and reason.
    """

    fields: tuple[Field, ...]
    notes: tuple[str, ...]


class ProposalBuilder:
    """Counts the fields of one description, and gathers notes and faults."""

    def __init__(self) -> None:
        self._count = 0
        self._notes: list[str] = []
        self._faults: list[str] = []

    def enter(self, path: Path) -> None:
        """Count a field. A description that refers to itself, or to many fields, ends here.

        Raises:
            SchemaError: there are too many fields, or levels of them.
        """
        self._count += 1
        if self._count > FIELDS_MAX or len(path) > SCHEMA_DEPTH_MAX or len(self._faults) >= FAULTS_MAX:
            refuse(self._faults)
            raise SchemaError(
                f"field {shown(path_text(path))}: there are more than {FIELDS_MAX} fields or {SCHEMA_DEPTH_MAX} levels "
                "of them; remove fields, or flatten the field"
            )

    def note(self, path: Path, text: str) -> None:
        """Report a difference between the description and the field."""
        self._notes.append(f"field {shown(path_text(path))}: {text}")

    def fault(self, path: Path, text: str) -> None:
        """Report why a field cannot be made; the description is then refused as a whole."""
        self._faults.append(f"field {shown(path_text(path))}: {text}" if path else text)

    def decimal(self, path: Path, description: Mapping[str, Any], remedy: str) -> DataType | None:
        """Return the type with the `precision` and `scale` of a description; None without numbers, which is a fault."""
        precision, scale = description.get("precision"), description.get("scale", 0)
        if type(precision) is not int or type(scale) is not int:
            self.fault(path, f"a decimal has no number of digits; {remedy}")
            return None
        return decimal128(precision, scale)

    def proposal(self, fields: tuple[Field, ...]) -> Proposal:
        """Return the result.

        Raises:
            SchemaError: a field could not be made; all faults are listed.
        """
        refuse(self._faults)
        return Proposal(fields, tuple(self._notes))
