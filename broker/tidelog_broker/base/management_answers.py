"""Answers of the management port: `/livez`, `/readyz` and `/metrics`. `wire.management_port` listens and sends them.

`/livez` reports whether the event loop is responsive, `/readyz` whether the node serves, `/metrics` its metrics. A node
without its quorum is ready, because it still serves committed records; the answer counts the partitions that cannot be
written. A node with a full disk is not ready, so that monitoring notices it. Orchestrators request the first two
without credentials, so they are open; names of topics and callers are only shown to requests that `MetricsGuard`
accepts. If `MetricsGuard` accepts all requests, such names are still withheld from requests for a host name that is not
the node's, which a web page could send by DNS rebinding (`HostNames`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, make_wsgi_app

from tidelog_broker.base.metrics_guard import MetricsGuard, MetricsRefusal
from tidelog_proto.auth.host_header import HostNames

HEARTBEAT_MS_MAX: Final = 5_000
"""An event loop without a heartbeat for this long counts as stuck."""

_SHOWN_CHARS: Final = 200

NAMED_MAX: Final = 20
"""Maximum number of partitions without a quorum that `/readyz` names; it counts all."""

State = Literal["starting", "running", "stopping", "failed"]
"""A node's lifecycle state; see `base.lifecycle.NEXT`."""

_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_OF_A_HEAD: Final = re.compile("[\0\r\n]")
_ONCE: Final = frozenset({"authorization", "content-length", "host", "transfer-encoding"})
"""Header fields that may not be repeated, since two parsers could use different values of them."""

BROWSER_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
)
"""Headers of every answer: not cached, no content sniffing, no framing."""


class Health:
    """State shared with the management port's thread: the event loop's heartbeat and the node's state."""

    def __init__(self) -> None:
        self.beat_s = time.monotonic()
        self.state: State = "starting"
        """Changed only by `base.lifecycle`."""
        self.disk_full = False
        """Whether the disk has no space for appends, or a publish was recently refused for lack of space."""
        self.no_quorum: Sequence[str] = ()
        """Names of the local partitions without enough reachable replicas for a quorum."""

    def beat(self) -> None:
        """Record that the event loop is responsive."""
        self.beat_s = time.monotonic()

    @property
    def reported_state(self) -> str:
        """The state for operators: `disk_full` while the node runs and has no space to append."""
        return "disk_full" if self.disk_full and self.state == "running" else self.state

    @property
    def is_live(self) -> bool:
        """Whether the event loop was recently responsive."""
        return time.monotonic() - self.beat_s < HEARTBEAT_MS_MAX / 1000

    @property
    def is_ready(self) -> bool:
        """Whether the node serves, and has space to append."""
        return self.is_live and self.state == "running" and not self.disk_full


class _ParsedRequest(NamedTuple):
    """The parsed head of an HTTP request."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    """The header fields by lower-case name; the values of a repeated field are joined by commas."""
    hosts: tuple[str, ...]
    """The hosts that the request names: in `Host`, and in its target if that is an absolute URL."""


class Answers:
    """Answers requests of the management port.

    Args:
        guard: decides whether a request may see names of topics and callers.
        names: the host names of the port: requests for other hosts get no names of topics and callers. None with TLS,
            because then browsers compare the host name with the certificate. Ignored if `guard` needs tokens.
    """

    def __init__(
        self, health: Health, registry: CollectorRegistry, guard: MetricsGuard, names: HostNames | None = None
    ) -> None:
        self._health = health
        self._guard = guard
        self._names = None if guard.asks_for_tokens else names
        self._metrics = make_wsgi_app(registry)

    def answer(self, head: bytes) -> bytes | Callable[[], bytes]:
        """Return the complete answer to a request head; the connection closes after it.

        Args:
            head: the head, including the empty line at its end.

        Returns:
            The answer, or a function that makes it on a worker: a page of metrics takes seconds with many partitions.
        """
        request = _parse_request(head)
        if request is None:
            return refusal("400 Bad Request", "the request line or a header is not valid HTTP/1.0 or HTTP/1.1")
        refused = self._guard.refusal(request.headers.get("authorization", "")) or self._misdirected(request)
        match request.path:
            case "/metrics" if request.method not in {"GET", "HEAD"}:
                return refusal(
                    "405 Method Not Allowed",
                    f"/metrics does not support {request.method}; use GET or HEAD",
                    ("Allow", "GET, HEAD"),
                )
            case "/metrics" if refused is not None:
                return refusal(refused.status, refused.why, *refused.headers)
            case "/metrics":
                return partial(self._page, request)
            case "/livez":
                answer_of_health = _health_answer(self._health.is_live, "live" if self._health.is_live else "stuck")
            case "/readyz":
                health = self._health
                answer_of_health = _health_answer(
                    health.is_ready, health.reported_state, health.no_quorum, are_named=refused is None
                )
            case _:
                answer_of_health = "404 Not Found", {"status": "not found; use /livez, /readyz or /metrics"}
        return _json(*answer_of_health, is_head=request.method == "HEAD")

    def _misdirected(self, request: _ParsedRequest) -> MetricsRefusal | None:
        """Return the refusal of a request for a host name that is not one of this port; None for other requests."""
        names = self._names
        strange = None if names is None else next((host for host in request.hosts if not names.is_own(host)), None)
        if strange is None:
            return None
        return MetricsRefusal(
            "421 Misdirected Request",
            f"{strange[:_SHOWN_CHARS]!r} is not a name of this node (DNS rebinding protection); use "
            "the node's address or advertise_host, or set management_token_file",
        )

    def _page(self, request: _ParsedRequest) -> bytes:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": request.path, "QUERY_STRING": request.query}
        for name in ("accept", "accept-encoding"):
            if name in request.headers:
                environ["HTTP_" + name.upper().replace("-", "_")] = request.headers[name]
        begun: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]]) -> None:
            begun.append((status, headers))

        page = b"".join(self._metrics(environ, start))
        ((status, headers),) = begun
        return _response(status, page, *headers, is_head=request.method == "HEAD")


def refusal(status: str, why: str, *headers: tuple[str, str]) -> bytes:
    """Return an error answer.

    Args:
        status: the HTTP status code and reason phrase, like `404 Not Found`.
        why: the `status` in the JSON body.
    """
    return _json(status, {"status": why}, *headers)


def _parse_request(head: bytes) -> _ParsedRequest | None:
    """Parse a request head; return None if it is invalid."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    if any(map(_NOT_OF_A_HEAD.search, (first, *lines))):  # a NUL or a bare CR or LF, which may end a line
        return None
    words = first.split(" ")
    if len(words) != 3 or not words[0] or words[2] not in {"HTTP/1.0", "HTTP/1.1"}:
        return None
    headers = _fields(lines)
    try:
        target = urlsplit(words[1])
    except ValueError:
        return None
    if headers is None:
        return None
    hosts = (*filter(None, [target.netloc]), *([headers["host"]] if "host" in headers else []))
    return _ParsedRequest(words[0], target.path, target.query, headers, hosts)


def _fields(lines: Sequence[str]) -> dict[str, str] | None:
    """Parse the fields of a head; return None if another parser could read them differently (RFC 9112, 5 and 6.3).

    Such fields include folded lines, space before a colon, a repeated field of `_ONCE`, and an invalid length.
    """
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if not colon or _FIELD_NAME.fullmatch(name) is None or (name in headers and name in _ONCE):
            return None
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or {"content-length", "transfer-encoding"} <= headers.keys():
        return None
    return headers


def _health_answer(
    is_good: bool, state: str, missing: Sequence[str] = (), *, are_named: bool = False
) -> tuple[str, dict[str, Any]]:
    fields: dict[str, Any] = {"status": state}
    if missing:
        fields["no_quorum"] = len(missing)
        if are_named:
            fields["no_quorum_partitions"] = list(missing[:NAMED_MAX])
    return ("200 OK" if is_good else "503 Service Unavailable"), fields


def _json(status: str, fields: dict[str, Any], *headers: tuple[str, str], is_head: bool = False) -> bytes:
    return _response(
        status, json.dumps(fields).encode(), ("Content-Type", "application/json"), *headers, is_head=is_head
    )


def _response(status: str, body: bytes, *headers: tuple[str, str], is_head: bool) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in (*headers, *BROWSER_HEADERS))]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + (b"" if is_head else body)
