"""The largest request of each route of a gateway, as the bytes of an HTTP request."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
from tests.abuse.stand import Stand

from tidelog_proto.limits import MIB

BODY_BYTES: Final = 8 * MIB
"""The default of `body_bytes_max`."""


def _nothing() -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class Http:
    """A request whose body is built on demand: all bodies together are more than 200 MiB."""

    line: str
    """Method and target."""
    body: Callable[[], bytes] = _nothing
    media_type: str = "application/json"
    field: str = ""
    """A further field of the head."""

    def __call__(self, stand: Stand) -> bytes:
        """Return the bytes of the request of a principal that floods."""
        body = self.body()
        head = f"{self.line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {stand.keys['flood']}\r\n"
        if body:
            head += f"Content-Type: {self.media_type}\r\nContent-Length: {len(body)}\r\n"
        if self.field:
            head += f"{self.field}\r\n"
        return f"{head}\r\n".encode() + body


def _post(body: Callable[[], bytes], line: str = "POST /v1/topics/sink/records") -> Http:
    return Http(line, body)


def _get(path: str) -> Http:
    return Http(f"GET {path}")


def _read(path: str, media_type: str) -> Http:
    return Http(f"GET {path}", field=f"Accept: {media_type}")


def _records(record: Mapping[str, Any], count: int) -> bytes:
    one = json.dumps(record).encode()
    return b'{"records":[' + b",".join([one] * count) + b"]}"


def _offsets(item: Mapping[str, Any], count: int) -> bytes:
    return json.dumps({"offsets": [dict(item, partition=number) for number in range(count)]}).encode()


HEAD_BYTES: Final = 60_000
"""A little less than a head may have."""


def _head(line: str) -> Http:
    """Return a request with a head as large as there may be."""
    return Http(line, field="X-Fill: " + "x" * HEAD_BYTES)


def _members(line: str) -> Http:
    return Http(line, lambda: json.dumps({f"m{number}": 0 for number in range(500_000)}).encode())


def _body(body: Callable[[], bytes], media_type: str) -> Http:
    """Return a publish in another form than JSON."""
    return Http("POST /v1/topics/sink/records", body, media_type)


def _arrow(columns: pa.RecordBatch, *, compression: Literal["lz4", "zstd"] | None = None, count: int = 1) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, columns.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(count):
            writer.write_batch(columns)
    return sink.getvalue()


def _values(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])


_EVENT: Final = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":[1,2,3]}}'
_LINES: Final = "application/x-ndjson"
_CSV: Final = "text/csv"
_PROTOBUF: Final = "application/x-protobuf"
_ARROW: Final = "application/vnd.apache.arrow.stream"
_EVENTS: Final = "application/cloudevents-batch+json"

FORMS: Final[dict[str, Http]] = {
    "POST records: 10,000 JSON lines": _body(lambda: b'{"value":"x","key":"k"}\n' * 10_000, _LINES),
    "POST records: 8 MiB of short lines": _body(lambda: b"{}\n" * (BODY_BYTES // 3), _LINES),
    "POST records: 8 MiB of empty lines": _body(lambda: b"\n" * BODY_BYTES, _LINES),
    "POST records: a line of 8 MiB": _body(lambda: b'{"value":"' + b"x" * (BODY_BYTES - 20) + b'"}', _LINES),
    "POST records: a line of 4,000,000 numbers": _body(
        lambda: b'{"value_encoding":"json","value":[' + b"0," * 4_000_000 + b"0]}", _LINES
    ),
    "POST records: 10,000 rows of CSV": _body(lambda: b"key,value,tag\n" + b'k,"a ""value""",t\n' * 10_000, _CSV),
    "POST records: 8 MiB of empty rows of CSV": _body(lambda: b"value\n" + b"\n" * (BODY_BYTES - 6), _CSV),
    "POST records: 8 MiB of empty fields of CSV": _body(lambda: b"value\n" + b"," * (BODY_BYTES - 6), _CSV),
    "POST records: an unclosed quote of 8 MiB": _body(lambda: b'value\n"' + b"x" * (BODY_BYTES - 7), _CSV),
    "POST records: 8 MiB of quotes": _body(lambda: b"value\n" + b'"' * (BODY_BYTES - 6), _CSV),
    "POST records: 5,000 rows of 256 headers": _body(
        lambda: (
            b",".join([b"value", *(b"header:h" for _ in range(256))]) + b"\n" + (b"1" + b",2" * 256 + b"\n") * 5_000
        ),
        _CSV,
    ),
    "POST records: 8 MiB of records of protobuf": _body(lambda: b"\x0a\x02\x0a\x00" * (BODY_BYTES // 4), _PROTOBUF),
    "POST records: 10,000 records of protobuf": _body(lambda: b"\x0a\x06\x0a\x01x\x1a\x01k" * 10_000, _PROTOBUF),
    "POST records: 4,000,000 headers of protobuf": _body(
        lambda: b"\x0a\x80\x80\xe8\x03" + b"\x3a\x00" * 3_997_696, _PROTOBUF
    ),
    "POST records: 10,000 rows of Arrow": _body(lambda: _arrow(_values(*[b"x" * 700] * 10_000)), _ARROW),
    "POST records: 10,000 rows of compressed Arrow": _body(
        lambda: _arrow(_values(*[b"x" * 700] * 10_000), compression="zstd"), _ARROW
    ),
    "POST records: a bomb of compressed Arrow": _body(
        lambda: _arrow(_values(bytes(512 * MIB)), compression="zstd"), _ARROW
    ),
    "POST records: 1,000 record batches of Arrow": _body(lambda: _arrow(_values(*[b"x"] * 10), count=1_000), _ARROW),
    "POST records: 25,000 empty record batches of Arrow": _body(lambda: _arrow(_values(), count=25_000), _ARROW),
    "POST records: 10,000 CloudEvents": _body(lambda: b"[" + b",".join([_EVENT] * 10_000) + b"]", _EVENTS),
    "POST records: 8 MiB of empty CloudEvents": _body(lambda: b"[" + b"{}," * (BODY_BYTES // 3 - 2) + b"{}]", _EVENTS),
}
"""Bodies of the other forms of a publish."""

HTTP: Final[dict[str, Http]] = {
    **FORMS,
    "POST records: 300,000 empty objects": _post(lambda: _records({}, 300_000)),
    "POST records: 8 MiB of empty objects": _post(lambda: _records({}, (BODY_BYTES - 100) // 3)),
    "POST records: 10,000 records": _post(lambda: _records({"value": "x", "key": "k"}, 10_000)),
    "POST records: 10,000 records of 700 bytes": _post(lambda: _records({"value": "x" * 700, "key": "k"}, 10_000)),
    "POST records: 10,000 JSON values": _post(
        lambda: _records({"value": {"a": list(range(20))}, "value_encoding": "json"}, 9_999)
    ),
    "POST records: a value of 63,000 numbers": _post(
        lambda: _records({"value": [0] * 63_000, "value_encoding": "json"}, 1)
    ),
    "POST records: a value of 4,000,000 numbers": _post(
        lambda: b'{"records":[{"value_encoding":"json","value":[' + b"0," * 4_000_000 + b"0]}]}"
    ),
    "POST records: 8 MiB of text": _post(lambda: _records({"value": "x" * (BODY_BYTES - 100)}, 1)),
    "POST records: 90,000 unknown members": _post(lambda: _records({f"m{number}": 0 for number in range(90_000)}, 1)),
    "POST records: 8 MiB that are not JSON": _post(lambda: b'{"records":[' + b"[" * (BODY_BYTES - 100)),
    "POST records: a raw body of 8 MiB": _body(lambda: b"x" * BODY_BYTES, "application/octet-stream"),
    "POST topics: 8 MiB of members": _members("POST /v1/topics"),
    "PATCH topic: 8 MiB of members": _members("PATCH /v1/topics/flood"),
    "PATCH node: 8 MiB of members": _members("PATCH /v1/cluster/nodes/node"),
    "POST api-keys: 8 MiB of members": _members("POST /v1/api-keys"),
    "PUT group offsets: 4,096 positions": _post(
        lambda: _offsets({"topic": "wide", "next_offset": 0}, 4_096), "PUT /v1/groups/abuse/offsets"
    ),
    "PUT group offsets: 8 MiB of empty objects": _post(
        lambda: b'{"offsets":[' + b"{}," * 2_700_000 + b"{}]}", "PUT /v1/groups/abuse/offsets"
    ),
    "POST offsets:reset: 16,384 partitions": _post(
        lambda: json.dumps({"to": "earliest", "topic": "wide", "partitions": list(range(16_384))}).encode(),
        "POST /v1/groups/abuse/offsets:reset",
    ),
    "POST rules: 40,000 operations": _post(
        lambda: json.dumps({"principal": "p", "operations": ["consume"] * 40_000, "resource": "topic"}).encode(),
        "POST /v1/rules",
    ),
    "POST rules:test: 8 MiB of members": _members("POST /v1/rules:test"),
    "PUT quota: 8 MiB of members": _members("PUT /v1/quotas/abuse"),
    "GET records: 10,000 records": _get("/v1/topics/flood/partitions/0/records?max_records=10000"),
    "GET records: by a missing key": _get("/v1/topics/flood/partitions/0/records?key=none&max_records=10000"),
    "GET records: 10,000 records as NDJSON": _read(
        "/v1/topics/flood/partitions/0/records?max_records=10000", "application/x-ndjson"
    ),
    "GET records: 10,000 records as CSV in base64": _read(
        "/v1/topics/flood/partitions/0/records?max_records=10000&value_encoding=base64", "text/csv"
    ),
    "GET records: 10,000 records as Arrow": _read(
        "/v1/topics/flood/partitions/0/records?max_records=10000", "application/vnd.apache.arrow.stream"
    ),
    "GET topic records: 10,000 records": _get("/v1/topics/flood/records?max_records=10000"),
    "GET topic records: 4,096 partitions": _get("/v1/topics/wide/records?from=latest&wait_ms=100"),
    "GET key: a missing one": _get("/v1/topics/flood/keys/none"),
    "GET topic: 4,096 partitions": _get("/v1/topics/wide"),
    "GET topics: 1,000": _get("/v1/topics?limit=1000"),
    "GET topics: 1,000 with figures": _get("/v1/topics?limit=1000&figures=true"),
    "GET cluster": _get("/v1/cluster"),
    "GET history": _get("/v1/history"),
    "GET history: of a topic": _get("/v1/history?topic=wide"),
    "GET offsets: 4,096 partitions": _get("/v1/topics/wide/offsets"),
    "GET offsets: 4,096 partitions by time": _get("/v1/topics/wide/offsets?timestamp=1700000000000"),
    "GET group offsets: 4,096 positions": _get("/v1/groups/abuse/offsets"),
    "GET group lag: 4,096 partitions": _get("/v1/groups/abuse/lag?topic=wide"),
    "GET groups": _get("/v1/groups?limit=1000"),
    "GET group": _get("/v1/groups/abuse"),
    "GET rules": _get("/v1/rules"),
    "GET api-keys": _get("/v1/api-keys"),
    "GET quotas": _get("/v1/quotas"),
    "GET quotas:usage": _get("/v1/quotas:usage"),
    "GET metrics": _get("/metrics"),
    "GET openapi.json": _get("/openapi.json"),
    "GET readyz": _get("/readyz"),
    **{
        f"{line}: a large head": _head(line)
        for line in (
            "DELETE /v1/topics/none",
            "DELETE /v1/topics/none/partitions/0/records",
            "DELETE /v1/groups/none",
            "DELETE /v1/api-keys/none",
            "DELETE /v1/rules/none",
            "DELETE /v1/quotas/none",
            "GET /v1/topics/flood/partitions/0/offsets",
            "GET /livez",
            "GET /readyz",
            "GET /metrics",
            "GET /openapi.json",
            "GET /docs",
            "GET /docs/assets/none",
            "GET /",
            "GET /ui",
            "GET /ui/",
            "GET /ui/client.js",
            "GET /v1/me",
            "GET /v1/topics/none/stream",
        )
    },
}
"""The requests to measure, by a name that begins with the route."""
