"""A node's TLS for incoming and outgoing connections, with files that are reloaded when they change."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Self
from weakref import WeakSet

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.offload import Offload
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.tls.certificate_expiry import CertificateExpiryMonitor
from tidelog_proto.tls.reloaded_files import (
    ReloadingTlsContexts,
    TlsFiles,
    TlsFilesError,
    client_context,
    read_pem,
    server_context,
)
from tidelog_proto.tls.revocation import revoked_of
from tidelog_proto.tls.stream import TlsStream, open_stream

log = logging.getLogger(__name__)

FILES_LOOK_S: Final = 1.0
"""Interval of the checks whether the TLS files have changed, in seconds."""


class NodeTls:
    """The TLS contexts of one node, and the check of its open connections against a changed CRL.

    Args:
        files: the node's files; None disables TLS.

    Raises:
        SettingsError: the files cannot be used.
    """

    def __init__(self, files: TlsFiles | None) -> None:
        self.ends: dict[str, float] = {}
        """When the "certificate", the "ca" and the "crl" expire, in seconds since 1970, once the files were read."""
        self._streams: WeakSet[TlsStream] = WeakSet()
        """Connections that have to be checked against the CRL."""
        try:
            self._followed = None if files is None else ReloadingTlsContexts(files, server_context, client_context)
        except TlsFilesError as error:
            raise SettingsError(str(error)) from error

    @classmethod
    def of(cls, settings: NodeSettings) -> Self:
        """Return the TLS of settings.

        Raises:
            SettingsError: the files cannot be used.
        """
        if settings.tls_cert_file is None:
            return cls(None)
        files = TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file, crl=settings.tls_crl_file)
        return cls(files)

    @property
    def is_on(self) -> bool:
        """Whether connections are encrypted."""
        return self._followed is not None

    def server(self) -> ssl.SSLContext:
        """Return the current context for incoming connections."""
        assert self._followed is not None, "TLS is not configured on this node"
        return self._followed.contexts[0]

    async def call(
        self,
        above: asyncio.BaseProtocol,
        host: str,
        *,
        timeout_s: float,
        connect: Callable[[asyncio.BaseProtocol], Awaitable[Any]],
    ) -> None:
        """Connect to another node, with TLS if this node uses it; see `open_stream`.

        All nodes of a cluster use TLS, or none does.

        Args:
            above: receives the decrypted data.
            timeout_s: maximum duration of the TLS handshake.
            connect: connects a socket to the protocol that it is given.

        Raises:
            TlsError, OSError: the connection failed.
        """
        context = None if self._followed is None else self._followed.contexts[1]

        async def watched(protocol: asyncio.BaseProtocol) -> None:
            if isinstance(protocol, TlsStream):
                self.watch(protocol)
            await connect(protocol)

        await open_stream(above, context, host, timeout_s=timeout_s, connect=watched)

    def watch(self, stream: TlsStream) -> None:
        """Close this connection as soon as a reloaded CRL revokes its peer's certificate; without a CRL do nothing."""
        if self._followed is not None and self._followed.files.crl is not None:
            self._streams.add(stream)

    async def follow(self, workers: Offload, tell_end: Callable[[str, float], None]) -> None:
        """Reload changed files for new connections, and warn before certificates expire; runs until cancelled.

        Closes open connections whose certificates a changed CRL revokes. Returns at once if TLS is off.

        Args:
            tell_end: called with the kind of file that expires and with its expiry in seconds since 1970, see
                `CertificateExpiryMonitor`.
        """
        if self._followed is None:
            return

        def tell(what: str, ends_s: float) -> None:
            self.ends[what] = ends_s
            tell_end(what, ends_s)

        ends = CertificateExpiryMonitor(self._followed.files, time.time, tell)
        await workers.call(0, ends.read)
        is_due = False
        while True:
            ends.look()
            await asyncio.sleep(FILES_LOOK_S)
            if await workers.call(0, self._followed.look):
                is_due = True
                await workers.call(0, ends.read)
            if is_due:
                is_due = not await self._end_revoked(workers)

    async def _end_revoked(self, workers: Offload) -> bool:
        """Close the connections whose certificates are revoked; return False if the check has to be repeated.

        Handshakes in progress may have used the previous CRL, so their connections are closed too, and the peers
        reconnect.
        """
        assert self._followed is not None
        crl = self._followed.files.crl
        if crl is None:
            return True
        shown = [(stream, stream.shown) for stream in self._streams if not stream.is_closing()]
        proven = [(stream, der) for stream, der in shown if der]
        try:
            content = await workers.call(0, partial(read_pem, crl, "the CRL"))
            revoked = await workers.call(0, partial(revoked_of, content, [der for _, der in proven]))
        except ValueError as error:  # the file is being replaced; the next check reads it again
            log.warning("cannot use the CRL %s, retrying: %s", crl, error)
            return False
        doomed = [stream for (stream, _), is_revoked in zip(proven, revoked, strict=True) if is_revoked]
        for stream in (*doomed, *(stream for stream, der in shown if der is None)):
            stream.abort()
        if doomed:
            log.warning("closed %d connections whose certificates the CRL %s revokes", len(doomed), crl)
        return True
