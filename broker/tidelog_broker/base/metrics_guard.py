"""Who may see a node's metrics, which name topics and callers: on loopback everybody, elsewhere who shows a token."""

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
"""How often the file is read."""


class MetricsRefusal(NamedTuple):
    """An answer of HTTP: the status as HTTP writes it, words, and headers of its own."""

    status: str
    why: str
    headers: tuple[tuple[str, str], ...] = ()


_CLOSED: Final = MetricsRefusal(
    "403 Forbidden",
    "others reach this port, and metrics name topics: set management_token_file, or management_host to 127.0.0.1",
)
_UNKNOWN: Final = MetricsRefusal(
    "401 Unauthorized",
    "metrics are for who shows a token of management_token_file: Authorization: Bearer TOKEN",
    (("WWW-Authenticate", 'Bearer realm="metrics"'),),
)


class MetricsGuard:
    """See the module. `refusal` may be asked on another thread than `look`.

    Args:
        path: the file of the tokens, one a line; None: there are none.
        is_open: whether everybody may see everything where there is no file.

    Raises:
        SettingsError: the file is not as it must be.
    """

    def __init__(self, path: Path | None, *, is_open: bool) -> None:
        self._path = path
        self._is_open = is_open
        self._tokens = None if path is None else Followed(lambda: read_tokens(path), SettingsError, log)

    @classmethod
    def of(cls, settings: NodeSettings) -> Self:
        """Return what settings say.

        Raises:
            SettingsError: the file is not as it must be.
        """
        is_open = settings.insecure or is_loopback(settings.management_host)
        return cls(settings.management_token_file, is_open=is_open)

    @property
    def asks_for_tokens(self) -> bool:
        """Whether there are tokens, without which metrics are refused."""
        return self._tokens is not None

    def refusal(self, authorization: str) -> MetricsRefusal | None:
        """Return what is answered to who has sent this header, `Authorization`; None: he may see all."""
        if self._tokens is None:
            return None if self._is_open else _CLOSED
        scheme, _, shown = authorization.partition(" ")
        shown_bytes = shown.strip().encode("latin-1", "replace")
        # All of them are compared, so that the time does not tell which of them is nearly right.
        are_right = [hmac.compare_digest(shown_bytes, token) for token in self._tokens.value]
        return None if scheme.lower() == "bearer" and any(are_right) else _UNKNOWN

    def look(self) -> None:
        """Read the file again. Blocks; for a worker. While it is not as it must be, what was read before holds."""
        if self._tokens is not None and self._tokens.look():
            log.info("%d tokens for metrics are read from %s", len(self._tokens.value), self._path)

    async def follow(self, workers: Offload) -> None:
        """Follow the file, as long as the node runs.

        Args:
            workers: read it.
        """
        while self._tokens is not None:
            await asyncio.sleep(LOOK_S)
            await workers.call(0, self.look)


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Return the tokens of a file, one a line. Lines that begin with # say nothing.

    Raises:
        SettingsError: the file cannot be read, every user may read it, or a line is no token.
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
                f"line {number} of management_token_file {path}: a token has {TOKEN_CHARS_MIN} or more characters of "
                "ASCII and no spaces"
            )
    if not 1 <= len(found) <= TOKENS_MAX:
        raise SettingsError(
            f"management_token_file {path} has {len(found)} tokens, and must have 1 to {TOKENS_MAX}, one a line: "
            f"`openssl rand -hex 32 > FILE` makes one"
        )
    return tuple(line for _, line in found)
