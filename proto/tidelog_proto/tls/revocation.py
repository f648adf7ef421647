"""Lists of revoked certificates (CRLs): read, judged, and asked about certificates that were shown before they changed.

OpenSSL refuses who shows a revoked certificate, and where it looks into lists at all, also whose CA has none, or one
that has ended. A file in which that is so of this side's own CA would shut everybody out, so it is not taken.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPublicKeyTypes

_BEGIN: Final = b"-----BEGIN X509 CRL-----"


def lists_in(content: bytes) -> list[x509.CertificateRevocationList]:
    """Return the lists of a file in PEM, one of each CA.

    Raises:
        ValueError: it holds something else.
    """
    return [x509.load_pem_x509_crl(_BEGIN + part) for part in content.split(_BEGIN)[1:]]


def check_lists(content: bytes, cert: bytes, ca: bytes) -> None:
    """See that lists can be used with a side's own certificate and CAs.

    Args:
        content: of the file with the lists.
        cert: the certificate, in PEM; the first, if there are several.
        ca: the CAs that are believed, in PEM.

    Raises:
        ValueError: they would refuse everybody, or are not of the CA; a clause without a subject of its own says why.
    """
    try:
        lists = lists_in(content)
    except ValueError as error:
        raise ValueError(f"holds something that is no list of revoked certificates: {error}") from error
    own = x509.load_pem_x509_certificates(cert)[0]
    name = own.issuer.rfc4514_string()
    found = [each for each in lists if each.issuer == own.issuer]
    if not found:
        raise ValueError(
            f"has no list of {name}, which has issued the certificate here: add it, or all of that CA's would be "
            "refused"
        )
    authorities = [each for each in x509.load_pem_x509_certificates(ca) if each.subject == own.issuer]
    signers = [each for each in authorities if _has_issued(each, own)] or authorities
    if signers:  # not an authority of the same name, as one is that takes the place of another
        found = [each for each in found if any(_has_signed(signer, each) for signer in signers)]
    if not found:
        raise ValueError(
            f"has a list of {name} that is not signed by that CA, which has issued the certificate here: add the "
            "right one"
        )
    ends = max((each.next_update_utc for each in found if each.next_update_utc is not None), default=None)
    if ends is not None and ends <= dt.datetime.now(dt.UTC):
        raise ValueError(f"has a list of {name} that has ended on {ends:%Y-%m-%d %H:%M} UTC: get a newer one")


def _has_issued(authority: x509.Certificate, one: x509.Certificate) -> bool:
    try:
        one.verify_directly_issued_by(authority)
    except (
        InvalidSignature,
        UnsupportedAlgorithm,
        TypeError,
        ValueError,
    ):  # of another key, or of a kind that is foreign
        return False
    return True


def _has_signed(authority: x509.Certificate, one: x509.CertificateRevocationList) -> bool:
    try:
        return one.is_signature_valid(cast("CertificateIssuerPublicKeyTypes", authority.public_key()))
    except (UnsupportedAlgorithm, TypeError, ValueError):  # a key that signs no lists
        return False


def revoked_of(content: bytes, shown: Sequence[bytes]) -> list[bool]:
    """Return of each certificate that was shown, in DER, whether the lists have it.

    Raises:
        ValueError: as `lists_in`.
    """
    revoked = {(each.issuer, entry.serial_number) for each in lists_in(content) for entry in each}
    certificates = (x509.load_der_x509_certificate(der) for der in shown)
    return [(certificate.issuer, certificate.serial_number) in revoked for certificate in certificates]
