"""Certificate revocation lists (CRLs): parsing, validation, and checks of certificates on open connections.

With revocation checks enabled, OpenSSL refuses a revoked certificate, but also every certificate whose CA has no list
or only an expired one. If the lists would have this effect for this side's own CA, every peer would be refused, so the
file of the lists is refused instead.
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
    """Parse the lists of a PEM file.

    Raises:
        ValueError: a list cannot be parsed.
    """
    return [x509.load_pem_x509_crl(_BEGIN + part) for part in content.split(_BEGIN)[1:]]


def check_lists(content: bytes, cert: bytes, ca: bytes) -> None:
    """Check that CRLs can be used with this process's certificate and CAs.

    Args:
        content: the lists, in PEM.
        cert: this process's certificate, in PEM; the first one of a chain.
        ca: the trusted CAs, in PEM.

    Raises:
        ValueError: the lists are unusable; the message is a clause whose subject is the file.
    """
    try:
        lists = lists_in(content)
    except ValueError as error:
        raise ValueError(f"contains a CRL that cannot be parsed; copy it again: {error}") from error
    own = x509.load_pem_x509_certificates(cert)[0]
    name = own.issuer.rfc4514_string()
    own_lists = [each for each in lists if each.issuer == own.issuer]
    if not own_lists:
        raise ValueError(
            f"contains no CRL with the issuer name {name}, the issuer of this process's certificate: add one, "
            "otherwise every certificate of this issuer is refused"
        )
    authorities = [each for each in x509.load_pem_x509_certificates(ca) if each.subject == own.issuer]
    signers = [each for each in authorities if _has_issued(each, own)] or authorities
    if signers:  # Excludes another CA of the same name, such as its predecessor or successor.
        own_lists = [each for each in own_lists if any(_has_signed(signer, each) for signer in signers)]
    if not own_lists:
        raise ValueError(
            f"contains a CRL with the issuer name {name}, but the CA that issued this process's certificate did not "
            "sign it: replace it with one signed by that CA"
        )
    ends = max((each.next_update_utc for each in own_lists if each.next_update_utc is not None), default=None)
    if ends is not None and ends <= dt.datetime.now(dt.UTC):
        raise ValueError(
            f"contains a CRL of {name} that expired at {ends:%Y-%m-%d %H:%M} UTC: replace it with a newer one"
        )


def _has_issued(authority: x509.Certificate, one: x509.Certificate) -> bool:
    try:
        one.verify_directly_issued_by(authority)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False  # The certificate is signed by another key, or with an unsupported kind of key.
    return True


def _has_signed(authority: x509.Certificate, one: x509.CertificateRevocationList) -> bool:
    try:
        return one.is_signature_valid(cast("CertificateIssuerPublicKeyTypes", authority.public_key()))
    except (UnsupportedAlgorithm, TypeError, ValueError):  # keys of this kind cannot sign lists
        return False


def revoked_of(content: bytes, der_certificates: Sequence[bytes]) -> list[bool]:
    """Return for each certificate (in DER) whether one of the lists (in PEM) revokes it.

    Raises:
        ValueError: as `lists_in`.
    """
    revoked = {(each.issuer, entry.serial_number) for each in lists_in(content) for entry in each}
    certificates = (x509.load_der_x509_certificate(der) for der in der_certificates)
    return [(certificate.issuer, certificate.serial_number) in revoked for certificate in certificates]
