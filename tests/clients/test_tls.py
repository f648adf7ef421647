from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.authority import Authority

from tidelog.errors import InvalidRequestError
from tidelog.tls import (
    CA_FILE_VARIABLE,
    CERT_FILE_VARIABLE,
    CRL_FILE_VARIABLE,
    KEY_FILE_VARIABLE,
    TLS_VARIABLE,
    Tls,
    Trust,
    tls_of,
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TLS_VARIABLE, CA_FILE_VARIABLE, CERT_FILE_VARIABLE, KEY_FILE_VARIABLE, CRL_FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_arguments_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tls_of(None) is None
    assert tls_of(True) == Tls()
    monkeypatch.setenv(CA_FILE_VARIABLE, "/ca.pem")
    assert tls_of(None) == tls_of(True) == Tls("/ca.pem")
    assert tls_of(False) is None
    assert tls_of(Tls("/other.pem")) == Tls("/other.pem")
    monkeypatch.setenv(CERT_FILE_VARIABLE, "/c.pem")
    monkeypatch.setenv(KEY_FILE_VARIABLE, "/c.key")
    assert tls_of(None) == Tls("/ca.pem", "/c.pem", "/c.key")
    monkeypatch.setenv(TLS_VARIABLE, "0")
    assert tls_of(None) is None, "explicitly disabled"
    monkeypatch.setenv(TLS_VARIABLE, "maybe")
    with pytest.raises(InvalidRequestError, match="TIDELOG_TLS must be 1 or 0"):
        tls_of(None)
    monkeypatch.delenv(CA_FILE_VARIABLE)
    monkeypatch.setenv(TLS_VARIABLE, "1")
    monkeypatch.delenv(CERT_FILE_VARIABLE)
    monkeypatch.delenv(KEY_FILE_VARIABLE)
    assert tls_of(None) == Tls()
    monkeypatch.delenv(TLS_VARIABLE)
    monkeypatch.setenv(CRL_FILE_VARIABLE, "/crl.pem")
    assert tls_of(None) == Tls(crl_file="/crl.pem")


def test_contradictory_settings_are_refused_immediately() -> None:
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        Tls(ca_file="/ca.pem", ca_pem="text")
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        Tls(crl_file="/crl.pem", crl_pem="text")
    with pytest.raises(InvalidRequestError, match="cert_file"):
        Tls(key_file="/key")


def test_files_are_read_on_first_use_and_after_changes(tmp_path: Path) -> None:
    assert Trust(None)() is None
    trust = Trust(Tls(str(tmp_path / "ca" / "ca.pem")))
    with pytest.raises(InvalidRequestError, match="cannot read the CA"):
        trust()
    authority = Authority(tmp_path / "ca")
    first = trust()
    assert isinstance(first, ssl.SSLContext)
    assert trust() is first
    authority.ca.write_text("slip")
    assert trust() is first, "an unusable file keeps the last usable one"
    authority.ca.write_bytes(Authority(tmp_path / "new").made.cert)
    assert trust() is not first


def test_ca_content_is_carried_without_its_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.files("client", "job")
    assert own.cert is not None
    assert own.key is not None
    carried = Tls(str(authority.ca), str(own.cert), str(own.key)).carried()
    assert carried.ca_pem == authority.ca.read_text()
    assert carried.cert_pem == f"{own.cert.read_text()}\n{own.key.read_text()}"
    assert (carried.ca_file, carried.cert_file, carried.key_file) == ("", "", "")
    both = tmp_path / "both.pem"
    both.touch(mode=0o600)
    both.write_text(carried.cert_pem)
    assert Tls(cert_file=str(both)).carried().cert_pem == carried.cert_pem
    assert carried.carried() == carried
    assert Tls().carried() == Tls()
    assert "BEGIN" not in repr(carried)
    assert isinstance(Trust(carried)(), ssl.SSLContext)
    with pytest.raises(InvalidRequestError, match="not a certificate in PEM"):
        Trust(Tls(cert_pem="nothing"))()
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        Tls(cert_file="/c.pem", cert_pem="text")
    with pytest.raises(InvalidRequestError, match="cannot read the private key"):
        Tls(cert_file=str(own.cert), key_file=str(tmp_path / "none")).carried()
    with pytest.raises(InvalidRequestError, match="cannot read the CA"):
        Tls(str(tmp_path / "none")).carried()


def test_unknown_home_directory_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"invalid path '~unknown-user/ca\.pem'"):
        Trust(Tls("~unknown-user/ca.pem"))()


def test_empty_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch(mode=0o600)
    for tls in (Tls(str(empty)), Tls(cert_file=str(empty)), Tls(crl_file=str(empty))):
        with pytest.raises(InvalidRequestError, match=r"empty\.pem is empty"):
            tls.carried()


def test_revocation_lists_are_reloaded_and_carried(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    crl = authority.revoke()
    tls = Tls(str(authority.ca), crl_file=str(crl))
    trust = Trust(tls)
    first = trust()
    assert first is not None
    assert first.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF
    authority.revoke(authority.files("node", "a"))
    second = trust()
    assert second is not first
    crl.write_text("slip")
    assert trust() is second, "a slip changes nothing"
    with pytest.raises(InvalidRequestError, match="only contain certificate revocation lists"):
        Trust(tls)()
    crl.unlink()
    authority.revoke()
    carried = tls.carried()
    assert (carried.crl_pem, carried.crl_file) == (crl.read_text(), "")
    crl.unlink()
    assert isinstance(Trust(carried)(), ssl.SSLContext)
    assert "BEGIN" not in repr(carried)
    with pytest.raises(InvalidRequestError, match="cannot read the CRL"):
        tls.carried()
