"""A small certificate authority for clusters without another CA: keys and certificates in PEM.

Kinds of certificates:

    ca          issues all others; its key must not be stored on nodes
    node NAME   identifies the node NAME: to clients by its hosts, to other nodes by `tidelog:node:NAME`
    server NAME identifies hosts only: for gateways
    client NAME identifies the program NAME by `tidelog:client:NAME`

Keys are P-256: a TLS handshake costs a node a tenth of one with RSA.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidelog_proto.tls.certificate_names import uri_of

Kind = Literal["node", "server", "client"]

_CLOCKS_APART: Final = dt.timedelta(hours=1)
"""Certificates are valid from this long before their creation, because clocks of machines differ."""
_NAME_CHARS_MAX: Final = 64
"""Maximum length of a common name (RFC 5280); the URI contains the whole name."""


class Issued(NamedTuple):
    """A certificate and its private key in PEM, and its expiry."""

    cert: bytes
    key: bytes
    expires: dt.datetime


def new_authority(name: str, *, days: int) -> Issued:
    """Return a new self-signed CA.

    Args:
        name: display name of the CA.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(f"{name} CA")
    builder = _begun(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _signed(builder, key, key)


def issue(authority: Issued, kind: Kind, name: str, hosts: Sequence[str], *, days: int) -> Issued:
    """Return a new certificate with a new key, valid at most as long as the CA.

    Args:
        kind: use of the certificate, see the module.
        name: the name of the node, server or client.
        hosts: host names and addresses; empty for a client.

    Raises:
        ValueError: a host is invalid, the CA has expired, or its key does not match.
    """
    ca_cert, ca_key = _opened(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _begun(_named(name), ca_cert.subject, key.public_key(), days, at_most=ca_cert.not_valid_after_utc)
    names: list[x509.GeneralName] = [_host(each) for each in hosts]
    uses = []
    if kind != "server":
        names.append(x509.UniformResourceIdentifier(uri_of(kind, name)))
        uses.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    if kind != "client":
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return _signed(builder.add_extension(known, critical=False), key, ca_key)


def revoke(authority: Issued, before: bytes | None, serials: Iterable[int], now: dt.datetime) -> bytes:
    """Return the CA's CRL in PEM with certificates added, valid as long as the CA.

    Args:
        before: the current CRL in PEM; None before the first one.
        serials: serial numbers of certificates; existing entries are unchanged.
        now: the time, in UTC.

    Raises:
        ValueError: the current list is invalid or another CA's; the CA has expired, or its key does not match.
    """
    ca_cert, ca_key = _opened(authority)
    if ca_cert.not_valid_after_utc <= now:
        raise ValueError(
            f"the CA expired on {ca_cert.not_valid_after_utc:%Y-%m-%d}: create a new one with `tidelog certs init DIR`"
        )
    number, entries = 0, dict[int, x509.RevokedCertificate]()
    if before is not None:
        try:
            earlier = x509.load_pem_x509_crl(before)
        except ValueError as error:
            raise ValueError("the existing file is not a CRL in PEM; restore it from a backup") from error
        if not earlier.is_signature_valid(ca_key.public_key()):
            raise ValueError(
                "the existing CRL was signed by another CA; move crl.pem out of the directory to begin a new one"
            )
        number = earlier.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        entries = {entry.serial_number: entry for entry in earlier}
    for serial in serials:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        entries.setdefault(serial, entry)
    builder = x509.CertificateRevocationListBuilder().issuer_name(ca_cert.subject)
    builder = builder.last_update(now - _CLOCKS_APART).next_update(ca_cert.not_valid_after_utc)
    builder = builder.add_extension(x509.CRLNumber(number + 1), critical=False)
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = builder.add_extension(known, critical=False)
    for entry in entries.values():
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def revoked_in(revocation_list: bytes | None) -> set[int]:
    """Return the serial numbers in a CRL in PEM; an empty result without a CRL.

    Raises:
        ValueError: the content is not a CRL.
    """
    entries = () if revocation_list is None else x509.load_pem_x509_crl(revocation_list)
    return {entry.serial_number for entry in entries}


def serial_of(cert: bytes) -> int:
    """Return the serial number of a certificate in PEM.

    Raises:
        ValueError: the content is not a certificate.
    """
    return x509.load_pem_x509_certificate(cert).serial_number


def _opened(authority: Issued) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a CA's certificate and private key.

    The certificate file may also contain the certificate of an old CA; the one that matches the key is returned.
    """
    try:
        key = serialization.load_pem_private_key(authority.key, password=None)
    except TypeError as error:
        raise ValueError(
            "the private key is encrypted: use an unencrypted key in a file that only its owner may read"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        why = (
            "the private key is not an ECDSA key, so `tidelog certs init` did not create this CA: use the tools that "
            "created it instead"
        )
        raise ValueError(why)  # noqa: TRY004 - an error in a file
    for cert in x509.load_pem_x509_certificates(authority.cert):
        if cert.public_key() == key.public_key():
            return cert, key
    raise ValueError("the private key does not match the CA's certificate; restore the pair from the same backup")


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    *,
    at_most: dt.datetime | None = None,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    ends = now + dt.timedelta(days=days)
    if at_most is not None:
        if at_most <= now:
            raise ValueError(f"the CA expired on {at_most:%Y-%m-%d}: create a new one with `tidelog certs init DIR`")
        ends = min(ends, at_most)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_APART)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey
) -> Issued:
    cert = builder.sign(ca_key, hashes.SHA256())
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Issued(cert.public_bytes(serialization.Encoding.PEM), text, cert.not_valid_after_utc)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_NAME_CHARS_MAX])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
