"""Processes whose standard streams block, are closed or full, and that have no home directory."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tidelog import sync
from tidelog.testing.free_ports import HOST, free_ports

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
TIDELOG = [sys.executable, "-m", "tidelog_cli"]
GARBAGE = 450
UNKNOWN_UID = 54_321
"""No entry of the password database has it."""


@contextlib.contextmanager
def stuck_pipe() -> Iterator[int]:
    """Yield the writing end of a pipe that is full and is never read."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x")
    os.set_blocking(writing, True)
    try:
        yield writing
    finally:
        os.close(writing)
        os.close(reading)


@contextlib.contextmanager
def running(command: Sequence[object], stream: int, **named: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tidelog *command` with both of its output streams on a descriptor."""
    words = [*TIDELOG, *map(str, command)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, **named)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answers(port: int, path: str = "/livez") -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until_it_answers(port: int, process: subprocess.Popen[bytes], path: str = "/livez") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not answers(port, path):
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline, f"port {port} does not answer"
        time.sleep(0.1)


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE_S)


def node_command(data: Path, native: int, management: int) -> list[object]:
    return ["node", "--data", data, "--port", native, "--management-port", management]


def test_a_node_with_a_stuck_log_serves_and_stops(tmp_path: Path) -> None:
    native, management = free_ports(2)
    with (
        stuck_pipe() as stream,
        running([*node_command(tmp_path, native, management)], stream) as process,
    ):
        wait_until_it_answers(management, process, "/readyz")
        for _ in range(GARBAGE):
            with socket.create_connection((HOST, native)) as garbage:
                garbage.sendall(b"garbage" * 10)
        with sync.Client(f"{HOST}:{native}") as client:
            client.create_topic("t")
        assert stop(process) == 0


def test_a_gateway_with_stuck_streams_serves_and_stops(node: str) -> None:
    (port,) = free_ports(1)
    command = ["gateway", "--bootstrap", node, "--http-port", port]
    with stuck_pipe() as stream, running(command, stream) as process:
        wait_until_it_answers(port, process)
        assert stop(process) == 0


def test_up_with_stuck_streams_serves_and_stops(tmp_path: Path) -> None:
    native, management, http_port = free_ports(3)
    ports = ["--port", native, "--management-port", management, "--http-port", http_port]
    with stuck_pipe() as stream, running(["up", "--data", tmp_path, *ports], stream) as process:
        wait_until_it_answers(http_port, process, "/readyz")
        for _ in range(GARBAGE):
            with socket.create_connection((HOST, native)) as garbage:
                garbage.sendall(b"garbage" * 10)
        with sync.Client(f"{HOST}:{native}") as client:
            client.create_topic("t")
        assert stop(process) == 0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a node; the value is its address."""
    native, management = free_ports(2)
    with running(node_command(tmp_path_factory.mktemp("node"), native, management), subprocess.DEVNULL) as process:
        wait_until_it_answers(management, process, "/readyz")
        yield f"{HOST}:{native}"


def shell(redirections: str, command: Sequence[object], **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `tidelog *command` with redirections, as a shell writes them."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$@" {redirections}', *TIDELOG, *map(str, command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **environ},
        check=False,
    )


def test_a_node_and_a_gateway_start_and_stop_without_standard_descriptors(tmp_path: Path) -> None:
    native, management, http_port = free_ports(3)
    commands: list[tuple[Sequence[object], int]] = [
        (node_command(tmp_path, native, management), management),
        (["gateway", "--bootstrap", f"{HOST}:{native}", "--http-port", http_port], http_port),
    ]
    with contextlib.ExitStack() as stack:
        started: list[subprocess.Popen[bytes]] = []
        for command, port in commands:
            words = ["/bin/sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', *TIDELOG, *map(str, command)]
            process = subprocess.Popen(words)
            stack.callback(process.wait)
            stack.callback(process.kill)
            wait_until_it_answers(port, process)
            started.append(process)
        with sync.Client(f"{HOST}:{native}") as client:
            client.create_topic("t")
        assert [stop(process) for process in reversed(started)] == [0, 0]


@pytest.mark.parametrize(("name", "redirection"), [("closed", ">&-"), ("full", ">/dev/full")])
@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_completed_work_is_not_reported_as_refused(
    node: str, tmp_path: Path, name: str, redirection: str, json_option: list[str]
) -> None:
    topic = f"{name}{len(json_option)}"
    created = shell(redirection, ["topic", "create", topic, "--bootstrap", node, *json_option])
    assert created.returncode == 0
    assert "topic create succeeded" in created.stderr
    (tmp_path / "lines.txt").write_text("a\nb\n")
    published = shell(redirection, ["produce", topic, tmp_path / "lines.txt", "--bootstrap", node, *json_option])
    assert published.returncode == 0
    assert "produce succeeded" in published.stderr
    assert shell("", ["consume", topic, "--bootstrap", node]).stdout == "a\nb\n"
    listed = shell(redirection, ["topic", "list", "--bootstrap", node, *json_option])
    assert listed.returncode == 1
    assert "standard output could not be written" in listed.stderr


def test_a_closed_reader_does_not_undo_finished_work(node: str) -> None:
    created = shell("| true", ["topic", "create", "gone", "--bootstrap", node])
    assert created.returncode == 0
    words = " ".join(TIDELOG)
    piped = f"(sleep 0; {words} topic create gone2 --bootstrap {node}; echo code $? >&2) | exec true"
    ended = subprocess.run(["/bin/sh", "-c", piped], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "code 0" in ended.stderr
    assert "gone2" in shell("", ["topic", "list", "--bootstrap", node]).stdout


def test_a_failed_command_is_not_called_done(node: str) -> None:
    ended = shell(">/dev/full", ["topic", "create", "no such name!", "--bootstrap", node])
    assert ended.returncode == 1
    assert "succeeded" not in ended.stderr


def test_a_secret_that_could_not_be_shown_is_an_error_with_a_remedy(node: str) -> None:
    for options in ([], ["--json"]):
        ended = shell(">/dev/full", ["key", "create", "ada", "--bootstrap", node, *options])
        assert ended.returncode == 1
        assert "was created but could not be written" in ended.stderr
        assert "tidelog key revoke" in ended.stderr


def test_a_closed_standard_input_is_named(node: str) -> None:
    assert shell("", ["topic", "create", "stdin", "--bootstrap", node]).returncode == 0
    ended = shell("<&-", ["produce", "stdin", "--bootstrap", node])
    assert ended.returncode == 1
    assert "standard input cannot be read: Bad file descriptor" in ended.stderr


def test_a_standard_error_that_takes_nothing_changes_no_exit_code(node: str) -> None:
    assert shell("2>/dev/full", ["topic", "describe", "missing", "--bootstrap", node]).returncode == 1
    assert shell("2>&-", ["topic", "describe", "missing", "--bootstrap", node]).returncode == 1
    assert shell("2>/dev/full", ["topic", "no-such-command"]).returncode == 2


def test_output_that_must_be_ascii_escapes_and_stays_json(node: str) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    assert shell("", ["topic", "create", "text", "--bootstrap", node], **ascii_only).returncode == 0
    produced = subprocess.run(
        [*TIDELOG, "produce", "text", "--key", "käse", "--bootstrap", node], input="wörter\n", text=True, check=True
    )
    assert produced.returncode == 0
    for command in (["cluster", "status"], ["cluster", "status", "--json"], ["topic", "describe", "text"]):
        ended = shell("", [*command, "--bootstrap", node], **ascii_only)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.isascii()
    told = shell("", ["context", "add", "n", "--bootstrap", "tä", "--json"], **ascii_only)
    assert "Traceback" not in told.stderr
    line = shell("", ["consume", "text", "--json", "--bootstrap", node], **ascii_only).stdout
    assert json.loads(line)["value"] == "wörter"


def without_home(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HOME", "XDG", "TIDELOG"))}
    # The password database is read by the real id, files are opened by the effective one.
    program = f"import os, sys; os.setreuid({UNKNOWN_UID}, 0); from tidelog_cli.__main__ import run; sys.exit(run())"
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environ,
        check=False,
    )


@pytest.mark.skipif(os.getuid() != 0, reason="another user's id is root's to take")
def test_a_user_without_a_home_directory_can_do_everything_but_keep_contexts(node: str) -> None:
    host, port = node.split(":")
    assert without_home(["topic", "create", "homeless", "--bootstrap", f"{host}:{port}"]).returncode == 0
    nobody = without_home(["topic", "list"])
    assert "cannot determine" not in nobody.stderr
    assert "RuntimeError" not in nobody.stderr
    kept = without_home(["context", "add", "n", "--bootstrap", node])
    assert kept.returncode == 1
    assert "has no home directory for the contexts file: set HOME or TIDELOG_CONTEXTS" in kept.stderr
    named = without_home(["--context", "n", "topic", "list"])
    assert named.returncode == 1
    assert "has no home directory" in named.stderr
