"""A wrong value for each parameter of each route, wrong methods, and missing resources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from tests.gateway.bad.case import TOPIC, Case, head

_T: Final = f"/v1/topics/{TOPIC}"
_P0: Final = f"{_T}/partitions/0"
_KEY: Final = "/v1/topics/{topic}/keys/{key}"
_PARTITION: Final = "/v1/topics/{topic}/partitions/{partition}"
_NUMBERS: Final = ("", "-1", "x", "1.5", "1e3", "0x1", "9223372036854775808", "1" * 400, "\u0661", "1 2", "null")
_TIMES: Final = ("", "yesterday", "-1", "2013-01-01", "2013-01-01T00:00:00", "24:00", "9" * 16, "0001-01-01T00:00:00Z")
_COUNTS: Final = ("0", "-1", "x", "1.5", "999999999", "")
_FROM: Final = ("begin", "EARLIEST", "", "0")
_TOPICS: Final = ("", "__meta", "a b", "x" * 201, "..")
_CURSORS: Final = ("*", "x" * 401, "/w==", "\u00e9")
_ENCODINGS: Final = ("hex", "", "json")

_QUERIES: Final[dict[tuple[str, str], dict[str, tuple[str, ...]]]] = {
    (f"GET {_P0}/records", _PARTITION + "/records"): {
        "offset": _NUMBERS,
        "timestamp": _TIMES,
        "from": _FROM,
        "max_records": (*_COUNTS, "10001"),
        "max_bytes": (*_COUNTS, "8388609"),
        "wait_ms": ("-1", "x", "30001"),
        "key_encoding": _ENCODINGS,
        "tag": ("x" * 4_097,),
    },
    (f"DELETE {_P0}/records", _PARTITION + "/records"): {
        "before_offset": _NUMBERS,
        "before_timestamp": _TIMES,
    },
    (f"GET {_T}/stream", "/v1/topics/{topic}/stream"): {
        "from": _FROM,
        "timestamp": _TIMES,
        "offsets": ("", "0", "0:", "0:-1", "0:x", "0:1,0:2", "100000:0", "0:9223372036854775808", "0:0;1:0"),
        "key_encoding": _ENCODINGS,
        "last_event_id": ("x", "*", "AAAA"),
    },
    (f"GET {_T}/keys/k", _KEY): {"key_encoding": _ENCODINGS, "partition": ("-1", "100000", "x")},
    (f"GET {_T}/offsets", "/v1/topics/{topic}/offsets"): {"timestamp": _TIMES},
    (f"GET {_P0}/offsets", _PARTITION + "/offsets"): {"timestamp": ("x",)},
    ("GET /v1/topics", "/v1/topics"): {"limit": (*_COUNTS, "1001"), "cursor": _CURSORS, "figures": ("2", "", "maybe")},
    ("GET /v1/groups", "/v1/groups"): {"limit": (*_COUNTS, "1001"), "cursor": _CURSORS},
    ("GET /v1/groups/bad/offsets", "/v1/groups/{group}/offsets"): {"topic": _TOPICS},
    ("GET /v1/groups/bad/lag", "/v1/groups/{group}/lag"): {"topic": _TOPICS},
    ("GET /v1/history", "/v1/history"): {"topic": _TOPICS},
}
_ADDRESSES: Final[dict[str, tuple[int, str | None]]] = {
    "GET /v1/topics/none": (404, "/v1/topics/{topic}"),
    "GET /v1/topics/none/offsets": (404, "/v1/topics/{topic}/offsets"),
    "DELETE /v1/topics/none": (404, "/v1/topics/{topic}"),
    "GET /v1/topics/__meta": (422, "/v1/topics/{topic}"),
    "GET /v1/topics/" + "x" * 201: (422, "/v1/topics/{topic}"),
    "GET /v1/topics/%F0%9F%A6%86": (422, "/v1/topics/{topic}"),
    f"GET {_T}/partitions/9/records?offset=0": (404, _PARTITION + "/records"),
    f"GET {_T}/partitions/-1/records": (422, _PARTITION + "/records"),
    f"GET {_T}/partitions/100000/records?offset=0": (422, _PARTITION + "/records"),
    f"GET {_T}/partitions/00000000000000000/offsets": (200, _PARTITION + "/offsets"),
    f"GET {_T}/partitions/%D9%A1/offsets": (422, _PARTITION + "/offsets"),
    f"GET {_T}/partitions/x/offsets": (422, _PARTITION + "/offsets"),
    f"GET {_P0}/records?offset=1": (422, _PARTITION + "/records"),
    f"GET {_P0}/records?offset=0&offset=0": (422, _PARTITION + "/records"),
    f"GET {_P0}/records?offset=0&from=latest": (422, _PARTITION + "/records"),
    f"GET {_P0}/records?offset=0&ofset=1": (422, _PARTITION + "/records"),
    f"GET {_P0}/records?Offset=0": (422, _PARTITION + "/records"),
    f"GET {_P0}/records?offset%5B%5D=0": (422, _PARTITION + "/records"),
    f"GET {_P0}/records?" + "&".join(["x=1"] * 2_000): (400, _PARTITION + "/records"),
    f"GET {_P0}/records?key=*&key_encoding=base64": (422, _PARTITION + "/records"),
    f"GET {_P0}/records?key=YR==&key_encoding=base64": (422, _PARTITION + "/records"),
    f"GET {_T}/keys/none": (404, _KEY),
    f"GET {_T}/keys/%3D?key_encoding=base64": (422, _KEY),
    f"GET {_T}/keys/" + "x" * 32_769: (422, _KEY),
    f"DELETE {_P0}/records?before_offset=7": (422, _PARTITION + "/records"),
    f"DELETE {_P0}/records": (422, _PARTITION + "/records"),
    f"DELETE {_P0}/records?before_offset=0&before_timestamp=0": (422, _PARTITION + "/records"),
    f"GET {_T}/stream?from=latest&timestamp=0": (422, "/v1/topics/{topic}/stream"),
    "GET /v1/topics/none/stream": (404, "/v1/topics/{topic}/stream"),
    "GET /v1/groups/none": (404, "/v1/groups/{group}"),
    "GET /v1/groups/" + "x" * 256: (422, "/v1/groups/{group}"),
    "GET /v1/groups/a%0Ab": (422, "/v1/groups/{group}"),
    "GET /v1/groups/a%00b/lag": (422, "/v1/groups/{group}/lag"),
    "DELETE /v1/groups/none": (404, "/v1/groups/{group}"),
    "GET /v1/api-keys": (403, "/v1/api-keys"),
    "GET /v1/rules": (403, "/v1/rules"),
    "DELETE /v1/rules/*": (403, "/v1/rules/{rule_id}"),
    "GET /v1/history?topic=none": (404, "/v1/history"),
    "GET /v1/me?x=1": (422, "/v1/me"),
    "GET /v1": (404, None),
    "GET /v2/topics": (404, None),
    "GET /V1/topics": (404, None),
    "GET /ui/../index.html": (404, None),
    "GET /ui/%2e%2e%2fapp.py": (404, None),
    "GET /docs/assets/..%2f..%2fapp.py": (404, None),
    "PUT /v1/topics": (405, None),
    "DELETE /v1/topics": (405, None),
    "POST /v1/groups": (405, None),
    f"PUT {_T}": (405, None),
    f"PATCH {_T}/records": (405, None),
    f"POST {_P0}/offsets": (405, None),
    f"POST {_T}/stream": (405, None),
    "DELETE /livez": (405, None),
    "POST /metrics": (405, None),
    "GET /v1/ws": (426, None),
}

_SHOWN: Final = {"last_event_id": "Last-Event-ID"}


def _cases() -> Iterator[tuple[str, Case]]:
    for (line, path), parameters in _QUERIES.items():
        method = line.split(" ")[0].lower()
        for name, values in parameters.items():
            for value in values:
                shown = value if len(value) <= 30 else f"{value[:10]}…{len(value)}"
                data = head(f"{line}?{name}={quote(value, safe='')}")
                yield f"{line} {name}={shown!r}", Case(data, 422, (_SHOWN.get(name, name),), (method, path))
    for line, (status, described) in _ADDRESSES.items():
        operation = None if described is None else (line.split(" ")[0].lower(), described)
        yield line if len(line) <= 80 else f"{line[:60]}…{len(line)}", Case(head(line), status, (), operation)


PARAMETERS: Final[dict[str, Case]] = dict(_cases())
