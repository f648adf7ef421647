"""A small certificate authority: keys and certificates in PEM, for clusters that have no other.

    ca          vouches for all others; its key stays off the nodes
    node NAME   shows that it is the node NAME, to clients by its hosts and to other nodes by `tidelog:node:NAME`
    server NAME shows that it is a host, and nothing else: for gateways
    client NAME shows that it is the program NAME, by `tidelog:client:NAME`

Keys are of P-256: a handshake with one costs a node a tenth of what one with RSA does.
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
"""A certificate holds from so long ago: clocks of machines differ."""
_NAME_CHARS_MAX: Final = 64
"""Of a common name; the whole name stands in the URI."""


class Issued(NamedTuple):
    """A certificate and its private key, in PEM, and when it ends."""

    cert: bytes
    key: bytes
    expires: dt.datetime


def new_authority(name: str, *, days: int) -> Issued:
    """Return a new CA that signs itself.

    Args:
        name: what people call it.
        days: how long it holds.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(f"{name} CA")
    builder = _begun(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _signed(builder, key, key)


def issue(authority: Issued, kind: Kind, name: str, hosts: Sequence[str], *, days: int) -> Issued:
    """Return a new certificate of the CA, with a new key. It does not outlive the CA.

    Args:
        authority: the CA.
        kind: what it shows, see the module.
        name: of the node, the server or the client.
        hosts: names and addresses under which it is called; none for a client.
        days: how long it holds.

    Raises:
        ValueError: a host is none, the CA has ended, or its key is another's.
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
    """Return the CA's list of revoked certificates with more of them, in PEM. It holds as long as the CA.

    Args:
        authority: the CA.
        before: the list as it was; None: there was none.
        serials: numbers of certificates; those that are in it already stay as they are.
        now: the time, in UTC.

    Raises:
        ValueError: the list of before is none, or another CA's; the CA has ended, or its key is another's.
    """
    ca_cert, ca_key = _opened(authority)
    if ca_cert.not_valid_after_utc <= now:
        raise ValueError(f"the CA ended on {ca_cert.not_valid_after_utc:%Y-%m-%d}")
    number, entries = 0, dict[int, x509.RevokedCertificate]()
    if before is not None:
        earlier = x509.load_pem_x509_crl(before)
        if not earlier.is_signature_valid(ca_key.public_key()):
            raise ValueError("the list that is there is not of this CA")
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


def serial_of(cert: bytes) -> int:
    """Return the number of a certificate in PEM.

    Raises:
        ValueError: it is none.
    """
    return x509.load_pem_x509_certificate(cert).serial_number


def _opened(authority: Issued) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a CA's certificate, which may stand beside others, as of the CA whose place it takes, and its key.

    Raises:
        ValueError: the key is of none of them, encrypted, or of another kind.
    """
    try:
        key = serialization.load_pem_private_key(authority.key, password=None)
    except TypeError as error:
        raise ValueError("the private key is encrypted: give one that is not, readable by its owner alone") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        why = "the private key is of another kind than `tidelog certs init` makes: issue as that CA does"
        raise ValueError(why)  # noqa: TRY004 - a file's fault
    for cert in x509.load_pem_x509_certificates(authority.cert):
        if cert.public_key() == key.public_key():
            return cert, key
    raise ValueError("the private key is not that of the CA's certificate")


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
            raise ValueError(f"the CA ended on {at_most:%Y-%m-%d}: found another one with `tidelog certs init`")
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
