"""`tidelog certs revoke`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from tests.cli.certs.test_command import run

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.certs import revoke
from tidelog_cli.certs.command import new_ca, new_certificate
from tidelog_cli.certs.revoke import list_in, revoke_in
from tidelog_proto.tls.reloaded_files import TlsFiles, server_context


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    directory = tmp_path / "certs"
    new_ca(directory, name="Tests", days=10)
    new_certificate(directory, "node", "log1", ["localhost"], days=1, replace=False)
    for name in ("ann", "ben"):
        new_certificate(directory, "client", name, (), days=1, replace=False)
    return directory


def numbers_in(ca: Path) -> set[int]:
    return {entry.serial_number for entry in x509.load_pem_x509_crl(list_in(ca).read_bytes())}


def serial(ca: Path, name: str) -> int:
    return x509.load_pem_x509_certificate((ca / f"{name}.pem").read_bytes()).serial_number


def test_a_list_grows_and_a_node_takes_it(ca: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "certs", "revoke", ca)
    assert code == 0
    assert "tls_crl_file" in out
    assert numbers_in(ca) == set()
    code, out, _ = run(capsys, "certs", "revoke", ca, "ann", "--serial", "0xab:CD", "--json")
    assert json.loads(out) == {"crl_file": str(list_in(ca)), "revoked": ["abcd", f"{serial(ca, 'ann'):x}"]}
    before = list_in(ca).read_bytes()
    assert run(capsys, "certs", "revoke", ca, "ben", "ann")[0] == 0
    assert list_in(ca).read_bytes() != before
    assert numbers_in(ca) == {0xABCD, serial(ca, "ann"), serial(ca, "ben")}
    server_context(TlsFiles(ca / "log1.pem", ca / "log1.key", ca / "ca.pem", crl=list_in(ca)))
    assert list_in(ca).stat().st_mode & 0o777 == 0o644


def test_only_new_entries_are_counted(ca: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, added in (
        (("ann",), "1 certificate added;"),
        (("ann", "ben", "ben", "--serial", "a:b"), "2 certificates added;"),
        (("ben",), "0 certificates added;"),
    ):
        code, out, _ = run(capsys, "certs", "revoke", ca, *words)
        assert code == 0
        assert added in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("missing",), "cannot read the certificate of missing"),
        (("ca",), "cannot revoke itself"),
        (("--serial", "many"), "hexadecimal digits"),
        (("--serial", ":"), "--serial ':' is not a serial number"),
        (("--serial", "0x:"), "--serial '0x:' is not a serial number"),
    ],
)
def test_failed_revocation_changes_nothing(
    ca: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    code, _, err = run(capsys, "certs", "revoke", ca, "ann", *words)
    assert code != 0
    assert why in err
    assert not list_in(ca).exists()


def test_list_of_another_ca_and_an_invalid_one_are_kept(
    ca: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_ca(tmp_path / "other", name="Other", days=1)
    revoke_in(tmp_path / "other", (), ())
    for content, why in (
        (list_in(tmp_path / "other").read_bytes(), "was signed by another CA"),
        (b"garbage", "cannot add certificates to"),
    ):
        list_in(ca).write_bytes(content)
        code, _, err = run(capsys, "certs", "revoke", ca, "ann")
        assert code != 0
        assert why in err
        assert list_in(ca).read_bytes() == content
    code, _, err = run(capsys, "certs", "issue", ca, "client", "crl")
    assert code == 2
    assert "neither 'ca' nor 'crl'" in err


def test_a_list_without_a_reader_is_not_written(ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revoke_in(ca, (), ["1"])
    before = list_in(ca).read_bytes()
    monkeypatch.setattr(revoke, "PEM_BYTES_MAX", len(before))
    with pytest.raises(CommandFailed, match=f"nodes and clients read at most {len(before)} bytes: create another CA"):
        revoke_in(ca, (), [f"{number:x}" for number in range(2, 60)])
    assert list_in(ca).read_bytes() == before


def test_several_at_a_time_lose_nothing(ca: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda number: revoke_in(ca, (), [f"{number:x}"]), range(1, 17)))
    assert made == [([number], 1) for number in range(1, 17)]
    assert numbers_in(ca) == set(range(1, 17))
