"""Which lists of revoked certificates are taken, and whom they shut out: with the sides of real handshakes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from tests.authority import Authority

from tidelog_proto.tls.reloaded_files import (
    ReloadingTlsContexts,
    TlsFiles,
    TlsFilesError,
    client_context,
    server_context,
)
from tidelog_proto.tls.revocation import lists_in, revoked_of
from tidelog_proto.tls.stream import why


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Let two sides shake hands, without a socket.

    Raises:
        ssl.SSLError: one of them does not take the other.
    """
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    called = server.wrap_bio(up, down, server_side=True)
    calls = client.wrap_bio(down, up, server_hostname="localhost")
    for _ in range(4):
        for side in (calls, called):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    called.do_handshake()
    return called, calls


def test_revoked_peer_is_refused_on_both_sides(authority: Authority) -> None:
    node, other = authority.files("node", "a"), authority.files("node", "b")
    ann, ben = authority.files("client", "ann"), authority.files("client", "ben")
    crl = authority.revoke(other, ann)
    server = server_context(dataclasses.replace(node, crl=crl))
    called, _ = shake(server, client_context(ben))
    shake(server, client_context(TlsFiles(ca=authority.ca)))  # clients without a certificate authenticate otherwise
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        shake(server, client_context(ann))
    calling = client_context(dataclasses.replace(node, crl=crl))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        shake(server_context(other), calling)
    shake(server_context(node), calling)
    shown = called.getpeercert(binary_form=True)
    assert shown is not None
    assert ann.cert is not None
    taken_back = ssl.PEM_cert_to_DER_cert(ann.cert.read_text())
    assert revoked_of(crl.read_bytes(), [shown, taken_back]) == [False, True]


def test_lists_that_would_refuse_every_peer_are_refused(authority: Authority, tmp_path: Path) -> None:
    node = dataclasses.replace(authority.files("node", "a"), crl=tmp_path / "lists.pem")
    assert node.crl is not None
    foreign = Authority(tmp_path / "other", "other")
    same_name = Authority(tmp_path / "same")
    for content, words in (
        (b"", "contains nothing in PEM"),
        (b"garbage", "contains nothing in PEM"),
        (b"-----BEGIN X509 CRL-----\ngarbage", "is truncated or damaged"),
        (authority.revoke().read_bytes() + b"-----BEGIN X509 CRL-----\ngarbage", "is truncated or damaged"),
        (authority.revoke().read_bytes() + foreign.made.cert, "contains CERTIFICATE; it may only contain"),
        (foreign.revoke().read_bytes(), "contains no CRL with the issuer name CN=tests CA"),
        (same_name.revoke().read_bytes(), "did not sign it"),
        (same_name.revoke().read_bytes() + _ended(authority), "expired at"),
        (_ended(authority), "expired at"),
    ):
        node.crl.write_bytes(content)
        with pytest.raises(TlsFilesError, match=words):
            server_context(node)
    node.crl.unlink()
    with pytest.raises(TlsFilesError, match="cannot read the CRL"):
        client_context(node)
    both = foreign.revoke().read_bytes() + authority.revoke().read_bytes()
    assert len(lists_in(both)) == 2
    server_context(dataclasses.replace(node, crl=_in(tmp_path / "both.pem", both)))


def test_a_list_of_an_authority_with_the_same_name_is_not_taken_for_the_right_one(tmp_path: Path) -> None:
    """As where one takes the place of another, and both are believed meanwhile."""
    both = tmp_path / "both.pem"
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    both.write_bytes(old.made.cert + new.made.cert)
    lists = tmp_path / "lists.pem"
    for one, other in ((old, new), (new, old)):
        node = dataclasses.replace(one.files("node", "a"), ca=both, crl=lists)
        client = dataclasses.replace(one.files("client", "ann"), ca=both)
        lists.write_bytes(other.revoke().read_bytes())
        with pytest.raises(TlsFilesError, match="did not sign it"):
            server_context(node)
        lists.write_bytes(old.revoke().read_bytes() + new.revoke().read_bytes())
        shake(server_context(node), client_context(client))


def test_ca_with_an_unsupported_key_does_not_stop_reloading(authority: Authority) -> None:
    node = dataclasses.replace(authority.files("node", "a"), crl=authority.revoke())
    followed = ReloadingTlsContexts(node, server_context)
    assert node.ca is not None
    node.ca.write_bytes(authority.made.cert + _of_a_foreign_curve())
    assert followed.look()


def test_client_with_lists_needs_no_certificate_and_refuses_nodes_without_a_list(
    authority: Authority, tmp_path: Path
) -> None:
    node, other = authority.files("node", "a"), authority.files("node", "b")
    lists = authority.revoke(other).read_text()
    calling = client_context(TlsFiles(ca=authority.ca, crl_pem=lists))
    shake(server_context(node), calling)
    with pytest.raises(ssl.SSLCertVerificationError) as refused:
        shake(server_context(other), calling)
    assert why(refused.value) == "the peer's certificate is refused: it is revoked"
    foreign, same_name = Authority(tmp_path / "other", "other"), Authority(tmp_path / "same")
    for text, words in (
        (foreign.revoke().read_text(), "contains no CRL of its CA"),
        (_ended(authority).decode(), "has expired: replace it with a newer one"),
        (same_name.revoke().read_text(), "contains no CRL of its CA"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError) as refused:
            shake(server_context(node), client_context(TlsFiles(ca=authority.ca, crl_pem=text)))
        assert words in why(refused.value)
    for text in ("nothing", foreign.made.cert.decode(), lists + foreign.made.cert.decode()):
        with pytest.raises(TlsFilesError, match="only contain certificate revocation lists"):
            client_context(TlsFiles(ca=authority.ca, crl_pem=text))


def test_a_list_of_changes_alone_is_refused_as_the_complete_one_would_count_no_more(authority: Authority) -> None:
    other = authority.files("node", "b")
    complete, delta = authority.revoke(other).read_bytes(), _signed(authority, days=1, delta=True)
    shake(
        server_context(authority.files("node", "a")), client_context(TlsFiles(ca=authority.ca, crl_pem=_text(complete)))
    )
    for lists in (delta, complete + delta, delta + complete):
        with pytest.raises(TlsFilesError, match="a delta CRL"):
            client_context(TlsFiles(ca=authority.ca, crl_pem=_text(lists)))


def test_a_list_is_followed_and_one_that_is_wrong_changes_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    ann = authority.files("client", "ann")
    crl = authority.revoke()
    followed = ReloadingTlsContexts(dataclasses.replace(authority.files("node", "a"), crl=crl), server_context)
    shake(followed.contexts[0], client_context(ann))
    authority.revoke(ann)
    assert followed.look()
    good = crl.read_bytes()
    for wrong in (b"", good[:-200]):
        crl.write_bytes(wrong)
        assert not followed.look()
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(followed.contexts[0], client_context(ann))
    assert "stays in use" in caplog.text
    crl.write_bytes(good)
    assert not followed.look()


def _in(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _text(lists: bytes) -> str:
    return lists.decode("ascii")


def _ended(authority: Authority) -> bytes:
    return _signed(authority, days=-1)


def _signed(authority: Authority, *, days: int, delta: bool = False) -> bytes:
    """Return a list of nothing that holds until so many days from now."""
    cert = x509.load_pem_x509_certificate(authority.made.cert)
    key = serialization.load_pem_private_key(authority.made.key, password=None)
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(cert.subject)
    builder = builder.last_update(now - dt.timedelta(days=2)).next_update(now + dt.timedelta(days=days))
    if delta:
        builder = builder.add_extension(x509.DeltaCRLIndicator(1), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


def _of_a_foreign_curve() -> bytes:
    """Return a CA of the same name, by a key of secp224k1, which OpenSSL reads and `cryptography` does not."""
    return b"""\
-----BEGIN CERTIFICATE-----
MIIBajCCARigAwIBAgIUNa6OwJMZh36bMBCmFNd5KMo5Gq4wCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIdGVzdHMgQ0EwIBcNMjYxMTI4MDgyMTI2WhgPMjEyNTA2MjIw
ODIxMjZaMBMxETAPBgNVBAMMCHRlc3RzIENBME4wEAYHKoZIzj0CAQYFK4EEACAD
OgAED8jzpsEgsnCpSTtZy9Xzy74X6/b2eWIv3TmzRcZ5bOzJY+OdU9HH2mwp8q/s
HwOUA1H/kF78XO2jUzBRMB0GA1UdDgQWBBS3q2lMiy1psh/DT1aha6hLfbgjBTAf
BgNVHSMEGDAWgBS3q2lMiy1psh/DT1aha6hLfbgjBTAPBgNVHRMBAf8EBTADAQH/
MAoGCCqGSM49BAMCA0AAMD0CHQDZBWXeZP3/EU9HjIi9OUNaUVZCQ01VkKoWLeuG
AhwoKY6Z+DIF1vmXWerggMU6dMDOphi4Kb2YWVvG
-----END CERTIFICATE-----
"""
