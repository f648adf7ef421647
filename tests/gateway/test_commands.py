from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer
from tests.broker.keyed import ADMIN
from tests.gateway.conftest import STOP_TIMEOUT_S, process
from typer.testing import CliRunner

from tidelog.cluster.contexts import Context
from tidelog_cli.main import build_app, main
from tidelog_gateway.commands import register
from tidelog_gateway.server import gateway_server
from tidelog_gateway.settings import GatewaySettings


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    register(app)

    @app.command()
    def other() -> None:
        """Make the gateway a sub-command, as it is in `tidelog`."""

    return app


def test_invalid_settings_are_usage_errors(app: typer.Typer, tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["gateway", "--http-port", "99999"])
    assert result.exit_code == 2
    assert "gateway.http_port (from the command line)" in result.output
    config = tmp_path / "tidelog.toml"
    config.write_text("[gateway]\nhtpp_port = 1\n")
    result = runner.invoke(app, ["gateway", "--config", str(config)])
    assert result.exit_code == 2
    assert "did you mean http_port?" in result.output


def test_other_hosts_need_tls_and_authentication_or_insecure(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[GatewaySettings] = []
    monkeypatch.setattr(gateway_server, "serve", lambda settings, _: served.append(settings))
    refused = CliRunner().invoke(app, ["gateway", "--host", "0.0.0.0"])
    assert refused.exit_code == 2
    assert "without encryption and without authentication" in refused.output
    assert len(refused.output.strip().splitlines()) == 4
    named = ["--insecure", "--allowed-hosts", "gateway, api.example"]
    assert CliRunner().invoke(app, ["gateway", "--host", "0.0.0.0", *named]).exit_code == 0
    assert served[0].allowed_hosts == ["gateway", "api.example"]
    monkeypatch.setenv("TIDELOG_GATEWAY_TLS_CERT_FILE", "gateway.pem")
    assert "at 0.0.0.0 without authentication" in CliRunner().invoke(app, ["gateway", "--host", "0.0.0.0"]).output
    monkeypatch.setenv("TIDELOG_GATEWAY_AUTH", "callers")
    assert CliRunner().invoke(app, ["gateway", "--host", "0.0.0.0"]).exit_code == 0
    assert len(served) == 2


def test_origins_of_pages_are_options(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[GatewaySettings] = []
    monkeypatch.setattr(gateway_server, "serve", lambda settings, _: served.append(settings))
    named = ["--allow-origin", "https://app.example", "--allow-origin", "http://localhost:8000"]
    assert CliRunner().invoke(app, ["gateway", *named]).exit_code == 0
    assert served[0].allowed_origins == ["https://app.example", "http://localhost:8000"]
    monkeypatch.setenv("TIDELOG_GATEWAY_ALLOWED_ORIGINS", "https://other.example")
    assert CliRunner().invoke(app, ["gateway"]).exit_code == 0
    assert served[1].allowed_origins == ["https://other.example"]


def test_a_secret_that_others_may_read_is_not_used(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "serve", lambda *_: None)
    key = tmp_path / "gate.key"
    key.touch(mode=0o644)
    for variable in ("TIDELOG_API_KEY_FILE", "TIDELOG_TOKEN_FILE", "TIDELOG_PASSWORD_FILE"):
        with monkeypatch.context() as environment:
            environment.setenv(variable, str(key))
            refused = CliRunner().invoke(app, ["gateway"])
        assert refused.exit_code == 2
        assert f"in {key} (mode 644): chmod 600 {key}" in refused.output


Served = list[tuple[list[str], Context | None]]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The command's bootstrap nodes and context."""
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "contexts.json"))
    served: Served = []
    monkeypatch.setattr(gateway_server, "serve", lambda settings, context: served.append((settings.bootstrap, context)))
    key = tmp_path / "prod.key"
    key.touch(mode=0o600)
    prod = ("--bootstrap", "log1:7400,log2:7400", "--api-key-file", str(key))
    assert main(["context", "add", "local", "--bootstrap", "here:1"]) == 0
    assert main(["context", "add", "prod", *prod]) == 0
    return served


def test_a_gateway_uses_the_cluster_of_its_context(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["gateway"]) == 0
    assert main(["--context", "prod", "gateway"]) == 0
    monkeypatch.setenv("TIDELOG_CONTEXT", "prod")
    assert main(["gateway"]) == 0
    assert main(["gateway", "--bootstrap", "there:2"]) == 0
    assert main(["--context=", "gateway", "--bootstrap", "there:2"]) == 0
    assert [places for places, _ in served] == [
        ["here:1"],
        ["log1:7400", "log2:7400"],
        ["log1:7400", "log2:7400"],
        ["there:2"],
        ["there:2"],
    ]
    named = [None if context is None else Path(context.api_key_file).name for _, context in served]
    assert named == ["", "prod.key", "prod.key", "prod.key", None]


def test_bootstrap_nodes_override_the_current_context(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", "there:2, there:3")
    assert main(["gateway"]) == 0
    monkeypatch.setenv("TIDELOG_GATEWAY_BOOTSTRAP", "there:4")
    assert main(["gateway"]) == 0
    assert main(["gateway", "--bootstrap", "there:5"]) == 0
    assert served == [(["there:2", "there:3"], None), (["there:4"], None), (["there:5"], None)]
    monkeypatch.delenv("TIDELOG_BOOTSTRAP")
    monkeypatch.delenv("TIDELOG_GATEWAY_BOOTSTRAP")
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "none.json"))
    assert main(["gateway"]) == 0
    assert served[3:] == [(["127.0.0.1:7400"], None)]


def test_an_invalid_context_is_reported_as_by_other_commands(
    served: Served, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    commands = (["gateway"], ["topic", "list"])
    said = [(main(["--context", "prodd", *command]), capsys.readouterr().err) for command in commands]
    assert said[0] == said[1]
    assert "prodd" in said[0][1]
    (tmp_path / "prod.key").chmod(0o644)
    assert main(["--context", "prod", "gateway"]) == 2
    assert f"chmod 600 {tmp_path / 'prod.key'}" in capsys.readouterr().err
    assert served == []


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_process_with_success(number: signal.Signals) -> None:
    with process("gateway", "--bootstrap", "127.0.0.1:1", "--http-port", "0") as (started, ready):
        address = f"http://127.0.0.1:{ready['http_port']}"
        assert httpx.get(f"{address}/livez").status_code == 200
        assert httpx.get(f"{address}/readyz", timeout=20).status_code == 503, "no node is needed to start"
        started.send_signal(number)
        assert started.wait(STOP_TIMEOUT_S) == 0


@pytest.mark.e2e
def test_a_port_in_use_is_one_clear_line() -> None:
    with process("gateway", "--bootstrap", "127.0.0.1:1", "--http-port", "0") as (_, ready):
        command = [sys.executable, "-m", "tidelog_cli", "gateway", "--http-port", str(ready["http_port"])]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert re.fullmatch(
        r"tidelog gateway: cannot listen on 127\.0\.0\.1:\d+: Address already in use; "
        r"stop the program that uses this port, or choose another port with --http-port\n",
        second.stderr,
    )


@pytest.mark.e2e
def test_a_gateway_with_authentication_is_set_up_by_commands(tmp_path: Path) -> None:
    """The commands of docs/security.md."""
    admin, gate = tmp_path / "admin.key", tmp_path / "gate.key"
    admin.touch(mode=0o600)
    admin.write_text(ADMIN)
    told = {"TIDELOG_NODE_AUTH": "required", "TIDELOG_NODE_ADMIN_KEY_FILE": str(admin)}
    with process("node", "--data", str(tmp_path / "data"), "--port", "0", "--management-port", "0", **told) as (
        _,
        node,
    ):
        address = f"127.0.0.1:{node['port']}"

        def tidelog(*arguments: str) -> str:
            as_admin = {"TIDELOG_API_KEY_FILE": str(admin), "TIDELOG_BOOTSTRAP": address}
            done = CliRunner().invoke(build_app(), arguments, env=as_admin)
            assert done.exit_code == 0, done.output
            return done.stdout.strip()

        tidelog("key", "create", "gate", "--out", str(gate))
        billing = tidelog("key", "create", "billing")
        tidelog("acl", "grant", "gate", "impersonate", "cluster")
        tidelog("acl", "grant", "billing", "create", "topic:orders")
        options = ("gateway", "--bootstrap", address, "--http-port", "0", "--auth", "callers")
        contexts = {"TIDELOG_CONTEXTS": str(tmp_path / "contexts.json")}
        added = CliRunner().invoke(
            build_app(), ["context", "add", "gate", "--bootstrap", address, "--api-key-file", str(gate)], env=contexts
        )
        assert added.exit_code == 0, added.output
        with process("--context", "gate", "gateway", "--http-port", "0", "--auth", "callers", **contexts) as (_, ready):
            assert httpx.get(f"http://127.0.0.1:{ready['http_port']}/readyz").status_code == 200
        with process(*options, TIDELOG_API_KEY_FILE=str(gate)) as (_, ready):
            base = f"http://127.0.0.1:{ready['http_port']}"
            assert httpx.get(f"{base}/readyz").status_code == 200
            headers = {"Authorization": f"Bearer {billing}"}
            assert httpx.post(f"{base}/v1/topics", json={"name": "orders"}, headers=headers).status_code == 201
            assert httpx.post(f"{base}/v1/topics", json={"name": "other"}, headers=headers).status_code == 403
            assert httpx.post(f"{base}/v1/topics", json={"name": "orders"}).status_code == 401
