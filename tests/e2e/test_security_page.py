"""docs/security.md, line by line, on real processes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.broker.issuer import Issuer
from tests.broker.keyed import ADMIN

from tidelog import testing
from tidelog_broker.base.secret_file import read_secrets
from tidelog_cli.local_cluster import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.mark.long
def test_from_nothing_to_a_node_that_asks_who_you_are(tmp_path: Path) -> None:
    first, second = blocks("From nothing to a node that asks who you are")
    (quotas,) = blocks("Quotas")
    native, management = free_ports(2)
    *before, node_line = first.strip().splitlines()
    node_line = node_line.replace("7400", str(native)).replace("7401", str(management))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG")} | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TIDELOG_BOOTSTRAP": f"127.0.0.1:{native}",
    }
    script = "\n".join(["set -e", *before, f"exec {node_line}"])
    with subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        try:
            assert str(native) in node.stdout.readline()
            anonymous = run("tidelog topic list", tmp_path, environment)
            assert anonymous.returncode != 0
            assert "API key" in anonymous.stderr
            told = run(second, tmp_path, environment)
            assert told.returncode == 1, told.stderr  # the last line asks for what is denied
            assert "denied" in told.stdout
            told = run(f"export TIDELOG_API_KEY_FILE=$PWD/admin.key\n{quotas}", tmp_path, environment)
            assert told.returncode == 0, told.stderr
            assert "10,485,760" in told.stdout
            keyed = environment | {"TIDELOG_API_KEY_FILE": str(tmp_path / "billing.key")}
            assert run("tidelog topic list", tmp_path, keyed).stdout.count("orders") == 1
            refused = run("echo x | tidelog produce orders", tmp_path, keyed)
            assert refused.returncode != 0
            assert "no permission: produce" in refused.stderr
            assert run("tidelog consume orders --group billing", tmp_path, keyed).returncode == 0
        finally:
            node.terminate()
        log = node.stderr.read() if node.stderr is not None else ""
    keys = [(tmp_path / name).read_text().strip() for name in ("admin.key", "billing.key")]
    assert not any(key in log for key in keys)
    assert '"event": "refused"' in log


def blocks(heading: str) -> list[str]:
    """Return the commands under a heading of the page."""
    (section,) = (part for part in PAGE.read_text().split("\n## ") if part.startswith(f"{heading}\n"))
    return re.findall(r"```text\n(.*?)```", section, re.DOTALL)


@pytest.mark.long
def test_from_nothing_to_a_secured_cluster(tmp_path: Path) -> None:
    founding, starting, looking = blocks("From nothing to a secured cluster")
    lines = [line for line in (founding + starting + looking).splitlines() if line]
    assert len(lines) == 9
    natives = free_ports(3)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG")} | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TIDELOG_CONTEXTS": str(tmp_path / "contexts.json"),
    }

    def here(text: str) -> str:
        """All three machines are this one."""
        for number, port in enumerate(natives, 1):
            text = text.replace(f"log{number}=log{number}.example.org", f"log{number}=127.0.0.1:{port}")
        return text.replace("log1.example.org", f"127.0.0.1:{natives[0]}").replace("log$n.example.org", "127.0.0.1")

    founded = run("set -e\n" + "\n".join(here(line) for line in lines[:4]), tmp_path, environment)
    assert founded.returncode == 0, founded.stderr
    with contextlib.ExitStack() as running:
        nodes: list[subprocess.Popen[bytes]] = []
        for number in (1, 2, 3):
            export, node = starting.strip().replace("logN", f"log{number}").splitlines()
            script = f"{export}\nexec {node}-{number} --management-port 0"
            command = ["bash", "-c", script]
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
            nodes.append(running.enter_context(process))
            running.callback(nodes[-1].terminate)
        for each in nodes:
            assert each.stdout is not None
            assert b"ready" in each.stdout.readline()
        told = run(here(looking), tmp_path, environment)
        assert told.returncode == 0, told.stderr
        assert all(f"log{number}" in told.stdout for number in (1, 2, 3))
        plain = run(f"tidelog topic list --bootstrap 127.0.0.1:{natives[1]}", tmp_path, environment)
        assert "speaks TLS" in plain.stderr
        anonymous = run(
            f"tidelog topic list --bootstrap 127.0.0.1:{natives[1]}",
            tmp_path,
            environment | {"TIDELOG_CA_FILE": str(tmp_path / "orders" / "ca.pem")},
        )
        assert "asks who you are" in anonymous.stderr


def test_a_program_shows_its_token(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    issuer = Issuer()
    (tmp_path / "admin.key").write_text(ADMIN)
    (tmp_path / "admin.key").chmod(0o600)
    settings = issuer.settings(issuer.save(tmp_path / "jwks")) | {
        "auth": "required",
        "admin_key_file": str(tmp_path / "admin.key"),
    }
    token = tmp_path / "token"
    with testing.node(settings=settings) as node:
        program = program.replace("/var/run/secrets/tidelog/token", str(token)).replace(
            "127.0.0.1:7400", node.bootstrap
        )
        for issued, is_right in ((issuer.token("ann"), True), (Issuer().token("ann"), False)):
            token.write_text(issued)
            token.chmod(0o600)
            command = [sys.executable, "-W", "error", "-c", program]
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            if is_right:
                assert ended.returncode == 0, ended.stderr
                assert ended.stdout == "0 topics may be seen\n" * 2
            else:
                assert "UnauthenticatedError" in ended.stderr


def test_the_files_by_which_a_secret_is_replaced(tmp_path: Path) -> None:
    (lines,) = blocks("The cluster's secret is replaced")
    environment = dict(os.environ) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    made = run(f"set -e\ntidelog cluster init orders --node log1=127.0.0.1:1\n{lines}", tmp_path, environment)
    assert made.returncode == 0, made.stderr
    (old,) = read_secrets(tmp_path / "orders" / "secret")
    steps = [tuple(read_secrets(tmp_path / "orders" / f"secret.{number}")) for number in (1, 2, 3)]
    (new,) = steps[2]
    assert old != new
    assert steps[:2] == [(old, new), (new, old)]
    assert all((tmp_path / "orders" / f"secret.{number}").stat().st_mode & 0o077 == 0 for number in (1, 2, 3))


def test_revoking_from_the_page(tmp_path: Path) -> None:
    (lines,) = blocks("Certificates that are revoked")
    environment = dict(os.environ) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    issued = "tidelog certs init certs\ntidelog certs issue certs client billing --days 90"
    told = run(f"set -e\n{issued}\n{lines}", tmp_path, environment)
    assert told.returncode == 0, told.stderr
    assert "1 more" in told.stdout


def test_a_node_and_a_command_in_tls(tmp_path: Path) -> None:
    node_lines, client_lines = blocks("TLS")
    native, management = free_ports(2)
    *before, node_line = node_lines.strip().splitlines()
    node_line = node_line.replace("7400", str(native)).replace("7401", str(management))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG")} | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TIDELOG_BOOTSTRAP": f"127.0.0.1:{native}",
        "TIDELOG_CONTEXTS": str(tmp_path / "contexts.json"),
    }
    script = "\n".join(["set -e", *before, f"exec {node_line}"])
    with subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        try:
            while str(native).encode() not in (line := node.stdout.readline()):
                assert line, "the node did not start"
            plain = run("tidelog topic list", tmp_path, environment)
            assert plain.returncode != 0
            assert "speaks TLS" in plain.stderr
            told = run(client_lines.replace("7400", str(native)), tmp_path, environment)
            assert told.returncode == 0, told.stderr
            del environment["TIDELOG_BOOTSTRAP"]
            assert "encrypted" in run("tidelog topic list", tmp_path, environment).stdout, "the context knows the CA"
        finally:
            node.terminate()


def run(script: str, cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
