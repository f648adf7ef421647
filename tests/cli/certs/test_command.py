from __future__ import annotations

import json
import shlex
import stat
import sys
from pathlib import Path

import pytest

from tidelog_cli.main import main
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context, server_context


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(each) for each in arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_a_ca_is_made_and_issues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca = tmp_path / "new" / "certs"
    code, out, _ = run(capsys, "certs", "init", ca)
    assert code == 0
    assert "do not copy it to nodes" in out
    code, out, _ = run(capsys, "certs", "issue", ca, "node", "log1", "--host", "log1.example", "--host", "10.0.0.1")
    assert code == 0
    assert f"tls_cert_file = {ca / 'log1.pem'}" in out
    code, out, _ = run(capsys, "certs", "issue", ca, "client", "billing", "--days", "90", "--json")
    assert json.loads(out)["cert_file"] == str(ca / "billing.pem")
    for name in ("ca", "log1", "billing"):
        assert stat.S_IMODE((ca / f"{name}.key").stat().st_mode) == 0o600
    server_context(TlsFiles(ca / "log1.pem", ca / "log1.key", ca / "ca.pem"))
    client_context(TlsFiles(ca / "billing.pem", ca / "billing.key", ca / "ca.pem"))
    assert "BEGIN" not in out
    assert sorted(path.suffix for path in ca.iterdir()) == [".key"] * 3 + [".pem"] * 3


def test_printed_commands_can_be_pasted_with_spaces_in_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = tmp_path / "my certs"
    _, _, told = run(capsys, "certs", "issue", ca, "client", "billing")
    assert shlex.split(told.partition("create one: ")[2]) == ["tidelog", "certs", "init", str(ca)]
    _, out, _ = run(capsys, "certs", "init", ca)
    words = shlex.split(out.partition("Issue certificates with: ")[2])
    assert words == ["tidelog", "certs", "issue", str(ca), "node", "NAME", "--host", "HOST"]
    _, out, _ = run(capsys, "certs", "issue", ca, "client", "billing")
    assert f"TIDELOG_CERT_FILE={ca / 'billing.pem'}" in shlex.split(
        out.partition("Configure it with ")[2].replace(",", " ")
    )


def test_existing_certificate_is_kept_without_replace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "certs", "init", tmp_path)[0] == 0
    issuing = ("certs", "issue", tmp_path, "server", "gateway", "--host", "localhost")
    assert run(capsys, *issuing)[0] == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, _, err = run(capsys, "certs", "init", tmp_path)
    assert code == 2
    assert "already exists" in err
    code, _, err = run(capsys, *issuing)
    assert code == 2
    assert "--replace" in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert run(capsys, *issuing, "--replace")[0] == 0
    assert (tmp_path / "gateway.key").read_bytes() != before["gateway.key"]
    server_context(TlsFiles(tmp_path / "gateway.pem", tmp_path / "gateway.key"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("master", "x"), "use one of node, server, client"),
        (("node", "x"), "--host"),
        (("client", "x", "--host", "a"), "has no hosts"),
        (("node", "../x", "--host", "a"), "invalid name"),
        (("client", "admin"), "'admin' authenticates with an API key"),
        (("node", "ca", "--host", "a"), "invalid name"),
        (("node", "x", "--host", "a b"), "not a DNS name or IP address"),
        (("node", "x", "--host", "log1:7400"), "not a DNS name or IP address"),
        (("node", "x", "--host", "300.1.1.1"), "not a DNS name or IP address"),
        (("node", "x", "--host", "log1..example"), "not a DNS name or IP address"),
        (("node", "x", "--host", "example."), "not a DNS name or IP address"),
        (("node", "x", "--host", "*"), "not a DNS name or IP address"),
        (("node", "x", "--host", "fe80::1%eth0"), "not a DNS name or IP address"),
        (("node", "x", "--host", "a"), "cannot read the CA in"),
    ],
)
def test_invalid_argument_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    code, _, err = run(capsys, "certs", "issue", tmp_path, *words)
    assert code != 0
    assert why in err
    assert list(tmp_path.iterdir()) == []


def test_a_host_is_a_name_or_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "certs", "init", tmp_path)[0] == 0
    hosts = ("log1", "log_1", "1a", "*.apps.example.org", "10.0.0.1", "::1", "a" * 63 + "." + "b" * 63)
    options = [option for host in hosts for option in ("--host", host)]
    assert run(capsys, "certs", "issue", tmp_path, "server", "x", *options)[0] == 0


def test_nothing_is_issued_with_a_key_that_every_user_may_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "certs", "init", tmp_path)[0] == 0
    key = tmp_path / "ca.key"
    key.chmod(0o644)
    for command in (("issue", tmp_path, "client", "billing"), ("revoke", tmp_path)):
        code, _, err = run(capsys, "certs", *command)
        assert code != 0
        assert f"chmod 600 {key}" in err
    assert not (tmp_path / "billing.key").exists()
    key.chmod(0o640)
    assert run(capsys, "certs", "issue", tmp_path, "client", "billing")[0] == 0


def test_without_the_library_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    monkeypatch.delitem(sys.modules, "tidelog_cli.certs.certificate_authority", raising=False)
    code, _, err = run(capsys, "certs", "init", tmp_path)
    assert code == 1
    assert "pip install 'tidelog[broker]'" in err
