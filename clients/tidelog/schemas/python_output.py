"""The source text of a dataclass or a pydantic model with the fields of a schema."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Final, Literal

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
    TIMESTAMP_UTC,
    DataType,
    Kind,
)
from tidelog_proto.schema.fields import Field, Path, fields_below, path_text, paths_below
from tidelog_proto.schema.schema_error import SchemaError, refuse, shown
from tidelog_proto.schema.topic_schema import Schema

Style = Literal["dataclass", "pydantic"]
"""The kind of class that is written."""

_PLAIN: Final = {
    BOOL: "bool",
    INT64: "int",
    FLOAT64: "float",
    STRING: "str",
    BINARY: "bytes",
    DATE32: "date",
    TIMESTAMP_UTC: "datetime",
}
_OF_KIND: Final = {
    **dict.fromkeys(INTEGERS, "int"),
    Kind.FLOAT32: "float",
    Kind.TIMESTAMP: "datetime",
    Kind.DECIMAL128: "Decimal",
}
_MODULE_OF: Final = {
    **dict.fromkeys(("bool", "int", "float", "str", "bytes", "list"), "builtins"),
    "Annotated": "typing",
    "BaseModel": "pydantic",
    "Decimal": "decimal",
    "Field": "pydantic",
    "dataclass": "dataclasses",
    "date": "datetime",
    "datetime": "datetime",
    "field": "dataclasses",
}


def python_source(schema: Schema, name: str, style: Style = "dataclass") -> str:
    """Return a module with a class called `name`, and one for each struct below it.

    Raises:
        SchemaError: a field or the class has a name that Python cannot have.
    """
    if not _is_member(name, style):
        raise SchemaError(f"{shown(name)} cannot be the name of a class in Python; choose ASCII letters, digits and _")
    refuse(
        f"field {shown(path_text(path))}: {shown(field.name)} cannot be the name of a member in Python; rename it, or "
        "choose another format"
        for path, field in paths_below(schema.fields)
        if not _is_member(field.name, style)
    )
    return _Source(schema, name, style).text()


def _is_member(name: str, style: Style) -> bool:
    # Python changes other names to their compatibility form. pydantic keeps names that begin so for itself.
    is_reserved = style == "pydantic" and name.startswith("model_")
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name) and not is_reserved


class _Source:
    def __init__(self, schema: Schema, name: str, style: Style) -> None:
        self._style = style
        self._members = {field.name for field in fields_below(schema.fields)}
        self._imports: dict[str, str] = {}
        self._classes: list[str] = []
        self._names = {*self._members, *_MODULE_OF}
        self._write_class(schema.fields, self._unique(name))

    def text(self) -> str:
        """Return the module."""
        lines = sorted(f"from {module} import {name}" for name, module in self._imports.items())
        return "\n".join([*lines, *self._classes]) + "\n"

    def _write_class(self, fields: Sequence[Field], name: str, path: Path = ()) -> None:
        members = [self._member(field, (*path, field.name)) for field in fields]
        if self._style == "pydantic":
            head = f"class {name}({self._import('BaseModel')}):"
        else:
            head = f"@{self._import('dataclass')}(kw_only=True)\nclass {name}:"
        self._classes.append("\n\n" + "\n    ".join([head, *members]))

    def _member(self, field: Field, path: Path) -> str:
        annotation = self._annotation(field, path)
        default = "" if field.required else "None"
        if field.doc and self._style == "pydantic":
            given = [f"default={default}"] if default else []
            default = f"{self._import('Field')}({', '.join([*given, f'description={field.doc!r}'])})"
        elif field.doc:
            given = [f"default={default}"] if default else []
            metadata = {"doc": field.doc}
            default = f"{self._import('field')}({', '.join([*given, f'metadata={metadata!r}'])})"
        return f"{field.name}: {annotation}" + (f" = {default}" if default else "")

    def _annotation(self, field: Field, path: Path) -> str:
        if field.type == LIST:
            (item,) = field.children
            python = f"{self._import('list')}[{self._annotation(item, (*path, item.name))}]"
        elif field.type == STRUCT:
            python = self._unique("".join(map(_capitalized, path)))
            self._write_class(field.children, python, path)
        else:
            python = self._leaf(field.type)
        return python if field.required else f"{python} | None"

    def _leaf(self, data_type: DataType) -> str:
        if data_type in _PLAIN:
            return self._import(_PLAIN[data_type])
        return f'{self._import("Annotated")}[{self._import(_OF_KIND[data_type.kind])}, "{data_type}"]'

    def _import(self, name: str) -> str:
        """Return the name of a type in the module: with an underscore if a field has it, since that would hide it."""
        module = _MODULE_OF[name]
        if name in self._members:
            self._imports[f"{name} as _{name}"] = module
            return f"_{name}"
        if module != "builtins":
            self._imports[name] = module
        return name

    def _unique(self, name: str) -> str:
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


def _capitalized(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in re.split(r"_+", name))
