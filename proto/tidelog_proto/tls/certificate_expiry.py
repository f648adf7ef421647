"""Expiry of the certificates of a node or a gateway: a metric, and a daily warning from days before the expiry on.

An expired certificate does not affect open connections, but new ones fail: clients and nodes can no longer connect.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509

from tidelog_proto.tls.reloaded_files import TlsFiles
from tidelog_proto.tls.revocation import lists_in

log = logging.getLogger(__name__)

DAY_S: Final = 24 * 3600.0
WARN_S: Final = 14 * DAY_S
"""Maximum time before the expiry at which warnings start, in seconds."""
WARN_SHARE: Final = 0.2
"""Maximum share of the validity period that remains when warnings start; it applies to periods below 70 days."""


_NAMES: Final = {"certificate": "the certificate", "ca": "the CA", "crl": "the CRL"}


class Ending(NamedTuple):
    """Expiry of one file: its kind, path, validity period, and expiry in seconds since 1970."""

    what: str
    path: Path
    lasts_s: float
    ends_s: float


class CertificateExpiryMonitor:
    """Reports when the certificates and CRLs of one node or gateway expire, and warns before their expiry.

    Args:
        files: paths of the certificates and lists.
        now_s: the wall clock, in seconds since 1970.
        tell: called with the kind ("certificate", "ca" or "crl") and the expiry in seconds since 1970.
        whose: the kind of server, for the warning.
    """

    def __init__(
        self, files: TlsFiles, now_s: Callable[[], float], tell: Callable[[str, float], None], *, whose: str = "node"
    ) -> None:
        self._files = files
        self._whose = whose
        self._now_s = now_s
        self._tell = tell
        self._endings: dict[str, Ending] = {}
        self._warned_s: dict[str, float] = {}

    def read(self) -> None:
        """Read the expiry of all files again, report it to `tell`, and let `look` warn again at once.

        The last expiry of an unreadable file is kept; `reloaded_files` logs the fault.
        """
        endings = [
            _ending("certificate", self._files.cert, min),
            _ending("ca", self._files.ca, max),
            _ending_of_lists(self._files.crl),
        ]
        self._endings |= {ending.what: ending for ending in endings if ending is not None}
        self._warned_s.clear()
        for ending in self._endings.values():
            self._tell(ending.what, ending.ends_s)

    def look(self) -> None:
        """Log a warning, at most once a day, for each file that expires soon or has expired."""
        now_s = self._now_s()
        for ending in self._endings.values():
            left_s = ending.ends_s - now_s
            if left_s >= min(WARN_S, WARN_SHARE * ending.lasts_s):
                continue
            if now_s - self._warned_s.get(ending.what, -DAY_S) < DAY_S:
                continue
            self._warned_s[ending.what] = now_s
            when = f"{dt.datetime.fromtimestamp(ending.ends_s, dt.UTC):%Y-%m-%d %H:%M} UTC"
            verb = "expires at" if left_s > 0 else "expired at"
            log.warning(
                "%s in %s %s %s: replace the file with a newer one; new connections to this %s fail after the expiry",
                _NAMES[ending.what],
                ending.path,
                verb,
                when,
                self._whose,
            )


def _ending_of_lists(path: Path | None) -> Ending | None:
    if path is None:
        return None
    try:
        lists = lists_in(path.read_bytes())
    except (OSError, ValueError):
        return None
    spans = {
        each.next_update_utc.timestamp(): (each.next_update_utc - each.last_update_utc).total_seconds()
        for each in lists
        if each.next_update_utc is not None
    }
    return Ending("crl", path, spans[min(spans)], min(spans)) if spans else None


def _ending(what: str, path: Path | None, of_several: Callable[[list[float]], float]) -> Ending | None:
    """Return when a file of certificates expires; None if `path` is None or the file is unreadable or invalid.

    A chain expires with its first certificate, a file of several CAs with its last, as it may contain old CAs.
    """
    if path is None:
        return None
    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return None
    spans = {
        each.not_valid_after_utc.timestamp(): (each.not_valid_after_utc - each.not_valid_before_utc).total_seconds()
        for each in certificates
    }
    ends_s = of_several(list(spans))
    return Ending(what, path, spans[ends_s], ends_s)
