"""When the certificates of a node or a gateway end: told to its metrics, and warned of in its log, once a day.

A certificate that ends takes nothing from connections that stand, and everything from those that are to come: clients
and nodes find no way in any more, one after the other. So it is told before.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509

from tidelog_proto.tls.files import TlsFiles
from tidelog_proto.tls.revocation import lists_in

log = logging.getLogger(__name__)

DAY_S: Final = 24 * 3600.0
WARN_S: Final = 14 * DAY_S
"""It is warned of so long before the end..."""
WARN_SHARE: Final = 0.2
"""...but in the last fifth of its time only: there are certificates for a day."""


_NAMES: Final = {"certificate": "the certificate", "ca": "the CA", "crl": "the list of revoked certificates"}


class Ending(NamedTuple):
    """A file of certificates or lists: what it is, for how long it holds, and when it ends, in seconds since 1970."""

    what: str
    path: Path
    lasts_s: float
    ends_s: float


class CertificateEnds:
    """Of the files of one node, or gateway.

    Args:
        files: where they are.
        now_s: the wall clock, in seconds since 1970.
        tell: told what ends ("certificate", "ca" or "crl") and when, in seconds since 1970.
        whose: of what they are, for the warning.
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
        """Find out anew when they end. What cannot be read is told by who uses it, and ends when it did."""
        found = [
            _ending("certificate", self._files.cert, min),
            _ending("ca", self._files.ca, max),
            _ending_of_lists(self._files.crl),
        ]
        self._endings |= {ending.what: ending for ending in found if ending is not None}
        self._warned_s.clear()
        for ending in self._endings.values():
            self._tell(ending.what, ending.ends_s)

    def look(self) -> None:
        """Warn of what ends soon, or has ended."""
        now_s = self._now_s()
        for ending in self._endings.values():
            left_s = ending.ends_s - now_s
            if left_s >= min(WARN_S, WARN_SHARE * ending.lasts_s):
                continue
            if now_s - self._warned_s.get(ending.what, -DAY_S) < DAY_S:
                continue
            self._warned_s[ending.what] = now_s
            when = f"{dt.datetime.fromtimestamp(ending.ends_s, dt.UTC):%Y-%m-%d %H:%M} UTC"
            verb = "ends on" if left_s > 0 else "has ended on"
            log.warning(
                "%s in %s %s %s: issue a newer one and put it there; nobody who connects later takes this %s then",
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
    """Return when a file of certificates ends; None where there is none that can be read.

    Of a chain that is when the first of them does; of several CAs the last, as old ones are left beside newer ones.
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
