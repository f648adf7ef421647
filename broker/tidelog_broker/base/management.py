"""What a node says of itself over HTTP: `/livez`, `/readyz` and `/metrics`. The port is `wire.management_port`.

`/livez` says whether the event loop still turns, `/readyz` whether the node serves, `/metrics` what it counts. A node
without its quorum is ready: it serves what is committed, and to take it out helps nobody. The answer says what cannot
be written. A node whose disk is full is not ready, so that whoever watches it hears of that. Orchestrators ask for the
first two and show nothing, so everybody gets them; names of topics and of callers get those alone whom `MetricsGuard`
lets see them. Where it lets everybody, a page of a browser whose own name was rebound to this machine gets none
(`HostNames`).
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
"""An event loop that has not turned for this long counts as stuck."""

_SHOWN_CHARS: Final = 200

NAMED_MAX: Final = 20
"""So many partitions without a quorum `/readyz` names; it counts them all."""

State = Literal["starting", "running", "stopping", "failed"]
"""How far a node's life has come; see `base.life.NEXT`."""

_FIELD_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_OF_A_HEAD: Final = re.compile("[\0\r\n]")
_ONCE: Final = frozenset({"authorization", "content-length", "host", "transfer-encoding"})
"""Fields that may not be on two lines, since two parsers could each take another one."""

BROWSER_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
)
"""Of every answer: no cache keeps it, and a browser neither guesses its type nor shows it inside a page."""


class Health:
    """What the node's thread and that of the port share: a heartbeat from the loop and the node's own word."""

    def __init__(self) -> None:
        self.beat_s = time.monotonic()
        self.state: State = "starting"
        """Changed by `base.life` alone."""
        self.disk_full = False
        """Whether there is no space to append."""
        self.no_quorum: Sequence[str] = ()
        """Partitions with a copy here of which too few replicas are there."""

    def beat(self) -> None:
        """Say that the event loop turns."""
        self.beat_s = time.monotonic()

    @property
    def is_live(self) -> bool:
        """Whether the loop has turned lately."""
        return time.monotonic() - self.beat_s < HEARTBEAT_MS_MAX / 1000

    @property
    def is_ready(self) -> bool:
        """Whether the node serves, and has space to append."""
        return self.is_live and self.state == "running" and not self.disk_full


class _Asked(NamedTuple):
    """A request, as far as it is looked at."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    """By their names in small letters; the values of several lines with commas between them."""
    hosts: tuple[str, ...]
    """The hosts that it names: in `Host`, and in its target where that is a whole URL."""


class Answers:
    """What is answered to a request.

    Args:
        health: what is told of the node.
        registry: its metrics.
        guard: who may see names.
        names: host names of the port, where a page could reach it by another one; None with TLS, which checks the name.
    """

    def __init__(
        self, health: Health, registry: CollectorRegistry, guard: MetricsGuard, names: HostNames | None = None
    ) -> None:
        self._health = health
        self._guard = guard
        self._names = None if guard.asks_for_tokens else names
        self._metrics = make_wsgi_app(registry)

    def answer(self, head: bytes) -> bytes | Callable[[], bytes]:
        """Return the whole answer to the head of a request; the connection ends behind it.

        Args:
            head: with the empty line that ends it.

        Returns:
            It, or a function that makes it: with many partitions a page of metrics takes seconds, on a worker.
        """
        asked = _asked(head)
        if asked is None:
            return refusal("400 Bad Request", "this is no request of HTTP/1")
        refused = self._guard.refusal(asked.headers.get("authorization", "")) or self._misdirected(asked)
        match asked.path:
            case "/metrics" if asked.method not in {"GET", "HEAD"}:
                return refusal("405 Method Not Allowed", "ask for /metrics with GET", ("Allow", "GET, HEAD"))
            case "/metrics" if refused is not None:
                return refusal(refused.status, refused.why, *refused.headers)
            case "/metrics":
                return partial(self._page, asked)
            case "/livez":
                said = _said(self._health.is_live, "live" if self._health.is_live else "stuck")
            case "/readyz":
                health = self._health
                state = "disk_full" if health.disk_full and health.state == "running" else health.state
                said = _said(health.is_ready, state, health.no_quorum, are_named=refused is None)
            case _:
                said = "404 Not Found", {"status": "there is /livez, /readyz and /metrics"}
        return _json(*said, is_head=asked.method == "HEAD")

    def _misdirected(self, asked: _Asked) -> MetricsRefusal | None:
        """Return what is answered to a request that came by a name that is not the port's; None for all others."""
        names = self._names
        strange = None if names is None else next((host for host in asked.hosts if not names.is_own(host)), None)
        if strange is None:
            return None
        return MetricsRefusal(
            "421 Misdirected Request",
            f"this node is not called {strange[:_SHOWN_CHARS]!r}: a page of the web may have given it that "
            "name; ask by its address or by advertise_host, or set management_token_file",
        )

    def _page(self, asked: _Asked) -> bytes:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": asked.path, "QUERY_STRING": asked.query}
        for name in ("accept", "accept-encoding"):
            if name in asked.headers:
                environ["HTTP_" + name.upper().replace("-", "_")] = asked.headers[name]
        begun: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]]) -> None:
            begun.append((status, headers))

        page = b"".join(self._metrics(environ, start))
        ((status, headers),) = begun
        return _response(status, page, *headers, is_head=asked.method == "HEAD")


def refusal(status: str, why: str, *headers: tuple[str, str]) -> bytes:
    """Return the answer to who does not get what he asks for.

    Args:
        status: as HTTP writes it, `404 Not Found`.
        why: in words.
        headers: more of them.
    """
    return _json(status, {"status": why}, *headers)


def _asked(head: bytes) -> _Asked | None:
    """Return what is asked; None: this is no request."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    if any(map(_NOT_OF_A_HEAD.search, (first, *lines))):  # a line that ends in a bare CR or LF
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
    return _Asked(words[0], target.path, target.query, headers, hosts)


def _fields(lines: Sequence[str]) -> dict[str, str] | None:
    """Return the fields of a head; None where another parser could read them differently (RFC 9112, 5 and 6.3).

    That is a folded line, space before a colon, a field of `_ONCE` on two lines, and a length that is no number.
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


def _said(
    is_good: bool, state: str, missing: Sequence[str] = (), *, are_named: bool = False
) -> tuple[str, dict[str, Any]]:
    said: dict[str, Any] = {"status": state}
    if missing:
        said["no_quorum"] = len(missing)
        if are_named:
            said["no_quorum_partitions"] = list(missing[:NAMED_MAX])
    return ("200 OK" if is_good else "503 Service Unavailable"), said


def _json(status: str, said: dict[str, Any], *headers: tuple[str, str], is_head: bool = False) -> bytes:
    return _response(status, json.dumps(said).encode(), ("Content-Type", "application/json"), *headers, is_head=is_head)


def _response(status: str, body: bytes, *headers: tuple[str, str], is_head: bool) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in (*headers, *BROWSER_HEADERS))]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + (b"" if is_head else body)
