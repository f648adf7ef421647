"""docs/security.md, docs/permissions.md and docs/tls.md, line by line, on real processes."""

from __future__ import annotations

import contextlib
import inspect
import re
import ssl
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.broker.issuer import Issuer
from tests.broker.keyed import ADMIN
from tests.e2e.security_page import at_a_terminal, blocks, environment, machines, run, sections, serving
from tests.private_files import keep_private

from tidelog import testing
from tidelog_broker.base.secret_file import read_secrets
from tidelog_cli.up.local_cluster import free_ports

PASSWORD = "correct horse battery"


def test_every_block_of_the_page_is_run() -> None:
    """One test for each heading, which runs all blocks under it."""
    tests = [value for name, value in globals().items() if name.startswith("test_") and callable(value)]
    sources = "".join(inspect.getsource(test) for test in tests)
    for heading, text in sections().items():
        for language in set(re.findall(r"^```(\w+)$", text, re.MULTILINE)):
            taken = f'blocks("{heading}")' if language == "text" else f'blocks("{heading}", "{language}")'
            assert taken in sources, (heading, language)


def ports_of(line: str, *ports: int) -> str:
    """Return a line of the page with ports that are free."""
    free: dict[str, str] = dict(zip(("7400", "7401"), map(str, ports), strict=True))
    return re.sub("7400|7401", lambda shown: free[shown[0]], line)  # at once: a free port may contain the other number


@pytest.mark.long
@pytest.mark.timeout(600)
def test_from_nothing_to_a_node_with_authentication(tmp_path: Path) -> None:
    first, second = blocks("Require authentication on one node")
    (quotas,) = blocks("Quotas")
    (passwords,) = blocks("Passwords")
    (following,) = blocks("The audit log")
    natives = free_ports(2)
    variables = environment(TIDELOG_BOOTSTRAP=f"127.0.0.1:{natives[0]}")
    with serving(ports_of(first, *natives), tmp_path, variables):
        anonymous = run("tidelog topic list", tmp_path, variables)
        assert anonymous.returncode != 0
        assert "API key" in anonymous.stderr
        told = run(second, tmp_path, variables)
        assert told.returncode == 1, told.stderr  # the last line requests a denied operation
        assert "denied" in told.stdout
        admin = variables | {"TIDELOG_API_KEY_FILE": str(tmp_path / "admin.key")}
        told = run(f"set -e\n{quotas}", tmp_path, admin)
        assert told.returncode == 0, told.stderr
        assert "10,485,760" in told.stdout
        code, screen = at_a_terminal(f"set -e\n{passwords}", tmp_path, admin, PASSWORD)
        assert code == 0, screen
        assert screen.count("Again: ") == 2
        assert "analyst" in screen
        assert PASSWORD not in screen
        keyed = variables | {"TIDELOG_API_KEY_FILE": str(tmp_path / "billing.key")}
        assert run("tidelog topic list", tmp_path, keyed).stdout.count("orders") == 1
        refused = run("echo x | tidelog produce orders", tmp_path, keyed)
        assert refused.returncode != 0
        assert "no permission: produce" in refused.stderr
        assert run("tidelog consume orders --group billing", tmp_path, keyed).returncode == 0
        assert '"event":"refused"' in first_line_with('"refused"', following, tmp_path, admin).replace(": ", ":")
    log = (tmp_path / "log").read_text()
    keys = [(tmp_path / name).read_text().strip() for name in ("admin.key", "billing.key")]
    assert not any(secret in log for secret in (*keys, PASSWORD))
    assert '"event": "refused"' in log


def first_line_with(word: str, lines: str, cwd: Path, variables: dict[str, str]) -> str:
    """Run lines that do not end until a line with a word is printed; return that line."""
    with subprocess.Popen(
        ["timeout", "200", "bash", "-c", lines], cwd=cwd, env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = next((line for line in process.stdout if word in line), "")
        process.terminate()
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_from_nothing_to_a_secured_cluster(tmp_path: Path) -> None:
    """Each machine is a directory, and has a port of this one; that is all that is not as the page has it."""
    founding, starting, looking = blocks("Set up a secured cluster")
    lines = [line for line in (founding + starting + looking).splitlines() if line]
    assert len(lines) == 9
    natives = free_ports(3)
    hosts = [f"log{number}.example.org" for number in (1, 2, 3)]
    issuing = tmp_path / "where you issue"
    issuing.mkdir()
    variables = environment(TIDELOG_CONTEXTS=tmp_path / "contexts.json") | machines(tmp_path, *hosts)

    def here(line: str) -> str:
        if line.startswith("for") and "scp" in line:
            return line
        for number, port in enumerate(natives, 1):
            line = line.replace(f"log{number}=log{number}.example.org", f"log{number}=127.0.0.1:{port}")
        return line.replace("log1.example.org", f"127.0.0.1:{natives[0]}").replace("log$n.example.org", "127.0.0.1")

    founded = run("set -e\n" + "\n".join(map(here, lines[:5])), issuing, variables)
    assert founded.returncode == 0, founded.stderr
    for number, host in enumerate(hosts, 1):
        given = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / host / "orders").iterdir()}
        assert given.keys() == {
            "cluster.json",
            "secret",
            "ca.pem",
            "admin.key",
            f"log{number}.pem",
            f"log{number}.key",
        }, "without the CA's key and other nodes' files"
        assert given["secret"] == given["admin.key"] == given[f"log{number}.key"] == 0, "secrets stay secret"
    with contextlib.ExitStack() as running:
        nodes = []
        for number, host in enumerate(hosts, 1):
            export, node = starting.strip().replace("logN", f"log{number}").splitlines()
            command = ["bash", "-c", f"{export}\nexec {node} --management-port 0"]
            cwd = tmp_path / host
            process = subprocess.Popen(command, cwd=cwd, env=variables, stdout=subprocess.PIPE)
            nodes.append(running.enter_context(process))
            running.callback(process.terminate)
        for each in nodes:
            assert each.stdout is not None
            assert b"ready" in each.stdout.readline()
        told = run("set -e\n" + "\n".join(map(here, looking.splitlines())), issuing, variables)
        assert told.returncode == 0, told.stderr
        assert all(f"log{number}" in told.stdout for number in (1, 2, 3))
        plain = run(f"tidelog topic list --bootstrap 127.0.0.1:{natives[1]}", issuing, variables)
        assert "requires TLS" in plain.stderr
        anonymous = run(
            f"tidelog topic list --bootstrap 127.0.0.1:{natives[1]}",
            issuing,
            variables | {"TIDELOG_CA_FILE": str(issuing / "orders" / "ca.pem")},
        )
        assert "requires authentication" in anonymous.stderr


def test_a_program_shows_its_token(tmp_path: Path) -> None:
    (program,) = blocks("Tokens", "python")
    (shown,) = blocks("Tokens", "toml")
    issuer = Issuer()
    keep_private(tmp_path / "admin.key", ADMIN)
    settings = tomllib.loads(shown)["node"]
    own = issuer.settings(issuer.save(tmp_path / "jwks")) | {"admin_key_file": str(tmp_path / "admin.key")}
    assert settings.keys() == own.keys() - {"jwt_leeway_s"} | {"auth"}
    token = tmp_path / "token"
    with testing.node(settings=settings | own) as node:
        program = program.replace("/var/run/secrets/tidelog/token", str(token)).replace(
            "127.0.0.1:7400", node.bootstrap
        )
        for issued, is_right in ((issuer.token("ann"), True), (Issuer().token("ann"), False)):
            keep_private(token, issued)
            command = [sys.executable, "-W", "error", "-c", program]
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            if is_right:
                assert ended.returncode == 0, ended.stderr
                assert ended.stdout == "0 topics may be seen\n" * 2
            else:
                assert "UnauthenticatedError" in ended.stderr


def test_the_files_by_which_a_secret_is_replaced(tmp_path: Path) -> None:
    (lines,) = blocks("Replace the cluster's secret")
    made = run(f"set -e\ntidelog cluster init orders --node log1=127.0.0.1:1\n{lines}", tmp_path, environment())
    assert made.returncode == 0, made.stderr
    (old,) = read_secrets(tmp_path / "orders" / "secret")
    steps = [tuple(read_secrets(tmp_path / "orders" / f"secret.{number}")) for number in (1, 2, 3)]
    (new,) = steps[2]
    assert old != new
    assert steps[:2] == [(old, new), (new, old)]
    assert all((tmp_path / "orders" / f"secret.{number}").stat().st_mode & 0o077 == 0 for number in (1, 2, 3))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_certificate_is_an_identity_until_it_is_revoked(tmp_path: Path) -> None:
    founding, _ = blocks("TLS")
    (revoking,) = blocks("Revoke certificates")
    (issuing,) = blocks("Client certificates")
    empty, revoked = revoking.splitlines()
    natives = free_ports(2)
    asking = (
        "tidelog key new --out admin.key\nexport TIDELOG_NODE_AUTH=required TIDELOG_NODE_ADMIN_KEY_FILE=admin.key "
        "TIDELOG_NODE_TLS_CRL_FILE=certs/crl.pem"
    )
    *before, node = founding.strip().splitlines()
    variables = environment(TIDELOG_BOOTSTRAP=f"127.0.0.1:{natives[0]}", TIDELOG_CA_FILE=tmp_path / "certs" / "ca.pem")
    with serving([*before, empty, *asking.splitlines(), ports_of(node, *natives)], tmp_path, variables):
        told = run(f"set -e\n{issuing}tidelog topic list", tmp_path, variables)
        assert told.returncode == 0, told.stderr
        export = issuing.splitlines()[1]
        assert "no permission" in run(f"{export}\ntidelog topic create t", tmp_path, variables).stderr
        assert "'billing'" in run(f"{export}\ntidelog topic create t", tmp_path, variables).stderr
        told = run(revoked, tmp_path, variables)
        assert told.returncode == 0, told.stderr
        assert "1 certificate added" in told.stdout
        # The node looks at the list each second.
        waiting = f"{export}\nfor _ in $(seq 30); do tidelog topic list 2>&1 | grep revoked && exit; done; exit 1"
        assert run(waiting, tmp_path, variables).returncode == 0, "it is taken for ever"


def test_a_node_and_a_command_in_tls(tmp_path: Path) -> None:
    node_lines, client_lines = blocks("TLS")
    natives = free_ports(2)
    variables = environment(TIDELOG_BOOTSTRAP=f"127.0.0.1:{natives[0]}", TIDELOG_CONTEXTS=tmp_path / "contexts.json")
    with serving(ports_of(node_lines, *natives), tmp_path, variables):
        plain = run("tidelog topic list", tmp_path, variables)
        assert plain.returncode != 0
        assert "requires TLS" in plain.stderr
        told = run("set -e\n" + client_lines.replace("7400", str(natives[0])), tmp_path, variables)
        assert told.returncode == 0, told.stderr
        del variables["TIDELOG_BOOTSTRAP"]
        assert "encrypted" in run("tidelog topic list", tmp_path, variables).stdout, "the context knows the CA"


def test_metrics_require_the_token(tmp_path: Path) -> None:
    (lines,) = blocks("The management port")
    founding, _ = blocks("TLS")
    natives = free_ports(2)
    *before, node = founding.strip().splitlines()
    asking = "tidelog key new --out admin.key\nexport TIDELOG_NODE_AUTH=required TIDELOG_NODE_ADMIN_KEY_FILE=admin.key"
    script = [*before, *asking.splitlines(), *lines.splitlines(), ports_of(node, *natives)]
    with serving(script, tmp_path, environment()):
        context = ssl.create_default_context(cafile=tmp_path / "certs" / "ca.pem")
        token = (tmp_path / "metrics.token").read_text().strip()
        assert (tmp_path / "metrics.token").stat().st_mode & 0o077 == 0
        for shown, status in ((token, 200), (f"{token}x", 401), ("", 401)):
            asked = urllib.request.Request(
                f"https://127.0.0.1:{natives[1]}/metrics", headers={"Authorization": f"Bearer {shown}"} if shown else {}
            )
            try:
                with urllib.request.urlopen(asked, timeout=30, context=context) as answer:
                    got = answer.status
            except urllib.error.HTTPError as error:
                got = error.code
            assert got == status, shown


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_gateway_with_authentication(tmp_path: Path) -> None:
    starting, keys_over_http = blocks("The gateway")
    own_key, *own_rights, gateway, asking = starting.strip().splitlines()
    native, management, http = free_ports(3)
    variables = environment(TIDELOG_BOOTSTRAP=f"127.0.0.1:{native}")
    node, _ = blocks("Require authentication on one node")
    with serving(ports_of(node, native, management), tmp_path, variables):
        admin = variables | {"TIDELOG_API_KEY_FILE": str(tmp_path / "admin.key")}
        billing = "tidelog key create billing --out billing.key\ntidelog acl grant billing consume topic:orders"
        rights = "\n".join(own_rights)
        made = run(f"set -e\n{own_key}\n{rights}\ntidelog topic create orders\n{billing}", tmp_path, admin)
        assert made.returncode == 0, made.stderr
        before_nodes = variables | {"TIDELOG_GATEWAY_BOOTSTRAP": f"127.0.0.1:{native}"}
        with serving(f"{gateway} --http-port {http}", tmp_path, before_nodes):
            told = run(asking.replace("8080", str(http)), tmp_path, variables)
            assert '"orders"' in told.stdout, told
            told = run(keys_over_http.replace("8080", str(http)), tmp_path, variables)
            assert '"api_key":"tlk_' in told.stdout.replace(": ", ":"), told
            wrong = asking.replace("8080", str(http)).replace("$(cat billing.key)", "nothing")
            assert '"unauthenticated"' in run(wrong, tmp_path, variables).stdout
