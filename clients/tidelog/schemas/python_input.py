"""Fields of a dataclass or a pydantic model. pydantic is not imported for it."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final, NamedTuple

from tidelog_proto.schema.data_types import (
    BINARY,
    BOOL,
    DATE32,
    FLOAT64,
    INT64,
    INTEGERS,
    LIST,
    STRING,
    STRUCT,
    TIMESTAMP,
    TIMESTAMP_UTC,
    DataType,
    Kind,
    decimal128,
)
from tidelog_proto.schema.fields import ITEM, Field, Path
from tidelog_proto.schema.proposal import FoundType, Proposal, ProposalBuilder
from tidelog_proto.schema.schema_error import SchemaError, shown
from tidelog_proto.schema.type_text import type_of_text

_DEFAULTS: Final[dict[Any, DataType]] = {
    bool: BOOL,
    int: INT64,
    float: FLOAT64,
    str: STRING,
    bytes: BINARY,
    date: DATE32,
    datetime: TIMESTAMP_UTC,
}
_KINDS: Final[dict[Any, frozenset[Kind]]] = {
    **{python: frozenset({data_type.kind}) for python, data_type in _DEFAULTS.items()},
    int: frozenset(INTEGERS),
    float: frozenset({Kind.FLOAT32, Kind.FLOAT64}),
    datetime: frozenset({Kind.TIMESTAMP, Kind.TIMESTAMP_UTC}),
    Decimal: frozenset({Kind.DECIMAL128}),
}
"""The types that an annotation may choose for each Python type: `Annotated[int, "int32"]`."""
_OF_PYDANTIC: Final = {"AwareDatetime": TIMESTAMP_UTC, "NaiveDatetime": TIMESTAMP}
_ALIASES_MAX: Final = 16


class _Hint(NamedTuple):
    """A type without its wrappers.

    Attributes:
        metadata: what `Annotated` has added.
        optional: whether None is allowed.
    """

    type: Any
    metadata: tuple[Any, ...]
    optional: bool


class _Member(NamedTuple):
    name: str
    hint: Any
    metadata: Sequence[Any]
    doc: str


def fields_of_class(described: type) -> Proposal:
    """Return the fields of a dataclass or a pydantic model, with those of the classes that it uses.

    Types are chosen in more detail by `Annotated`: `Annotated[int, "int32"]`, `Annotated[Decimal, "decimal128(9, 2)"]`.

    Raises:
        SchemaError: the class is neither, or a field has a type that no field of a topic can have.
    """
    if _members(described) is None:
        raise SchemaError(f"{shown(described)} is neither a dataclass nor a pydantic model; give one of these")
    reading = _Reading()
    return reading.builder.proposal(reading.struct(described, ()))


def _members(described: Any) -> Iterable[_Member] | None:
    """Return the fields of a class as Python has them; None for other things."""
    if not isinstance(described, type):
        return None
    if isinstance(model_fields := getattr(described, "model_fields", None), dict):
        return [
            _Member(name, info.annotation, info.metadata, info.description or "") for name, info in model_fields.items()
        ]
    if dataclasses.is_dataclass(described):
        return _of_dataclass(described)
    return None


def _of_dataclass(described: Any) -> Iterator[_Member]:
    try:
        hints = typing.get_type_hints(described, include_extras=True)
    except (NameError, TypeError) as error:
        raise SchemaError(
            f"the annotations of {described.__qualname__} cannot be evaluated: {error}; define the class and the types "
            "that it names in a module"
        ) from error
    for field in dataclasses.fields(described):
        yield _Member(field.name, hints[field.name], (), str(field.metadata.get("doc", "")))


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    """Yield metadata, and that which a field of pydantic holds itself."""
    for each in metadata:
        yield each
        if isinstance(held := getattr(each, "metadata", None), list):
            yield from held


class _Reading:
    def __init__(self) -> None:
        self.builder = ProposalBuilder()

    def struct(self, described: Any, parent: Path) -> tuple[Field, ...]:
        found = [self._field(member, (*parent, member.name)) for member in _members(described) or ()]
        return tuple(field for field in found if field is not None)

    def _field(self, member: _Member, path: Path) -> Field | None:
        self.builder.enter(path)
        hint = self._unwrapped(member.hint, tuple(member.metadata), path)
        if hint is None or (found := self._type(hint, path)) is None:
            return None
        data_type, children = found
        return Field(0, member.name, data_type, required=not hint.optional, children=children, doc=member.doc)

    def _unwrapped(self, hint: Any, metadata: tuple[Any, ...], path: Path) -> _Hint | None:
        optional = False
        for _ in range(_ALIASES_MAX):
            if typing.get_origin(hint) is typing.Annotated:
                metadata += hint.__metadata__
                hint = hint.__origin__
            elif typing.get_origin(hint) in {typing.Union, types.UnionType}:
                members = [each for each in typing.get_args(hint) if each is not types.NoneType]
                if len(members) != 1 or len(typing.get_args(hint)) != 2:
                    self.builder.fault(
                        path, f"{shown(hint)} is a union; only a type or None is supported, so choose one"
                    )
                    return None
                optional, hint = True, members[0]
            elif hasattr(hint, "__supertype__") or hasattr(hint, "__value__"):
                hint = getattr(hint, "__supertype__", None) or hint.__value__
            else:
                return _Hint(hint, metadata, optional)
        self.builder.fault(path, f"{shown(hint)} is an alias of aliases; name the type itself")
        return None

    def _type(self, hint: _Hint, path: Path) -> FoundType | None:
        if (leaf := self._leaf(hint, path)) is not None:
            return leaf, ()
        if typing.get_origin(hint.type) is list:
            item = self._field(_Member(ITEM, typing.get_args(hint.type)[0], (), ""), (*path, ITEM))
            return (LIST, (item,)) if item is not None else None
        if _members(hint.type) is not None:
            return STRUCT, self.struct(hint.type, path)
        if hint.type is Decimal:
            self.builder.fault(
                path, "a Decimal has no number of digits; annotate it, such as Annotated[Decimal, 'decimal128(9, 2)']"
            )
            return None
        self.builder.fault(
            path,
            f"the Python type {shown(hint.type)} is not supported; use bool, int, float, Decimal, str, bytes, date, "
            "datetime, list, a dataclass or a pydantic model",
        )
        return None

    def _leaf(self, hint: _Hint, path: Path) -> DataType | None:
        python = hint.type
        if getattr(python, "__module__", "") == "pydantic.types" and python.__name__ in _OF_PYDANTIC:
            return _OF_PYDANTIC[python.__name__]
        if typing.get_origin(python) is typing.Literal or (isinstance(python, type) and issubclass(python, Enum)):
            return self._of_choices(python, path)
        if not isinstance(python, type) or python not in _KINDS:
            return None
        if (chosen := self._chosen(hint, path)) is not None:
            return chosen
        if python is datetime:
            self.builder.note(path, f"datetime becomes {TIMESTAMP_UTC}; annotate it with {TIMESTAMP} for local times")
        return _DEFAULTS.get(python)

    def _chosen(self, hint: _Hint, path: Path) -> DataType | None:
        """Return the type that the annotations choose, if they do."""
        digits: dict[str, int] = {}
        for each in _flat(hint.metadata):
            for name in ("max_digits", "decimal_places"):
                if isinstance(value := getattr(each, name, None), int):
                    digits[name] = value
            if isinstance(each, str):
                return self._named(each, hint.type, path)
        if hint.type is Decimal and len(digits) == 2:
            return decimal128(digits["max_digits"], digits["decimal_places"])
        return None

    def _named(self, text: str, python: Any, path: Path) -> DataType | None:
        try:
            data_type = type_of_text(text)
        except SchemaError:
            self.builder.note(path, f"the annotation {shown(text)} names no type, and is ignored")
            return None
        if data_type.kind not in _KINDS[python]:
            self.builder.fault(path, f"{python.__name__} is annotated with {data_type}; choose a type that fits")
        return data_type

    def _of_choices(self, python: Any, path: Path) -> DataType | None:
        values = typing.get_args(python) or [each.value for each in python]
        for kind, data_type in ((str, STRING), (int, INT64)):
            if values and all(type(value) is kind for value in values):
                self.builder.note(path, f"{shown(python)} becomes {data_type}; the values are not checked")
                return data_type
        return None
