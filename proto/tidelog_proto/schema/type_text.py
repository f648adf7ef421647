"""Types and fields as text: `int32`, `decimal128(10, 2)`, `list<string>`, `struct<city: string required, n: int8>`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tidelog_proto.limits import SCHEMA_DEPTH_MAX
from tidelog_proto.schema.data_types import NAME_OF_KIND, NESTED, DataType, Kind, decimal128
from tidelog_proto.schema.fields import ITEM, Field
from tidelog_proto.schema.schema_error import SchemaError, shown

_CHARS_MAX: Final = 4096
_TOKEN: Final = re.compile(r"\s*(timestamp\[us(?:,\s*UTC)?\]|\w+|[<>(),:])")
_LEAVES: Final = {
    name.replace(" ", ""): DataType(kind)
    for kind, name in NAME_OF_KIND.items()
    if kind is not Kind.DECIMAL128 and kind not in NESTED
}
_REQUIRED: Final = "required"

TYPE_NAMES: Final = ", ".join((*(NAME_OF_KIND[kind] for kind in Kind if kind not in NESTED), "list<TYPE>"))
"""The types that `type_of_text` reads, for messages."""


def field_of_text(text: str) -> Field:
    """Return a field without an id, such as that of `gate string` or `stops list<int32>`.

    Raises:
        SchemaError: the text is not a name and a type.
    """
    name, _, rest = text.strip().partition(" ")
    if not name or not rest.strip():
        raise SchemaError(
            f"{shown(text)} is not a field; give a name, a space and a type, such as {shown('gate string')}"
        )
    reader = _Reader(rest)
    field = reader.field(name, depth=1)
    reader.end()
    return field


def type_of_text(text: str) -> DataType:
    """Return the type with this name; it has no fields below it.

    Raises:
        SchemaError: no type has this name.
    """
    reader = _Reader(text)
    field = reader.field("", depth=1)
    reader.end()
    if field.required or field.children:
        raise SchemaError(
            f"{shown(text)} is more than a type without fields; remove {_REQUIRED}, or the list or struct"
        )
    return field.type


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0

    def field(self, name: str, *, depth: int) -> Field:
        """Read a type, with its fields, and the word `required` if it follows."""
        data_type, children = self._type(depth)
        required = self._take(_REQUIRED)
        return Field(0, name, data_type, required=required, children=children)

    def end(self) -> None:
        if self._at != len(self._tokens):
            raise self._wrong()

    def _type(self, depth: int) -> tuple[DataType, tuple[Field, ...]]:
        name = self._next()
        if name in _LEAVES:
            return _LEAVES[name], ()
        if name == "decimal128":
            return self._decimal(), ()
        if name not in {"list", "struct"}:
            raise self._wrong()
        if depth >= SCHEMA_DEPTH_MAX:
            raise SchemaError(f"{shown(self._text)} has more than {SCHEMA_DEPTH_MAX} levels of fields; flatten it")
        self._expect("<")
        children = [self.field(ITEM if name == "list" else self._name(), depth=depth + 1)]
        while name == "struct" and self._take(","):
            children.append(self.field(self._name(), depth=depth + 1))
        self._expect(">")
        return DataType(Kind.LIST if name == "list" else Kind.STRUCT), tuple(children)

    def _decimal(self) -> DataType:
        self._expect("(")
        precision = self._number()
        self._expect(",")
        scale = self._number()
        self._expect(")")
        return decimal128(precision, scale)

    def _number(self) -> int:
        token = self._next()
        if not re.fullmatch(r"[0-9]{1,2}", token):
            raise self._wrong()
        return int(token)

    def _name(self) -> str:
        name = self._next()
        self._expect(":")
        return name

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise self._wrong()
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, token: str) -> bool:
        found = self._tokens[self._at : self._at + 1] == [token]
        self._at += found
        return found

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._wrong()

    def _wrong(self) -> SchemaError:
        return SchemaError(f"{shown(self._text)} is not a type; the types are {TYPE_NAMES}, struct<NAME: TYPE, ...>")


def _tokens(text: str) -> Sequence[str]:
    """Return the words and signs of a text; one that fits no type stays as it is."""
    if len(text) > _CHARS_MAX:
        raise SchemaError(f"a type of {len(text)} characters was given; at most {_CHARS_MAX} are allowed")
    found: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        found.append(re.sub(r"\s", "", token[1]) if token else text[at:])
        at = token.end() if token else len(text)
    return found
