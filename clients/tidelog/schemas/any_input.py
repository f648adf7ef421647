"""Fields of a schema in any of the languages that describe one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tidelog.schemas.avro_input import fields_of_avro
from tidelog.schemas.file_inputs import fields_of_csv, fields_of_parquet
from tidelog.schemas.json_schema_input import fields_of_json_schema
from tidelog.schemas.python_input import fields_of_class
from tidelog_proto.limits import MIB
from tidelog_proto.schema.arrow_input import fields_of_arrow
from tidelog_proto.schema.proposal import Proposal
from tidelog_proto.schema.schema_error import SchemaError, shown
from tidelog_proto.schema.type_text import field_of_text

_TEXT_BYTES_MAX: Final = MIB


def proposal_of(described: Any) -> Proposal:
    """Return the fields of a description.

    Args:
        described: a proposal, a pyarrow schema or table, a dataclass or pydantic model, the parsed JSON of a JSON
            Schema or an Avro record, a list of texts such as "gate string", or the path of a file, see
            `proposal_of_file`.

    Raises:
        SchemaError: the description is another object, or a field has a type that no field of a topic can have.
        OSError: the file cannot be read.
    """
    if isinstance(described, Proposal):
        return described
    if isinstance(described, pa.Schema):
        return fields_of_arrow(described)
    if isinstance(described, pa.Table | pa.RecordBatch):
        return fields_of_arrow(described.schema)
    if isinstance(described, type):
        return fields_of_class(described)
    if isinstance(described, Mapping):
        return fields_of_avro(described) if described.get("type") == "record" else fields_of_json_schema(described)
    if isinstance(described, str | Path):
        return proposal_of_file(Path(described))
    if isinstance(described, Sequence) and described and all(isinstance(each, str) for each in described):
        return Proposal(tuple(map(field_of_text, described)), ())
    raise SchemaError(
        f"{shown(described)} does not describe a schema; give a pyarrow schema, a dataclass, a pydantic model, a JSON "
        "Schema, an Avro record, or the path of a file"
    )


def proposal_of_file(path: Path) -> Proposal:
    """Return the fields of a file: `.parquet`, `.csv`, `.avsc`, `.json` (JSON Schema or Avro).

    Raises:
        SchemaError: the name has another ending, or the file is not what the ending says.
        OSError: the file cannot be read.
    """
    ending = path.suffix.lower()
    if ending in {".parquet", ".pq"}:
        return fields_of_parquet(path)
    if ending == ".csv":
        return fields_of_csv(path)
    if ending in {".json", ".avsc"}:
        with path.open("rb") as file:
            text = file.read(_TEXT_BYTES_MAX + 1)
        return proposal_of_text(text, path.name)
    raise SchemaError(
        f"{shown(path.name)} has an unknown ending; give a .parquet, .csv, .json (JSON Schema) or .avsc (Avro) file"
    )


def proposal_of_text(text: bytes, name: str) -> Proposal:
    """Return the fields of the text of a JSON Schema or an Avro record.

    Args:
        name: of the input, for messages.

    Raises:
        SchemaError: it is not such a text.
    """
    if len(text) > _TEXT_BYTES_MAX:
        raise SchemaError(f"{shown(name)} has more than {_TEXT_BYTES_MAX} bytes; give a smaller description")
    try:
        described = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{shown(name)} is not JSON: {error}") from error
    if not isinstance(described, dict):
        raise SchemaError(f"{shown(name)} is not a JSON object; give a JSON Schema or an Avro record")
    return proposal_of(described)
