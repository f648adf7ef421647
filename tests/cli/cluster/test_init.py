from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog_broker.base.bootstrap import load_bootstrap
from tidelog_broker.base.secret_file import read_secrets
from tidelog_broker.core.membership.admission import binders_needed
from tidelog_cli.base import failures
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.cluster import init as cluster_init
from tidelog_cli.cluster.init import founder, waiting
from tidelog_cli.main import main
from tidelog_cli.up.local_cluster import free_ports

THREE = ("log1=127.0.0.2:7410,zone=east", "log2=log2.example.org,role=persistence", "log3=[::1]:7430,gossip_port=7431")


def init(*words: object) -> int:
    return main(["cluster", "init", *map(str, words)])


def options(*nodes: str) -> list[str]:
    return [word for node in nodes for word in ("--node", node)]


def test_the_files_are_what_a_node_takes_and_each_founder_has_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "my orders"
    assert init(home, *options(*THREE), "--name", "orders") == 0
    read = load_bootstrap(home / "cluster.json")
    assert read.name == "orders"
    assert [(node.node_id, node.host, node.port, node.gossip_port, node.zone) for node in read.nodes] == [
        ("log1", "127.0.0.2", 7410, 7410, "east"),
        ("log2", "log2.example.org", 7400, 7400, "default"),
        ("log3", "::1", 7430, 7431, "default"),
    ]
    assert [node.roles for node in read.nodes][1] == ("persistence",)
    assert (home / "secret").stat().st_mode & 0o777 == 0o600
    assert len(read_secrets(home / "secret").first) == 64
    assert caplog.text == "", "the node has nothing to warn of"
    out = capsys.readouterr().out
    assert read.cluster_id in out
    lines = [shlex.split(line) for line in out.splitlines() if line.startswith("  ")]
    commands = [cluster_init.command(home, node.node_id, secured=True) for node in read.nodes]
    assert lines == [*cluster_init.preparations(home, [founder(text) for text in THREE]), *commands]
    assert "all of them have started" in out


def test_json_output_has_the_same_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path / "orders", *options(*THREE), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    read = load_bootstrap(Path(told["bootstrap"]))
    assert (told["cluster_id"], read.name) == (read.cluster_id, "orders")
    assert [*told["commands"]] == ["log1", "log2", "log3"]
    assert told["preparations"][0] == ["tidelog", "certs", "init", str(tmp_path / "orders")]
    assert read_secrets(Path(told["secret_file"])).first


def test_nodes_that_other_machines_reach_are_started_with_tls_and_authentication(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "orders $(id)"
    assert init(home, *options("log1=127.0.0.1", "log'2=log2.example.org;id"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    secret = (home / "secret").read_text().strip()
    for node_id, words in told["commands"].items():
        assert words[0] == "env"
        settings = dict(word.split("=", 1) for word in words[1 : words.index("tidelog")])
        assert settings["TIDELOG_NODE_AUTH"] == "required"
        assert settings["TIDELOG_NODE_PEER_AUTH"] == "certificate"
        assert settings["TIDELOG_NODE_TLS_KEY_FILE"] == str(home / f"{node_id}.key")
        assert "--insecure" not in words
        assert secret not in " ".join(words)
    assert ["tidelog", "key", "new", "--out", str(home / "admin.key")] in told["preparations"]


def test_nodes_of_one_machine_are_started_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path / "orders", *options("log1=127.0.0.1", "log2=localhost:7410"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["preparations"] == []
    assert [words[0] for words in told["commands"].values()] == ["tidelog", "tidelog"]


def test_the_line_for_nodes_that_join_is_one_that_a_shell_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"node_id": "log1", "cluster_id": "0" * 32}))
    for number, host in enumerate(("[2001:db8::1]", "h;reboot", "::1")):
        home = tmp_path / f"my orders {number}"
        bracketed = f"[{host.strip('[]')}]" if ":" in host else host
        assert init(home, "--node", f"log1={bracketed}", "--from", tmp_path) == 0
        lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if "--seeds" in line]
        (words,) = lines
        assert words[words.index("--seeds") + 1] == f"{bracketed}:7400"
        assert words[words.index("--secret-file") + 1] == str(home / "secret")
        assert ("TIDELOG_NODE_AUTH=required" in words) == (host != "::1")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_printed_lines_start_a_node_that_others_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert init(tmp_path / "my orders", "--node", f"log1=0.0.0.0:{port}") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    *preparing, start = lines
    bin_dir = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for line in preparing:
        subprocess.run(["/bin/sh", "-c", line], check=True, capture_output=True, env=os.environ | {"PATH": bin_dir})
    command = ["/bin/sh", "-c", f"exec {start} --management-port 0"]
    environ = os.environ | {"PATH": bin_dir}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
        finally:
            process.terminate()
        said = process.communicate(timeout=60)[1]
    assert line, said
    assert json.loads(line)["port"] == port


@pytest.mark.long
def test_a_node_starts_by_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    assert init(tmp_path / "orders", "--node", f"log1=127.0.0.1:{port}", "--json") == 0
    words = json.loads(capsys.readouterr().out)["commands"]["log1"]
    command = [sys.executable, "-m", "tidelog_cli", *words[1:], "--management-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
        finally:
            process.terminate()
        assert process.wait(30) == 0, process.communicate()[1]
    ready = json.loads(line)
    assert (ready["node_id"], ready["port"]) == ("log1", port)


@pytest.mark.parametrize("there", ["cluster.json", "secret"])
def test_nothing_is_overwritten(tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / there).write_text("old")
    assert init(tmp_path, *options(*THREE)) == failures.EXIT_USAGE
    assert f"{tmp_path / there} already exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "old"


def test_failed_write_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, document: dict[str, Any], *, replace: bool) -> None:
        del document, replace
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(cluster_init, "write_bootstrap", full)
    assert init(tmp_path, *options(*THREE)) == failures.EXIT_FAILED
    assert "cluster.json cannot be written: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("log1", "must begin with an id"),
        ("=h:1", "must begin with an id"),
        ("a b=h:1", "must begin with an id"),
        ("a" * 129 + "=h", "must begin with an id"),
        ("..=h", "must begin with an id"),
        ("-x=h", "must begin with an id"),
        ("a\x9b31m=h", "must begin with an id"),
        ("a\u202eb=h", "must begin with an id"),
        ("log1=-h", "'-h' is not a host"),
        ("log1=h\x9b", "is not a host"),
        ("log1=h,zone=a\x9bb", "zone=a"),
        ("log1=", "'' is not a host"),
        ("log1=h:0", "'0' is not a port"),
        ("log1=h:65536", "'65536' is not a port"),
        ("log1=h:", "'' is not a port"),
        ("log1=::1", "is not a host"),
        ("log1=h,gossip_port=x", "'x' is not a port"),
        ("log1=h,zone=", "has no value"),
        ("log1=h,zone=a,zone=b", "is repeated"),
        ("log1=h,role=king", "invalid value: 'role=king'"),
        ("log1=h,colour=red", "unknown option: 'colour=red'"),
    ],
)
def test_invalid_node_is_refused_with_the_expected_shape(text: str, what: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        founder(text)
    assert refused.value.exit_code == failures.EXIT_USAGE
    assert what in str(refused.value)
    assert "ID=HOST[:PORT]" in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        (("a=h1", "a=h2"), "more than one --node has the id a"),
        (("a=h1", "b=h1"), "more than one --node has the address h1:7400"),
        (("a=h1:1,gossip_port=3", "b=h1:2,gossip_port=3"), "more than one --node has the gossip address h1:3"),
        (("a=h1,role=ingestion",), "no --node has the role persistence"),
    ],
)
def test_nodes_that_cannot_be_together_are_refused(
    tmp_path: Path, nodes: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "d", *options(*nodes)) == failures.EXIT_USAGE
    assert what in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_both_roles_may_be_spelt_out() -> None:
    assert founder("a=h,role=ingestion,role=persistence")["roles"] == ["ingestion", "persistence"]


def test_for_whom_founders_wait_is_what_the_nodes_do() -> None:
    for founders in range(1, 8):
        needs_all = binders_needed(founders) == founders - 1
        assert ("all of them" in waiting(founders) or founders == 1) == needs_all
        assert needs_all or f"when {binders_needed(founders) + 1} of them" in waiting(founders)
