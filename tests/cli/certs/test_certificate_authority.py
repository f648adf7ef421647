from __future__ import annotations

import datetime as dt
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID

from tidelog_cli.certs.certificate_authority import Issued, Kind, issue, new_authority, revoke
from tidelog_proto.tls.certificate_names import names_in, uri_of
from tidelog_proto.tls.revocation import lists_in


def read(issued: Issued) -> x509.Certificate:
    return x509.load_pem_x509_certificate(issued.cert)


@pytest.mark.parametrize(
    ("kind", "uses", "uri"),
    [
        ("node", [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH], ["tidelog:node:log%2F1"]),
        ("server", [ExtendedKeyUsageOID.SERVER_AUTH], []),
        ("client", [ExtendedKeyUsageOID.CLIENT_AUTH], ["tidelog:client:log%2F1"]),
    ],
)
def test_each_kind_shows_what_it_is_and_nothing_else(kind: Kind, uses: list[object], uri: list[str]) -> None:
    authority = new_authority("test", days=10)
    hosts = [] if kind == "client" else ["log1.example", "127.0.0.1", "::1"]
    made = read(issue(authority, kind, "log/1", hosts, days=5))
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == uri
    assert names.get_values_for_type(x509.DNSName) == hosts[:1]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(each) for each in hosts[1:]]
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == uses
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    made.verify_directly_issued_by(read(authority))


def test_none_outlives_its_ca_and_clocks_may_be_apart() -> None:
    authority = new_authority("test", days=1)
    now = dt.datetime.now(dt.UTC)
    made = read(issue(authority, "client", "x", [], days=400))
    assert made.not_valid_after_utc == read(authority).not_valid_after_utc
    assert made.not_valid_before_utc < now - dt.timedelta(minutes=50)
    ended = new_authority("test", days=0)
    with pytest.raises(ValueError, match="the CA expired"):
        issue(ended, "client", "x", [], days=1)


def test_ca_issues_and_revokes_from_a_file_that_also_contains_an_old_ca() -> None:
    old, new = new_authority("test", days=10), new_authority("next", days=10)
    for certs in (old.cert + new.cert, new.cert + old.cert):
        both = new._replace(cert=certs)
        read(issue(both, "client", "x", [], days=5)).verify_directly_issued_by(read(new))
        (revoked,) = lists_in(revoke(both, None, [7], dt.datetime.now(dt.UTC).replace(microsecond=0)))
        assert revoked.issuer == read(new).subject
    with pytest.raises(ValueError, match="does not match the CA's certificate"):
        issue(new._replace(cert=old.cert), "client", "x", [], days=5)


def test_unusable_ca_key_is_reported() -> None:
    authority = new_authority("test", days=10)
    key = serialization.load_pem_private_key(authority.key, password=None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    of_another_kind = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for made, why in ((encrypted, "is encrypted"), (of_another_kind, "not an ECDSA key"), (b"", "PEM")):
        with pytest.raises(ValueError, match=why):
            issue(authority._replace(key=made), "client", "x", [], days=5)


def test_a_name_that_is_not_utf8_is_left_out() -> None:
    assert names_in({"subjectAltName": (("URI", "tidelog:node:%ff"), ("URI", "tidelog:node:a"))}, "node") == ["a"]


def test_names_are_read_back_as_they_were_given() -> None:
    shown = {"subjectAltName": (("DNS", "tidelog:node:evil"), ("URI", uri_of("node", "a:b/ü")), ("URI", "other:x"))}
    assert names_in(shown, "node") == ["a:b/ü"]
    assert names_in(shown, "client") == []
    assert names_in(None, "node") == names_in({}, "node") == []
