"""Where the keys of JWTs come from: a file or a URL, looked at in the background and again when a token needs it.

Keys that were got once hold until others are got: while the source is away, or holds garbage, tokens go on being
judged by them. A token whose key is unknown asks for another look; looks are so far apart, however many ask.
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

BY_JWT: Final = "jwt/"
"""What the identity of a session begins with that a token has made; the fingerprint of its key comes behind it."""
WAITING_MAX: Final = 64
"""Callers who wait for another look; more are told to come again."""
FETCH_S_MAX: Final = 4.0
APART_S: Final = 3.0
"""From the beginning of one look to the next. Both together are less than a client waits for its greeting."""


class _Waiting(NamedTuple):
    """Who waits for a key."""

    key_id: str | None
    looked: asyncio.Future[None]


class Jwks:
    """The keys of JWTs, as they are by now.

    Args:
        source: a path, or a URL as `checked_url` takes it.
        workers: read the file.
        failed: called for each look that found nothing usable.
        changed: called when other keys stand there than before.
        apart_s: see `APART_S`.

    Raises:
        SettingsError: the file is not there, or no JWKS. A URL is not asked here: it may be away while a node starts.
    """

    def __init__(
        self,
        source: str,
        *,
        workers: Offload,
        failed: Callable[[], None],
        changed: Callable[[], None],
        apart_s: float = APART_S,
    ) -> None:
        self._source = source
        self._url = checked_url(source) if "://" in source else None
        self._tls = ssl.create_default_context()
        self._workers = workers
        self._failed = failed
        self._changed = changed
        self._apart_s = apart_s
        self._waiting: list[_Waiting] = []
        self._wanted = asyncio.Event()
        self._problem = ""
        self._document = b""
        self._keys: KeySet | None = None
        if self._url is None:
            self._document = read_key_set(Path(source))
            try:
                self._keys = parse_key_set(self._document)
            except ValueError as error:
                raise SettingsError(f"jwt_jwks {source} gives no keys: {error}") from error

    def has_ended(self, identity: str) -> bool:
        """Whether a session was begun with a token whose key stands there no more."""
        if self._keys is None or not identity.startswith(BY_JWT):
            return False
        return not self._keys.has(identity.removeprefix(BY_JWT))

    async def key(self, key_id: str | None) -> SigningKey:
        """Return the key that a token names, after another look if need be.

        Raises:
            ProtocolError: UNAUTHENTICATED, there is none; EPOCH_CHANGING or OVERLOADED where that cannot be said now.
        """
        found = None if self._keys is None else self._keys.find(key_id)
        if found is None:
            await self._looked_again(key_id)
            found = None if self._keys is None else self._keys.find(key_id)
        if found is not None:
            return found
        if self._keys is None or self._problem:
            what = "this node cannot get the keys of tokens at the moment (its log says why); try another one, or again"
            raise ProtocolError(pb.EPOCH_CHANGING, what, retry_after_ms=1000)
        if key_id is None:
            what = "the token does not say which key it is signed with (kid), and the issuer has several"
            raise ProtocolError(pb.UNAUTHENTICATED, what)
        raise ProtocolError(pb.UNAUTHENTICATED, "the token is signed with a key that its issuer does not publish")

    async def follow(self, *, every_s: float, again_s: float) -> None:
        """Look at the source as long as the node runs.

        Args:
            every_s: after so long, where nobody asks sooner.
            again_s: the same after a look in vain.
        """
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            self._wanted.clear()
            waiting, self._waiting = self._waiting, []
            had_none = self._keys is None
            await self._look()
            came, self._waiting = self._waiting, []
            for each in came:  # meanwhile: they wait for the next look, if there were keys and theirs is none of these
                is_answered = had_none or (self._keys is not None and self._keys.find(each.key_id) is not None)
                (waiting if is_answered else self._waiting).append(each)
            for each in waiting:
                if not each.looked.done():
                    each.looked.set_result(None)
            await asyncio.sleep(max(0.0, began_s + self._apart_s - loop.time()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s if self._problem else every_s):
                    await self._wanted.wait()

    async def _looked_again(self, key_id: str | None) -> None:
        """Wait for a look that begins from now on, or one that finds the key."""
        if len(self._waiting) >= WAITING_MAX:
            raise ProtocolError(pb.OVERLOADED, "too many tokens wait for their keys; send again", retry_after_ms=1000)
        looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(key_id, looked))
        self._wanted.set()
        await looked

    async def _look(self) -> None:
        try:
            document = await self._get()
            if document != self._document:
                self._keys = parse_key_set(document)
                self._document = document
                log.info("%d keys of tokens are read from %s", len(self._keys), self._source)
                self._changed()
        except (OSError, ValueError) as error:
            self._failed()
            if str(error) != self._problem:
                log.error("cannot get the keys of tokens from %s: %s; those of before hold", self._source, error)  # noqa: TRY400 - a line says it all
            self._problem = str(error) or type(error).__name__
        else:
            self._problem = ""

    async def _get(self) -> bytes:
        if self._url is not None:
            return await http_get(self._url, tls=self._tls, bytes_max=KEY_SET_BYTES_MAX, timeout_s=FETCH_S_MAX)
        return await self._workers.call(0, read_key_set, Path(self._source))


def read_key_set(path: Path) -> bytes:
    """Return what stands in the file of a JWKS. Blocks.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(KEY_SET_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"cannot read jwt_jwks {path}: {error.strerror}") from error
