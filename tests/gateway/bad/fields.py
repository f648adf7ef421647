"""Invalid bodies: of a wrong type, not JSON, and with a wrong value in each field of each route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.gateway.bad.case import COMPACTED, TOPIC, Case, as_json, with_body

_TOPIC_NAME: Final = f"/v1/topics/{TOPIC}"
_PUBLISH: Final = f"POST {_TOPIC_NAME}/records"
_PUBLISHED: Final = ("post", "/v1/topics/{topic}/records")
_GOOD: Final = b'{"records":[{"value":"x"}]}'
_INVALID: Final = "invalid_request"


def _text(
    body: bytes, *says: str, status: int = 422, code: str = _INVALID, media_type: str = "application/json"
) -> Case:
    return Case(with_body(_PUBLISH, body, media_type=media_type), status, says, _PUBLISHED, code)


def _typed(media_type: str | None, *fields: str, says: tuple[str, ...], code: str = "unsupported_media_type") -> Case:
    return Case(with_body(_PUBLISH, _GOOD, *fields, media_type=media_type), 415, says, _PUBLISHED, code)


def _nested(opening: bytes, closing: bytes, levels: int) -> bytes:
    return b'{"records":[{"value_encoding":"json","value":%b1%b}]}' % (opening * levels, closing * levels)


BODIES: Final[dict[str, Case]] = {
    "no body": _text(b"", "JSON"),
    "a body of spaces": _text(b" \n\t", "JSON"),
    "half a body": _text(b'{"records":[{"value":"x"}', "JSON"),
    "text after the body": _text(_GOOD + b"x", "JSON"),
    "two bodies": _text(_GOOD * 2, "JSON"),
    "a comma too many": _text(b'{"records":[{"value":"x"},]}', "JSON"),
    "single quotes": _text(b"{'records':[]}", "JSON"),
    "a comment": _text(b"/* x */" + _GOOD, "JSON"),
    "a byte order mark": _text(b"\xef\xbb\xbf" + _GOOD, "JSON"),
    "UTF-16": _text(_GOOD.decode().encode("utf-16-le"), "JSON"),
    "UTF-32": _text(_GOOD.decode().encode("utf-32-be"), "JSON"),
    "ISO 8859-1": _text(b'{"records":[{"value":"\xe9"}]}', "JSON"),
    "an overlong quote": _text(b'{"records":[{"value":"\xc0\xa2"}]}', "JSON"),
    "a surrogate in UTF-8": _text(b'{"records":[{"value":"\xed\xa0\x80"}]}', "JSON"),
    "a lone surrogate as an escape": _text(b'{"records":[{"value":"\\ud800"}]}', "JSON"),
    "a bad escape": _text(b'{"records":[{"value":"\\x41"}]}', "JSON"),
    "a line end in a text": _text(b'{"records":[{"value":"a\nb"}]}', "JSON"),
    "a zero byte in a text": _text(b'{"records":[{"value":"a\0b"}]}', "JSON"),
    "a number with a leading zero": _text(b'{"records":[{"value":"x","partition":01}]}', "JSON"),
    "a number in hexadecimal": _text(b'{"records":[{"value":"x","partition":0x1}]}', "JSON"),
    "a number with a sign": _text(b'{"records":[{"value":"x","partition":+1}]}', "JSON"),
    "a number of 5,000 digits": _text(b'{"records":[{"value":"x","partition":%b}]}' % (b"9" * 5_000)),
    "an exponent of 9 digits": _text(b'{"records":[{"value":"x","partition":1e999999999}]}'),
    "NaN": _text(b'{"records":[{"value":NaN,"value_encoding":"json"}]}', "NaN"),
    "Infinity": _text(b'{"records":[{"value":-Infinity,"value_encoding":"json"}]}', "infinities"),
    "NaN in a number": _text(b'{"records":[{"value":"x","partition":NaN}]}', "partition"),
    "100,000 levels of arrays": _text(_nested(b"[", b"]", 100_000)),
    "100,000 levels of objects": _text(_nested(b'{"a":', b"}", 100_000)),
    "300 levels of arrays": _text(_nested(b"[", b"]", 300)),
    "100,000 opening brackets": _text(b"[" * 100_000),
    "an array": _text(b"[]", "object"),
    "a number": _text(b"7", "7"),
    "a text": _text(b'"records"', "records"),
    "null": _text(b"null"),
    "an empty object": _text(b"{}", "/records", "missing"),
    "no records": _text(b'{"records":[]}', "/records"),
    "records of null": _text(b'{"records":null}', "/records", "null"),
    "records of a number": _text(b'{"records":1}', "/records", "got 1"),
    "records of an object": _text(b'{"records":{"0":{"value":"x"}}}', "/records"),
    "a record of null": _text(b'{"records":[null]}', "/records/0"),
    "a record of text": _text(b'{"records":["x"]}', "/records/0", "x"),
    "a record of a list": _text(b'{"records":[["value","x"]]}', "/records/0"),
    "an unknown member besides the records": _text(b'{"records":[{"value":"x"}],"topic":"y"}', "/topic", "unknown"),
    "10,001 records": _text(b'{"records":[' + b",".join([b'{"value":""}'] * 10_001) + b"]}", "10000"),
    "200,000 empty records": _text(b'{"records":[' + b",".join([b"{}"] * 200_000) + b"]}", "10000"),
    "a record of 64,001 values": _text(
        b'{"records":[{"value_encoding":"json","value":[%b1]}]}' % (b"1," * 64_001), "64000", "/records/0"
    ),
    "a record of 5,000 members": _text(as_json({"records": [{f"m{each}": "x" * 20 for each in range(5_000)}]}), "100"),
    "no media type": _typed(None, says=("application/json",)),
    "an empty media type": _typed("", says=("application/json",)),
    "text": _typed("text/plain", says=("text/plain",)),
    "a form": _typed("application/x-www-form-urlencoded", says=("application/x-www-form-urlencoded",)),
    "multipart": _typed("multipart/form-data; boundary=x", says=("multipart/form-data",)),
    "a media type without a slash": _typed("json", says=("json",)),
    "a media type of 8,000 characters": _typed("x/" + "y" * 8_000, says=("x/y",)),
    "JSON in UTF-16": _typed("application/json; charset=utf-16", says=("utf-16",)),
    "JSON in ISO 8859-1": _typed('application/json; charset="iso-8859-1"', says=("iso-8859-1",)),
    "gzip": _typed("application/json", "Content-Encoding: gzip", says=("gzip",), code="unsupported_content_encoding"),
    "br and gzip": _typed(
        "application/json", "Content-Encoding: br, gzip", says=("br, gzip",), code="unsupported_content_encoding"
    ),
    "an unknown encoding": _typed(
        "application/json", "Content-Encoding: rot13", says=("rot13",), code="unsupported_content_encoding"
    ),
    "Accept of an image": Case(
        with_body(_PUBLISH, _GOOD, "Accept: image/png"), 406, ("image/png",), _PUBLISHED, "not_acceptable"
    ),
    "Accept without JSON": Case(
        with_body(_PUBLISH, _GOOD, "Accept: application/json;q=0, */*;q=0"), 406, ("q=0",), _PUBLISHED, "not_acceptable"
    ),
    "a page of another host": Case(
        with_body(_PUBLISH, _GOOD, "Origin: https://evil.example"), 403, ("evil.example",), _PUBLISHED, "forbidden"
    ),
    "a sandboxed page": Case(with_body(_PUBLISH, _GOOD, "Origin: null"), 403, ("null",), _PUBLISHED, "forbidden"),
    "records without a key to a compacted topic": Case(
        with_body(f"POST /v1/topics/{COMPACTED}/records", _GOOD), 422, ("key",), _PUBLISHED, "unsupported_batch"
    ),
    "a tombstone without a key to a compacted topic": Case(
        with_body(f"POST /v1/topics/{COMPACTED}/records", b'{"records":[{"value":null}]}'),
        422,
        ("key",),
        _PUBLISHED,
        "unsupported_batch",
    ),
    "records of no topic": Case(
        with_body("POST /v1/topics/none/records", _GOOD), 404, ("none",), _PUBLISHED, "unknown_topic"
    ),
    "records of the broker's own topic": Case(
        with_body("POST /v1/topics/__meta/records", _GOOD), 422, ("__meta",), _PUBLISHED, "invalid_topic"
    ),
}

_WRONG_RECORDS: Final[dict[str, tuple[Any, ...]]] = {
    "value": (7, True, [], {}, 1.5),
    "value_encoding": ("utf-8", "", None, 1, "JSON"),
    "key": (7, [], {"a": 1}, False),
    "key_encoding": ("json", None, 0),
    "tag": (7, [], "x" * 4_097, "\u00e9" * 2_049),
    "partition": (-1, 100_000, 10**30, 1.0, 0.5, "0", True, [], 99),
    "timestamp_ms": (-1, 10**20, 1.5, "2013-01-01", False),
    "headers": ({}, "x", [["a"]], [["a", "b", "utf8", "d"]], [[None, "x"]], [["a", 1]], [["a", "*", "base64"]], [1]),
}
_ENCODED: Final[tuple[dict[str, Any], ...]] = (
    {"value": "*", "value_encoding": "base64"},
    {"value": "YQ", "value_encoding": "base64"},
    {"value": "YR==", "value_encoding": "base64"},
    {"value": "x", "key": "=", "key_encoding": "base64"},
    {"value": "x", "headers": [["n", "v", "hex"]]},
    {"value": "x", "headers": [["n", "v"]] * 257},
    {"value": "x", "Value": "y"},
    {"key": "no value"},
)
_WRONG: Final[dict[tuple[str, str], tuple[str, dict[str, Any], dict[str, tuple[Any, ...]]]]] = {
    ("post", "/v1/topics"): (
        "POST /v1/topics",
        {"name": "never"},
        {
            "name": ("", ".", "..", "__meta", "a b", "\u00e9", "a/b", "x" * 201, 7, None, ["a"]),
            "partitions": (0, -1, 100_001, 1.5, "2", True, 10**400),
            "flush": ("sometimes", 1, ""),
            "flush_interval_ms": (0, 2**32, "1"),
            "retention_bytes": (-1, 2**63, 1.5),
            "segment_bytes": (1, 2**40),
            "replication_factor": (0, 16, 3),
            "retention_ms": (-1, 10**18),
            "cleanup": ("shred", "compact, delete", 0),
            "dirty_percent": (0, 101),
            "index_key": (1, "true"),
            "hold": ("yes",),
            "deduplicate_s": (-1, 10**12),
            "engine": ("x",),
        },
    ),
    ("patch", "/v1/topics/{topic}"): (
        f"PATCH {_TOPIC_NAME}",
        {},
        {
            "partitions": (0, 1, 100_001, "3"),
            "name": ("other",),
            "retention_ms": (-5,),
            "cleanup": ("none",),
            "x": (None,),
        },
    ),
    ("put", "/v1/groups/{group}/offsets"): (
        "PUT /v1/groups/bad/offsets",
        {},
        {
            "offsets": (
                [],
                {},
                None,
                [{}],
                [1],
                [{"topic": TOPIC, "partition": 0}],
                [{"topic": TOPIC, "partition": -1, "next_offset": 0}],
                [{"topic": TOPIC, "partition": 0, "next_offset": -1}],
                [{"topic": TOPIC, "partition": 0, "next_offset": 2**63}],
                [{"topic": TOPIC, "partition": 0, "next_offset": 5}],
                [{"topic": "", "partition": 0, "next_offset": 0}],
                [{"topic": "__meta", "partition": 0, "next_offset": 0}],
                [{"topic": TOPIC, "partition": 0, "next_offset": 0}] * 2,
                [{"topic": TOPIC, "partition": 0, "next_offset": 0, "note": "x" * 5_000}],
                [{"topic": TOPIC, "partition": 0, "next_offset": 0, "commit": True}],
            ),
        },
    ),
    ("post", "/v1/groups/{group}/offsets:reset"): (
        "POST /v1/groups/bad/offsets:reset",
        {},
        {
            "to": ("begin", "", 1),
            "offset": (-1, 2**63, "0", 1.5),
            "timestamp": ("yesterday", "2013-01-01T00:00:00", 1, "9" * 41),
            "partitions": ([-1], [100_000], ["0"], {}),
            "dry_run": (1,),
            "topic": ("a b",),
        },
    ),
}


def _name(operation: tuple[str, str], field: str, value: Any) -> str:
    shown = repr(value)
    return (
        f"{operation[0].upper()} {operation[1]}: {field}={shown if len(shown) <= 60 else shown[:40] + f'…{len(shown)}'}"
    )


def _cases() -> Iterator[tuple[str, Case]]:
    for field, values in _WRONG_RECORDS.items():
        for value in values:
            record = {"value": "x", field: value}
            status = 404 if (field, value) == ("partition", 99) else 422
            says = "99" if status == 404 else f"/records/0/{field}"
            data = with_body(_PUBLISH, as_json({"records": [record]}))
            yield _name(_PUBLISHED, field, value), Case(data, status, (says,), _PUBLISHED)
    for record in _ENCODED:
        data = with_body(_PUBLISH, as_json({"records": [record]}))
        yield _name(_PUBLISHED, "record", record), Case(data, 422, ("/records/0/",), _PUBLISHED, _INVALID)
    for operation, (line, given, fields) in _WRONG.items():
        for field, values in fields.items():
            for value in values:
                yield (
                    _name(operation, field, value),
                    Case(with_body(line, as_json(given | {field: value})), 422, (), operation),
                )
        for body in (b"", b"[]", b"{", b"null", b'{"":0}', b"\xff"):
            yield _name(operation, "body", body), Case(with_body(line, body), 422, (), operation, _INVALID)
        yield f"{line}: no JSON", Case(with_body(line, b"{}", media_type="text/plain"), 415, ("text/plain",), operation)


FIELDS: Final[dict[str, Case]] = dict(_cases())
