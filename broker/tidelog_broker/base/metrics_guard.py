"""Access to a node's metrics, which name topics and callers.

With `management_token_file`, a request needs one of its tokens. Without it, metrics are open on loopback and with
`insecure`, and closed otherwise.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from pathlib import Path
from typing import Final, NamedTuple, Self

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.offload import Offload
from tidelog_proto.auth.watched_files import Followed, NamedFileError, read_named
from tidelog_proto.limits import KIB
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.wire.loopback import is_loopback

log = logging.getLogger(__name__)

TOKEN_CHARS_MIN: Final = 16
TOKENS_MAX: Final = 16
FILE_BYTES_MAX: Final = 16 * KIB
LOOK_S: Final = 1.0
"""Interval at which `management_token_file` is read again, in seconds."""


class MetricsRefusal(NamedTuple):
    """An HTTP error answer: its status, the reason, and additional headers."""

    status: str
    why: str
    headers: tuple[tuple[str, str], ...] = ()


_CLOSED: Final = MetricsRefusal(
    "403 Forbidden",
    "/metrics names topics and is closed on ports that other machines reach; set management_token_file, or "
    "management_host to 127.0.0.1",
)
_UNKNOWN: Final = MetricsRefusal(
    "401 Unauthorized",
    "/metrics needs a token of management_token_file as: Authorization: Bearer TOKEN",
    (("WWW-Authenticate", 'Bearer realm="metrics"'),),
)


class MetricsGuard:
    """Decides whether a request may read metrics. `refusal` may be called on another thread than `look`.

    Args:
        path: the file of tokens, one a line; None if no tokens are used.
        is_open: whether metrics are open to all requests if there is no file.

    Raises:
        SettingsError: the file is invalid.
    """

    def __init__(self, path: Path | None, *, is_open: bool) -> None:
        self._path = path
        self._is_open = is_open
        self._tokens = None if path is None else Followed(lambda: read_tokens(path), SettingsError, log)

    @classmethod
    def of(cls, settings: NodeSettings) -> Self:
        """Return the guard for settings.

        Raises:
            SettingsError: the file is invalid.
        """
        is_open = settings.insecure or is_loopback(settings.management_host)
        return cls(settings.management_token_file, is_open=is_open)

    @property
    def asks_for_tokens(self) -> bool:
        """Whether metrics need a token."""
        return self._tokens is not None

    def refusal(self, authorization: str) -> MetricsRefusal | None:
        """Return the refusal of a request with this `Authorization` header; None if it may see metrics."""
        if self._tokens is None:
            return None if self._is_open else _CLOSED
        scheme, _, shown = authorization.partition(" ")
        shown_bytes = shown.strip().encode("latin-1", "replace")
        # All tokens are compared, so that the duration reveals nothing about them.
        are_right = [hmac.compare_digest(shown_bytes, token) for token in self._tokens.value]
        return None if scheme.lower() == "bearer" and any(are_right) else _UNKNOWN

    def look(self) -> None:
        """Reload the file of tokens, if there is one. Blocks briefly: call it on a worker thread.

        If the file is invalid, the last valid tokens stay in use.
        """
        if self._tokens is not None and self._tokens.look():
            log.info("loaded %d tokens for metrics from %s", len(self._tokens.value), self._path)

    async def follow(self, workers: Offload) -> None:
        """Reload the file repeatedly until cancelled."""
        while self._tokens is not None:
            await asyncio.sleep(LOOK_S)
            await workers.call(0, self.look)


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Return the tokens of a file, one a line. Lines that begin with # are comments.

    Raises:
        SettingsError: the file cannot be read, is readable by all users, has no token or more than `TOKENS_MAX`, or a
            line is not a token.
    """
    try:
        content = read_named(path, "the tokens of management_token_file", FILE_BYTES_MAX, is_secret=True)
    except NamedFileError as error:
        raise SettingsError(str(error)) from error
    lines = [(number, line.strip()) for number, line in enumerate(content.splitlines(), 1)]
    found = [(number, line) for number, line in lines if line and not line.startswith(b"#")]
    for number, line in found:
        if len(line) < TOKEN_CHARS_MIN or not line.isascii() or not line.decode().isprintable() or b" " in line:
            raise SettingsError(
                f"management_token_file {path}, line {number}: a token must have at least {TOKEN_CHARS_MIN} printable "
                f"ASCII characters and no spaces, got {len(line)} bytes; create one with: openssl rand -hex 32"
            )
    if not 1 <= len(found) <= TOKENS_MAX:
        raise SettingsError(
            f"management_token_file {path} must have 1 to {TOKENS_MAX} tokens, one a line, got {len(found)}; "
            + ("remove unused ones" if found else "create one with: openssl rand -hex 32 > FILE")
        )
    return tuple(line for _, line in found)
