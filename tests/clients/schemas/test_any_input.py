from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.schemas.any_input import proposal_of, proposal_of_text
from tidelog_proto.limits import MIB
from tidelog_proto.schema.schema_error import SchemaError

ARROW = pa.schema([pa.field("a", pa.int32())])
AVRO: Any = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"]}]}
JSON: Any = {"type": "object", "properties": {"a": {"type": ["integer", "null"], "format": "int32"}}}


@dataclass
class Row:
    a: int | None


def test_each_description_gives_the_field(tmp_path: Path) -> None:
    pq.write_table(ARROW.empty_table(), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "a.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "a.json").write_text(json.dumps(JSON))
    described: list[Any] = [ARROW, ARROW.empty_table(), Row, AVRO, JSON, ["a int32"], proposal_of(ARROW)]
    described += [tmp_path / "a.parquet", str(tmp_path / "a.csv"), tmp_path / "a.avsc", tmp_path / "a.json"]
    for each in described:
        (field,) = proposal_of(each).fields
        assert field.name == "a"
        assert not field.required


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (5, "does not describe a schema"),
        ([], "does not describe a schema"),
        ([1], "does not describe a schema"),
        ("a.txt", "unknown ending"),
        (int, "neither a dataclass"),
        (["a int9"], "is not a type"),
    ],
)
def test_other_things_are_refused(described: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        proposal_of(described)


def test_texts_are_json_objects_of_bounded_size() -> None:
    for text, said in ((b"{", "is not JSON"), (b"[]", "not a JSON object"), (b"[" * 10**5, "is not JSON")):
        with pytest.raises(SchemaError, match=said):
            proposal_of_text(text, "x")
    with pytest.raises(SchemaError, match="smaller"):
        proposal_of_text(b" " * (MIB + 1), "x")
