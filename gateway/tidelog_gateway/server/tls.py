"""The gateway's TLS: reloads a changed certificate, and answers clients that speak plain HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Self

from tidelog_gateway.http1.raw_responses import response_bytes, tls_log
from tidelog_gateway.problems import Problem
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.flow.fair_scheduler import Turns
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.tls.certificate_expiry import CertificateExpiryMonitor
from tidelog_proto.tls.handshakes import TlsAcceptor
from tidelog_proto.tls.reloaded_files import ReloadingTlsContexts, TlsFiles, TlsFilesError, server_context
from tidelog_proto.tls.stream import NotTlsError, TlsError, TlsHandshakeError

CERTIFICATE_LOOK_S: Final = 1.0
"""How often the files are checked for changes."""


class GatewayTls:
    """The TLS of the gateway's connections.

    Args:
        timeout_s: maximum duration of a handshake.
        turns: fair scheduler of the process's work.

    Raises:
        SettingsError: the files cannot be used.
    """

    def __init__(self, files: TlsFiles, *, timeout_s: float, turns: Turns | None = None) -> None:
        try:
            self._followed = ReloadingTlsContexts(files, server_context)
        except TlsFilesError as error:
            raise SettingsError(str(error)) from error
        plain = Problem(400, "malformed_request", "this port uses TLS; begin the URL with https:// or wss://")
        self._seldom = {NotTlsError: tls_log(), TlsHandshakeError: tls_log()}
        self.entrance = TlsAcceptor(
            lambda: self._followed.contexts[0],
            timeout_s=timeout_s,
            refusal=response_bytes(plain),
            failed=self._not_encrypted,
            turns=turns,
        )

    def _not_encrypted(self, error: TlsError) -> None:
        seldom = self._seldom.get(type(error))
        if seldom is not None:  # Other failures are normal: health checks, for example, close during the handshake.
            remedy = (
                "use https:// or wss:// in the client's URL"
                if isinstance(error, NotTlsError)
                else "check the client's trusted CAs and TLS version"
            )
            seldom.say("TLS handshake with a client failed: %s; %s", error, remedy)

    @classmethod
    def of(cls, settings: GatewaySettings, turns: Turns | None = None) -> Self | None:
        """Return the TLS of the settings; None without a certificate.

        Raises:
            SettingsError: the files cannot be used.
        """
        if settings.tls_cert_file is None:
            return None
        files = TlsFiles(settings.tls_cert_file, settings.tls_key_file)
        return cls(files, timeout_s=settings.head_timeout_s, turns=turns)

    async def follow(self, tell_end: Callable[[str, float], None]) -> None:
        """Use changed files for new connections, and warn before the certificate expires, until cancelled.

        Args:
            tell_end: called with the expiry of each file, see `CertificateExpiryMonitor`.
        """
        ends = CertificateExpiryMonitor(self._followed.files, time.time, tell_end, whose="gateway")
        await asyncio.to_thread(ends.read)
        while True:
            ends.look()
            await asyncio.sleep(CERTIFICATE_LOOK_S)
            if await asyncio.to_thread(self._followed.look):
                await asyncio.to_thread(ends.read)
