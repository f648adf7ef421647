"""Write `docs/types.md` from round trips through a real node: `python -m tests.types_table`."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow.parquet as pq

import tidelog
from tidelog import testing
from tidelog.schemas.python_output import python_source
from tidelog.sync import Client
from tidelog_proto.schema.topic_schema import Schema

PAGE = Path(__file__).parents[1] / "docs" / "types.md"
TOPIC = "types"
COPY = "types-again"

Rows = list[dict[str, Any]]

_NOON = datetime(2026, 11, 30, 12, 0, 0, 1, UTC)
VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int8": [-(2**7), 2**7 - 1],
    "int16": [-(2**15), 2**15 - 1],
    "int32": [-(2**31), 2**31 - 1],
    "int64": [-(2**63), 2**63 - 1, 2**53 + 1],
    "float32": [0.5, math.nan, -math.inf, -0.0],
    "float64": [0.1, math.nan, math.inf, -0.0],
    "decimal128(38, 2)": [Decimal("9" * 36 + ".99"), Decimal("-0.01")],
    "string": ["é\n", ""],
    "binary": [b"\xff\0", b""],
    "date32": [date(1, 1, 1), date(9999, 12, 31)],
    "timestamp[us, UTC]": [_NOON, datetime(1, 1, 1, tzinfo=UTC)],
    "timestamp[us]": [_NOON.replace(tzinfo=None), _NOON.replace(year=9999, tzinfo=None)],
    "list<int64>": [[2**53 + 1, None], []],
    "struct<a: string, b: float64>": [{"a": "x", "b": math.nan}, {"a": None, "b": None}],
}
"""Values of each type; the page shows the first one. Each type has a null, too."""

INTRODUCTION = """\
# Types on every surface

The representation of each type of a field of a [typed topic](typed-topics.md) where rows are written and read.
`python -m tests.types_table` writes this page: it publishes extreme values of each type, and null, to a node, reads
them back from each surface, and ends with an error if one of them is another value. NaN, infinities and -0.0, all
digits of decimals and integers, microseconds, the years 1 to 9999, and null in each place stay what they were.

- **Python**: values that a producer takes and a consumer returns; it also takes
  [other forms that are exact](typed-topics.md#values-that-a-field-takes).
- **Model**: the annotation in a dataclass or pydantic model, as `tidelog topic schema show TOPIC --as python` prints.
- **Arrow**: `tidelog.read_arrow`, `tidelog.dataset`, `consumer.batches()`, `send_arrow`.
- **JSON**: an example of `values="json"`, of `tidelog consume`, and of JSON objects that a producer takes as bytes.
- **DuckDB**: `tidelog sql` and `tidelog.dataset`. **Polars**: `tidelog.scan_polars`.
- **Parquet**: `tidelog export`, with the field's id; `tidelog import` and `tidelog produce` read it.
"""


def render() -> str:
    """Return the page, after all round trips.

    Raises:
        AssertionError: a value differs on a surface.
    """
    fields = {f"f{number}": kind for number, kind in enumerate(VALUES)}
    count = max(map(len, VALUES.values())) + 1
    rows = [{name: [*VALUES[kind], *[None] * count][at] for name, kind in fields.items()} for at in range(count)]
    with testing.node() as node, Client(node.bootstrap) as client:
        for topic in (TOPIC, COPY):
            client.create_topic(topic, schema=[f"{name} {kind}" for name, kind in fields.items()])
        with client.producer(TOPIC) as producer:
            producer.send_many(rows)
        schema = client.schema(TOPIC)
        surfaces = {
            "Python": _python(client, rows),
            "Model": _models(client, schema, rows),
            "Arrow": _arrow(node.bootstrap, rows),
            "JSON": _json(client, rows),
            "DuckDB": _duckdb(node.bootstrap, rows),
            "Polars": _polars(node.bootstrap, rows),
            "Parquet": _parquet(node.bootstrap, rows),
        }
    lines = ["| type | " + " | ".join(surfaces) + " |", "| --- |" + " --- |" * len(surfaces)]
    for name, kind in fields.items():
        cells = [f"`{surface[name]}`".replace("|", "\\|") for surface in surfaces.values()]
        lines.append(f"| `{kind}` | " + " | ".join(cells) + " |")
    return "\n".join([INTRODUCTION, *lines, ""])


def _consumed(client: Client, topic: str, count: int, **options: Any) -> list[Any]:
    records: list[Any] = []
    with client.consumer(topic, **options) as consumer:
        while len(records) < count:
            polled = consumer.poll(count, timeout_s=10)
            assert polled, f"{len(records)} of {count} records were read"
            records += [record.value for record in polled]
    return records


def _python(client: Client, rows: Rows) -> dict[str, str]:
    found = _consumed(client, TOPIC, len(rows))
    _same("Python", found, rows)
    return {name: type(value).__name__ for name, value in found[0].items()}


def _models(client: Client, schema: Schema, rows: Rows) -> dict[str, str]:
    source = python_source(schema, "Row")
    module = ModuleType("types_of_rows")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(source, module.__name__, "exec"), module.__dict__)
    found = _consumed(client, TOPIC, len(rows), rows=module.__dict__["Row"])
    _same("Model", [{name: _as_dict(getattr(one, name)) for name in rows[0]} for one in found], rows)
    return dict(re.findall(r"^    (f[0-9]+): (.*?)(?: \| None)?(?: = .*)?$", source, re.MULTILINE))


def _as_dict(value: Any) -> Any:
    return vars(value) if hasattr(value, "__dataclass_fields__") else value


def _json(client: Client, rows: Rows) -> dict[str, str]:
    texts = _consumed(client, TOPIC, len(rows), values="json")
    with client.producer(COPY) as producer:
        for text in texts:
            producer.send(text)
    _same("JSON", _consumed(client, COPY, len(rows)), rows)
    return {name: json.dumps(value, ensure_ascii=False) for name, value in json.loads(texts[0]).items()}


def _arrow(bootstrap: str, rows: Rows) -> dict[str, str]:
    table = tidelog.read_arrow(TOPIC, bootstrap=bootstrap).read_all()
    _same("Arrow", table.to_pylist(), rows)
    scanned = tidelog.dataset(TOPIC, bootstrap=bootstrap).to_table(columns=table.schema.names)
    assert repr(scanned.to_pylist()) == repr(table.to_pylist()), "a dataset is another table"
    return {field.name: str(field.type) for field in table.schema}


def _duckdb(bootstrap: str, rows: Rows) -> dict[str, str]:
    topic = tidelog.dataset(TOPIC, bootstrap=bootstrap)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("topic", topic)
        connection.execute(f"CREATE TABLE stored AS SELECT {', '.join(rows[0])} FROM topic ORDER BY _offset")
        found = connection.execute("SELECT * FROM stored").fetchall()
        described = connection.execute("DESCRIBE stored").fetchall()
    _same("DuckDB", [dict(zip(rows[0], row, strict=True)) for row in found], rows)
    return {row[0]: row[1] for row in described}


def _polars(bootstrap: str, rows: Rows) -> dict[str, str]:
    frame = tidelog.scan_polars(TOPIC, bootstrap=bootstrap).select(list(rows[0])).collect()
    _same("Polars", frame.rows(named=True), rows)
    return {name: str(kind) for name, kind in frame.schema.items()}


def _parquet(bootstrap: str, rows: Rows) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.parquet"
        command = [sys.executable, "-m", "tidelog_cli", "export", TOPIC, str(path), "--bootstrap", bootstrap]
        subprocess.run(command, check=True, capture_output=True)
        _same("Parquet", pq.read_table(path, columns=list(rows[0])).to_pylist(), rows)
        schema = pq.ParquetFile(path).schema
        leaves = [schema.column(at) for at in range(len(schema.names))]
    of_field = {name: [leaf for leaf in leaves if leaf.path.split(".")[0] == name] for name in rows[0]}
    return {name: ", ".join(map(_parquet_type, found)) for name, found in of_field.items()}


def _parquet_type(leaf: Any) -> str:
    logical = re.sub(r"[(].*", "", str(leaf.logical_type)) if "Timestamp" not in str(leaf.logical_type) else "Timestamp"
    return str(leaf.physical_type) if logical == "None" else f"{leaf.physical_type} {logical}"


def _same(surface: str, found: list[dict[str, Any]], rows: Rows) -> None:
    """Compare the rows of a surface with those that were published; instants in one notation of UTC."""
    assert len(found) == len(rows), f"{surface}: {len(found)} rows instead of {len(rows)}"
    for one, expected in zip(found, rows, strict=True):
        for name, value in expected.items():
            assert _text(one[name]) == _text(value), f"{surface}, {name}: {one[name]!r} instead of {value!r}"


def _text(value: Any) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.replace(tzinfo=UTC) if value.utcoffset() == timedelta(0) else value
    return repr(value)


if __name__ == "__main__":
    PAGE.write_text(render())
