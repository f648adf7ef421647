from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.authority import Authority

from tidelog_proto.tls.reloaded_files import (
    ReloadingTlsContexts,
    TlsFiles,
    TlsFilesError,
    client_context,
    server_context,
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def test_contexts_are_strict(authority: Authority) -> None:
    files = authority.files("node", "a")
    for context in (server_context(files), client_context(files)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert all("AES" in each["name"] or "CHACHA20" in each["name"] for each in context.get_ciphers())
        assert not any("CBC" in each["name"] or each["name"].startswith("AES") for each in context.get_ciphers())
    assert client_context(TlsFiles(ca=files.ca)).check_hostname
    assert server_context(files).verify_mode == ssl.CERT_OPTIONAL
    assert server_context(TlsFiles(files.cert, files.key)).verify_mode == ssl.CERT_NONE
    assert client_context(TlsFiles()).verify_mode == ssl.CERT_REQUIRED, "by the CAs of the system"
    assert files.ca is not None
    assert len(client_context(TlsFiles(ca_pem=files.ca.read_text())).get_ca_certs()) == 1


def test_a_certificate_and_its_key_may_lie_in_one_file(authority: Authority, tmp_path: Path) -> None:
    files = authority.files("node", "a")
    assert files.cert is not None
    assert files.key is not None
    both = tmp_path / "both.pem"
    both.touch(mode=0o600)
    both.write_bytes(files.cert.read_bytes() + files.key.read_bytes())
    server_context(TlsFiles(both))
    both.chmod(0o644)
    with pytest.raises(TlsFilesError, match="chmod 600"):
        server_context(TlsFiles(both))


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    files, other = authority.files("node", "a"), authority.files("node", "b")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\xff\x00 no PEM")
    garbage.chmod(0o600)
    with pytest.raises(TlsFilesError, match="cannot read the private key in "):
        server_context(TlsFiles(files.cert, tmp_path / "none"))
    with pytest.raises(TlsFilesError, match="not a certificate in PEM and its private key"):
        server_context(TlsFiles(files.cert, other.key))
    with pytest.raises(TlsFilesError, match="not a certificate in PEM and its private key"):
        server_context(TlsFiles(garbage, files.key))
    for text in (b"\xff\x00", b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        garbage.write_bytes(text)
        with pytest.raises(TlsFilesError, match="must contain valid certificates"):
            client_context(TlsFiles(ca=garbage))
    with pytest.raises(TlsFilesError, match="the given CA must contain valid certificates"):
        client_context(TlsFiles(ca_pem="nothing"))
    garbage.write_bytes(b"x" * 2_000_000)
    with pytest.raises(TlsFilesError, match="more than"):
        client_context(TlsFiles(ca=garbage))


def test_irregular_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(TlsFilesError, match=r"it is not a regular file|Is a directory"):
            client_context(TlsFiles(ca=path))
    with pytest.raises(TlsFilesError, match="null byte"):
        client_context(TlsFiles(ca=Path("a\0b")))


def test_encrypted_key_is_refused_without_a_prompt(authority: Authority) -> None:
    files = authority.files("node", "a")
    assert files.key is not None
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(TlsFilesError, match="is encrypted"):
        server_context(files)


def test_files_that_change_are_followed_and_a_broken_one_changes_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.files("node", "a")
    assert files.cert is not None
    assert files.key is not None
    followed = ReloadingTlsContexts(files, server_context, client_context)
    first = list(followed.contexts)
    assert not followed.look()
    old_key = files.key.read_bytes()
    authority.files("node", "a")
    new_key = files.key.read_bytes()
    for broken in (old_key, b"garbage"):
        files.key.write_bytes(broken)
        caplog.clear()
        assert [followed.look(), followed.look()] == [False, False]
        assert len(caplog.messages) == 1, "the fault is logged once"
        assert followed.contexts == first
    files.key.unlink()
    assert not followed.look()
    files.key.touch(mode=0o600)
    files.key.write_bytes(new_key)
    assert followed.look()
    assert not followed.look()
    assert followed.contexts[0] is not first[0]
    assert new_key.decode() not in caplog.text
