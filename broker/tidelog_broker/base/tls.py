"""A node's TLS: how it is called and how it calls other nodes, by files that are followed while it runs."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.offload import Offload
from tidelog_proto.certificate_ends import CertificateEnds
from tidelog_proto.settings import SettingsError
from tidelog_proto.tls_files import FollowedTls, TlsFiles, TlsFilesError, client_context, server_context
from tidelog_proto.tls_stream import open_stream

FILES_LOOK_S: Final = 1.0
"""How often the files are read."""


class NodeTls:
    """See the module.

    Args:
        files: the node's; None: nothing is encrypted.

    Raises:
        SettingsError: the files cannot be used.
    """

    def __init__(self, files: TlsFiles | None) -> None:
        self.ends: dict[str, float] = {}
        """When the "certificate" and the "ca" end, in seconds since 1970, once they were read."""
        try:
            self._followed = None if files is None else FollowedTls(files, server_context, client_context)
        except TlsFilesError as error:
            raise SettingsError(str(error)) from error

    @classmethod
    def of(cls, settings: NodeSettings) -> Self:
        """Return what settings say.

        Raises:
            SettingsError: the files cannot be used.
        """
        if settings.tls_cert_file is None:
            return cls(None)
        return cls(TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file))

    @property
    def is_on(self) -> bool:
        """Whether connections are encrypted."""
        return self._followed is not None

    def server(self) -> ssl.SSLContext:
        """Return how connections are answered from now on."""
        assert self._followed is not None, "this node does not encrypt"
        return self._followed.contexts[0]

    async def call(
        self,
        above: asyncio.BaseProtocol,
        host: str,
        *,
        timeout_s: float,
        connect: Callable[[asyncio.BaseProtocol], Awaitable[Any]],
    ) -> None:
        """Call another node, in TLS where this one encrypts: nodes of a cluster do, or none of them; see `open_stream`.

        Raises:
            TlsError, OSError: there is no such connection.
        """
        context = None if self._followed is None else self._followed.contexts[1]
        await open_stream(above, context, host, timeout_s=timeout_s, connect=connect)

    async def follow(self, workers: Offload, tell_end: Callable[[str, float], None]) -> None:
        """Have new files count for new connections, and warn of the end of certificates, as long as the node runs.

        Args:
            workers: read files.
            tell_end: told what ends, and when, see `CertificateEnds`.
        """
        if self._followed is None:
            return

        def tell(what: str, ends_s: float) -> None:
            self.ends[what] = ends_s
            tell_end(what, ends_s)

        ends = CertificateEnds(self._followed.files, time.time, tell)
        await workers.call(0, ends.read)
        while True:
            ends.look()
            await asyncio.sleep(FILES_LOOK_S)
            if await workers.call(0, self._followed.look):
                await workers.call(0, ends.read)
