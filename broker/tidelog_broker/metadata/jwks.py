"""The keys of JWTs, loaded from a file or URL, in the background and when a token needs an unknown key.

Loaded keys stay in use until other keys are loaded, also while the source is unavailable or invalid. A token with an
unknown key causes another load; loads have a minimum interval, whatever the number of tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.base.http_get import checked_url, http_get
from tidelog_broker.base.offload import Offload
from tidelog_broker.metadata.jwt_keys import KEY_SET_BYTES_MAX, KeySet, SigningKey, parse_key_set
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.settings import SettingsError

log = logging.getLogger(__name__)

JWT_IDENTITY_PREFIX: Final = "jwt/"
"""Prefix of a session's identity for tokens; the fingerprint of the token's key follows."""
WAITING_MAX: Final = 64
"""Maximum number of callers that wait for a load; further ones get OVERLOADED, after which a client retries."""
FETCH_S_MAX: Final = 4.0
LOAD_INTERVAL_MIN_S: Final = 3.0
"""Minimum interval between the starts of two loads. Together with `FETCH_S_MAX` it is shorter than the time for which a
client waits for the answer to HELLO."""


class _Waiting(NamedTuple):
    """A caller that waits for a key."""

    key_id: str | None
    looked: asyncio.Future[None]


class Jwks:
    """Provides the current keys that verify JWTs.

    Args:
        source: a path, or a URL that `checked_url` accepts.
        failed: called after each failed load.
        changed: called after the keys have changed.
        apart_s: see `LOAD_INTERVAL_MIN_S`.

    Raises:
        SettingsError: the file does not exist or is not a JWKS. A URL is not loaded here: it may be unavailable while a
            node starts.
        ValueError: see `checked_url`.
    """

    def __init__(
        self,
        source: str,
        *,
        workers: Offload,
        failed: Callable[[], None],
        changed: Callable[[], None],
        apart_s: float = LOAD_INTERVAL_MIN_S,
    ) -> None:
        self._source = source
        self._url = checked_url(source) if "://" in source else None
        self._tls = ssl.create_default_context()
        self._workers = workers
        self._failed = failed
        self._changed = changed
        self._apart_s = apart_s
        self._waiting: list[_Waiting] = []
        self._load_requested = asyncio.Event()
        self._problem = ""
        self._document = b""
        self._keys: KeySet | None = None
        if self._url is None:
            self._document = read_key_set(Path(source))
            try:
                self._keys = parse_key_set(self._document)
            except ValueError as error:
                raise SettingsError(f"jwt_jwks {source} contains no usable keys: {error}") from error

    def has_ended(self, identity: str) -> bool:
        """Return whether a session's token was signed by a key that the source no longer contains."""
        if self._keys is None or not identity.startswith(JWT_IDENTITY_PREFIX):
            return False
        return not self._keys.has(identity.removeprefix(JWT_IDENTITY_PREFIX))

    async def key(self, key_id: str | None) -> SigningKey:
        """Return the key of a token, loading the keys again if necessary.

        Raises:
            ProtocolError: UNAUTHENTICATED if it does not exist; EPOCH_CHANGING or OVERLOADED if that cannot be
                determined now.
        """
        found = None if self._keys is None else self._keys.find(key_id)
        if found is None:
            await self._reloaded(key_id)
            found = None if self._keys is None else self._keys.find(key_id)
        if found is not None:
            return found
        if self._keys is None or self._problem:
            what = "this node cannot load the keys of tokens (see its log); retry, or use another node"
            raise ProtocolError(pb.EPOCH_CHANGING, what, retry_after_ms=1000)
        if key_id is None:
            what = "the token does not name its key (kid), and the issuer has several; use a token with a kid"
            raise ProtocolError(pb.UNAUTHENTICATED, what)
        raise ProtocolError(
            pb.UNAUTHENTICATED,
            f"the token's key {key_id!r} is not one of the keys in jwt_jwks of this node; get a new token",
        )

    async def follow(self, *, every_s: float, again_s: float) -> None:
        """Load the keys repeatedly until cancelled.

        Args:
            every_s: interval of the loads while no token needs an unknown key.
            again_s: the same after a failed load.
        """
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            self._load_requested.clear()
            waiting, self._waiting = self._waiting, []
            had_none = self._keys is None
            await self._look()
            came, self._waiting = self._waiting, []
            # Tokens that arrived during the load wait for the next one, unless their key was found or no keys existed.
            for each in came:
                is_answered = had_none or (self._keys is not None and self._keys.find(each.key_id) is not None)
                (waiting if is_answered else self._waiting).append(each)
            for each in waiting:
                if not each.looked.done():
                    each.looked.set_result(None)
            await asyncio.sleep(max(0.0, began_s + self._apart_s - loop.time()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s if self._problem else every_s):
                    await self._load_requested.wait()

    async def _reloaded(self, key_id: str | None) -> None:
        """Wait for a load that begins from now on, or one that finds the key."""
        if len(self._waiting) >= WAITING_MAX:
            what = "too many tokens wait until the keys of their issuer are loaded; retry"
            raise ProtocolError(pb.OVERLOADED, what, retry_after_ms=1000)
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(key_id, loaded))
        self._load_requested.set()
        await loaded

    async def _look(self) -> None:
        try:
            document = await self._get()
            if document != self._document:
                self._keys = parse_key_set(document)
                self._document = document
                log.info("loaded %d keys that verify tokens from %s", len(self._keys), self._source)
                self._changed()
        except (OSError, ValueError) as error:
            self._failed()
            if str(error) != self._problem:
                until_then = "tokens cannot be verified" if self._keys is None else "the previous keys stay in use"
                why = f"cannot load the keys of tokens from {self._source}: {error}; {until_then} until a load succeeds"
                log.error("%s", why)  # noqa: TRY400 - the message suffices
            self._problem = str(error) or type(error).__name__
        else:
            self._problem = ""

    async def _get(self) -> bytes:
        if self._url is not None:
            return await http_get(self._url, tls=self._tls, bytes_max=KEY_SET_BYTES_MAX, timeout_s=FETCH_S_MAX)
        return await self._workers.call(0, read_key_set, Path(self._source))


def read_key_set(path: Path) -> bytes:
    """Return the content of a JWKS file. Blocking.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(KEY_SET_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"cannot read jwt_jwks {path}: {error.strerror}") from error
