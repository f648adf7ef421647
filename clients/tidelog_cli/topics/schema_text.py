"""Schemas as text: a table of fields, and other languages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from tidelog.schemas.avro_output import avro_schema
from tidelog.schemas.json_schema_output import json_schema
from tidelog.schemas.python_output import python_source
from tidelog_cli.base.failures import CommandFailed
from tidelog_proto.schema.arrow_types import arrow_schema
from tidelog_proto.schema.fields import Role, path_text, paths_below
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

FIELD_HEADINGS = ("field", "type", "", "role", "id", "description")
"""Headings of `field_rows`."""


class Language(StrEnum):
    """The languages in which `schema show` prints a schema."""

    ARROW = "arrow"
    JSON_SCHEMA = "json-schema"
    AVRO = "avro"
    PYTHON = "python"
    FILE = "file"


def field_rows(schema: Schema) -> Iterator[tuple[str, ...]]:
    """Yield a row of text for each field, parents before their children."""
    for path, field in paths_below(schema.fields):
        role = "" if field.role is Role.NONE else field.role.name.lower()
        required = "required" if field.required else ""
        yield path_text(path), str(field.type), required, role, str(field.id), field.doc


def schema_document(schema: Schema) -> dict[str, Any]:
    """Return a schema as a JSON object."""
    return {
        "number": schema.number,
        "digest": f"{schema.digest:08x}",
        "fields": [
            {
                "path": path_text(path),
                "id": field.id,
                "type": str(field.type),
                "required": field.required,
                "role": None if field.role is Role.NONE else field.role.name.lower(),
                "doc": field.doc,
            }
            for path, field in paths_below(schema.fields)
        ],
    }


def text_in(schema: Schema, language: Language, topic: str) -> str:
    """Return a schema in another language.

    Raises:
        CommandFailed: a name cannot be written in it.
    """
    name = "".join(word[:1].upper() + word[1:] for word in topic.replace("-", "_").replace(".", "_").split("_"))
    try:
        match language:
            case Language.ARROW:
                return arrow_schema(schema).to_string(show_field_metadata=False)
            case Language.JSON_SCHEMA:
                return json.dumps(json_schema(schema), indent=2, ensure_ascii=False)
            case Language.AVRO:
                return json.dumps(avro_schema(schema, name), indent=2, ensure_ascii=False)
            case Language.PYTHON:
                return python_source(schema, name).rstrip("\n")
            case Language.FILE:
                raise CommandFailed("--as file needs --all: give both")
    except SchemaError as error:
        raise CommandFailed(f"schema {schema.number} cannot be written as {language}: {error}") from error
