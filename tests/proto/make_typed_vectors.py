"""Writes the test vectors of typed batches: `python -m tests.proto.make_typed_vectors`; see `make_vectors.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.proto.schemas import EVERY_TYPE
from tests.proto.typed_batches import encoded, layouts_of, parsed

from tidelog_proto.batch.derived_batch import Deriver
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import Layouts, row_layout
from tidelog_proto.batch.typed_rows import DELETED, rows_of
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import Kind

FILE = Path(__file__).parent / "vectors" / "typed.json"
BASE = 1000
KEEP = [True, True, False]
"""Which records of the sources survive in the derived batch: a row, a tombstone, and not the last row."""

_SAMPLES: dict[Kind, list[Any]] = {
    Kind.BOOL: [True, False],
    Kind.FLOAT32: [1.5, -0.0],
    Kind.FLOAT64: [-2.25, 1e300],
    Kind.STRING: ["é", ""],
    Kind.BINARY: [b"\xff", b""],
    Kind.DECIMAL128: [0, 0],
    Kind.LIST: [[1, 2], []],
    Kind.STRUCT: [{"city": "Kiel", "Höhe über NN": 5.0}, {"city": "x"}],
}


def sample_rows() -> pa.RecordBatch:
    """Return two rows of every type and a tombstone between them."""
    columns: dict[str, Any] = {}
    for field in EVERY_TYPE.fields:
        one, two = _SAMPLES.get(field.type.kind, [7, -7])
        other = "gone" if field.name == "carrier" else 8 if field.role else None
        columns[field.name] = pa.array([one, other if field.name != "origin" else None, two], arrow_type(field))
    return pa.RecordBatch.from_pydict({**columns, DELETED: pa.array([False, True, False])})


def row_texts(batch: RecordBatch) -> list[str]:
    """Return the rows as text, tombstones included."""
    return [repr(row) for row in rows_of(batch, tombstones=True).to_pylist()]


def derived_again(sources: list[bytes], layouts: Layouts) -> list[bytes]:
    """Return the derived batches of stored ones."""
    deriver = Deriver(BASE, epoch=3)
    made: list[bytearray] = []
    for raw in sources:
        made += deriver.add(parsed(raw, layouts), np.array(KEEP))
    return [bytes(one) for one in made + deriver.finish()]


def typed_vectors() -> list[dict[str, Any]]:
    """Return a batch of every type in every codec, and what is derived of it."""
    layouts = layouts_of(EVERY_TYPE)
    vectors: list[dict[str, Any]] = []
    for codec in Codec:
        raw = encoded(row_layout(EVERY_TYPE), sample_rows(), codec, base=BASE)
        batch = parsed(raw, layouts)
        vectors.append(
            {
                "name": codec.name,
                "schema": EVERY_TYPE.encoding.hex(),
                "hex": raw.hex(),
                "header": batch.header._asdict(),
                "rows": row_texts(batch),
                "derived": [one.hex() for one in derived_again([raw], layouts)],
            }
        )
    return vectors


if __name__ == "__main__":
    FILE.write_text(json.dumps(typed_vectors(), indent=1) + "\n")
