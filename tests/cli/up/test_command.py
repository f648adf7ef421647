from __future__ import annotations

import asyncio
import json
import shlex
import signal
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import Process
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from tidelog import ClusterStatus, Partition, Topic
from tidelog_cli.base import failures
from tidelog_cli.main import main
from tidelog_cli.up import command as up
from tidelog_cli.up.child_processes import Child
from tidelog_cli.up.local_cluster import prepare
from tidelog_cli.up.local_security import secure
from tidelog_cli.up.local_stack import LocalStack

pytestmark = pytest.mark.e2e


def test_it_starts_both_and_stops_both(tmp_path: Path) -> None:
    ports = ["--port", "0", "--management-port", "0", "--http-port", "0"]
    command = [sys.executable, "-m", "tidelog_cli", "up", "--data", str(tmp_path / "data"), *ports, "--json"]
    with (
        (tmp_path / "stderr").open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        for url in (f"{ready['http_url']}/livez", f"{ready['management_url']}/livez"):
            with urllib.request.urlopen(url) as reply:
                assert reply.status == 200
        assert main(["topic", "list", "--bootstrap", ready["bootstrap"]]) == failures.EXIT_OK
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == failures.EXIT_OK
        assert process.stdout.read() == ""
    told = (tmp_path / "stderr").read_text()
    stopped = f"Tidelog has stopped. Its data stays in {tmp_path / 'data'}; start it again with the same command.\n"
    assert ("Tidelog is stopping.\n" in told, told.endswith(stopped)) == (True, True)
    assert main(["topic", "list", "--bootstrap", ready["bootstrap"]]) == failures.EXIT_CANNOT_CONNECT


@pytest.mark.long
def test_started_again_it_has_the_same_ports_or_those_that_are_asked_for(tmp_path: Path) -> None:
    def ports(*options: str) -> tuple[str, str, str]:
        command = [sys.executable, "-m", "tidelog_cli", "up", "--data", str(tmp_path / "data"), *options, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == failures.EXIT_OK
        return ready["bootstrap"], ready["management_url"], ready["http_url"]

    first = ports("--nodes", "2", "--port", "0", "--management-port", "0", "--http-port", "0")
    assert ports() == first
    assert ports("--http-port", "0")[:2] == first[:2]


@pytest.mark.long
def test_secure_in_one_go_and_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "contexts.json"))
    monkeypatch.setenv("TIDELOG_NODE_ADMIN_KEY_FILE", "of another cluster")
    monkeypatch.setenv("TIDELOG_USER", "of another cluster")
    monkeypatch.setenv("TIDELOG_NODE_JWT_JWKS", "of another cluster")
    monkeypatch.setenv("TIDELOG_NODE_HOST", "of another cluster")
    monkeypatch.setenv("TIDELOG_GATEWAY_HOST", "of another cluster")
    command = [sys.executable, "-m", "tidelog_cli", "up", "--data", str(tmp_path / "safe"), "--json"]
    secure = ["--secure", "--nodes", "3", "--port", "0", "--management-port", "0", "--http-port", "0"]
    monkeypatch.setenv("TIDELOG_GATEWAY_ALLOWED_ORIGINS", "https://another.example")
    for options in (secure, ["--allow-origin", "https://app.example"]):
        is_first = options is secure
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            trusted = ssl.create_default_context(cafile=tmp_path / "safe" / "certs" / "ca.pem")
            for url in (f"{ready['http_url']}/livez", *(f"{node['management_url']}/livez" for node in ready["nodes"])):
                assert url.startswith("https://")
                with urllib.request.urlopen(url, context=trusted) as reply:
                    assert reply.status == 200
            assert main(["topic", "list", "--bootstrap", ready["bootstrap"]]) != failures.EXIT_OK
            key = (tmp_path / "safe" / "admin.key").read_text().strip()
            asked = urllib.request.Request(f"{ready['http_url']}/v1/topics", headers={"Authorization": f"Bearer {key}"})
            with urllib.request.urlopen(asked, context=trusted) as reply:
                assert ("first" in reply.read().decode()) is not is_first
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{ready['http_url']}/v1/topics", context=trusted)
            name = "first" if is_first else "second"
            assert main(["--context", ready["context"], "topic", "create", name]) == failures.EXIT_OK
            headers = {"Authorization": f"Bearer {key}", "Origin": "https://app.example"}
            asked = urllib.request.Request(f"{ready['http_url']}/v1/topics", headers=headers)
            with urllib.request.urlopen(asked, context=trusted) as reply:
                allowed = reply.headers["Access-Control-Allow-Origin"]
            assert allowed == (None if is_first else "https://app.example")
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=60)
            assert process.returncode == failures.EXIT_OK
            assert "TIDELOG_GATEWAY_HOST, TIDELOG_NODE_ADMIN_KEY_FILE" in told
            assert "pass --allow-origin instead of TIDELOG_GATEWAY_ALLOWED_ORIGINS" in told
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "safe").glob("*.log")}
    assert modes == dict.fromkeys(("gateway.log", "node1.log", "node2.log", "node3.log"), 0o600)
    assert stat.S_IMODE((tmp_path / "safe").stat().st_mode) == 0o700


def test_the_ports_of_a_cluster_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(tmp_path, nodes=2, port=7500, first_port=7400, management_ports=[0])
    assert main(["up", "--data", str(tmp_path), "--port", "7600"]) == failures.EXIT_USAGE
    assert "has fixed ports 7500, 7510" in capsys.readouterr().err


def test_a_directory_stays_a_single_nodes_or_a_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    single, three = tmp_path / "single", tmp_path / "three"
    single.mkdir()
    (single / "node.json").write_text("{}")
    assert main(["up", "--nodes", "3", "--data", str(single)]) == failures.EXIT_USAGE
    assert "single node" in capsys.readouterr().err
    prepare(three, nodes=3, port=0, first_port=7400, management_ports=[0])
    assert main(["up", "--nodes", "2", "--data", str(three)]) == failures.EXIT_USAGE
    assert "a cluster of 3 nodes, not 2" in capsys.readouterr().err


def test_a_node_that_cannot_start_ends_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    command = [sys.executable, "-m", "tidelog_cli", "up", "--data", str(tmp_path / "file"), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == failures.EXIT_FAILED
    assert "the node did not start" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("code", "words"), [(74, "Start it again with: tidelog node"), (78, "This node was removed")])
async def test_exit_of_a_node_is_reported_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, words: str
) -> None:
    first = prepare(tmp_path / "my data", nodes=3, port=0, first_port=7400, management_ports=[0])[0]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", f"raise SystemExit({code})")
    await up._tell_of_end(Child("node1", {}, process, "node1.log"), first)
    told = capsys.readouterr().err
    assert f"node1 exited unexpectedly with code {code}; see node1.log" in told
    assert words in told
    assert ("Start it again" in told) == (code != 78)
    if code != 78:
        assert shlex.split(told.partition("with: ")[2]) == ["tidelog", *first.command]


def test_printed_command_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "contexts.json"))
    security = secure(tmp_path / "my data", ["node1"])
    node = Child("node1", {"port": 1, "management_port": 2}, cast("Process", None), "log")
    gateway = Child("gateway", {"http_port": 3}, cast("Process", None), "log")
    up.announce(LocalStack((node,), gateway, security), as_json=False)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Bearer" in line)
    said = subprocess.run(
        ["/bin/sh", "-c", f"echo {line.partition(': ')[2]}"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"-H Authorization: Bearer {security.admin_key.read_text()}"


def test_a_cluster_reports_the_process_id_of_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    def child(name: str, pid: int) -> Child:
        ready = {"node_id": name, "port": pid, "management_port": 2, "http_port": 3}
        return Child(name, ready, cast("Process", SimpleNamespace(pid=pid)), "log")

    first, second, gateway = child("node1", 71), child("node2", 72), child("gateway", 73)
    up.announce(LocalStack((first, second), gateway), as_json=False)
    assert "  process ids      node1 71, node2 72\n" in capsys.readouterr().out
    up.announce(LocalStack((first,), gateway), as_json=False)
    assert "process ids" not in capsys.readouterr().out


def test_the_status_shows_the_users_topics_alone(capsys: pytest.CaptureFixture[str]) -> None:
    partitions = (Partition(0, "n", 0, log_start_offset=5, high_watermark=15, size_bytes=2048), Partition(1, "n", 0))
    status = ClusterStatus(b"", topics=(Topic("visits", b"", partitions), Topic("__meta", b"", partitions)))
    Console(width=80).print(up.status_table(status))
    shown = capsys.readouterr().out
    assert shown.splitlines()[-2].split() == ["visits", "2", "10", "2.0", "KiB"]
    assert "__meta" not in shown
