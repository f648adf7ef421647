"""Checks of the Dockerfile without an engine; tests/image builds and runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.image.engine import BASE
from tests.image.engine import SEALED as SEALED_OPTIONS

from tidelog_cli.main import build_app
from tidelog_gateway.settings import GatewaySettings

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions as (name, arguments), continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def arguments_of(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


def copied() -> list[str]:
    """Return what comes from the build context."""
    return [
        source.removeprefix("./")
        for arguments in arguments_of("COPY")
        if not arguments.startswith("--from")
        for source in arguments.split()[:-1]
    ]


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(copied()) == sorted(let_in)
    assert [source for source in copied() if not (ROOT / source).exists()] == []


def test_the_wheel_can_be_built_from_the_copied_files(tmp_path: Path) -> None:
    for source in copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    packages = {Path(name).parts[0] for name in zipfile.ZipFile(wheel).namelist() if name.endswith("py.typed")}
    wanted = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == {Path(package).name for package in wanted}


@pytest.mark.parametrize("name", ["image", "build"])
def test_every_package_of_the_image_is_pinned_with_hashes(name: str) -> None:
    pins = pinned(name)
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["broker"], *extras["gateway"]]
    for requirement in map(Requirement, wanted if name == "image" else PROJECT["build-system"]["requires"]):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), f"{requirement}: `make lock`"
    installs = [arguments for arguments in arguments_of("RUN") if f"locks/{name}.txt" in arguments]
    assert [f"--require-hashes --only-binary :all: -r locks/{name}.txt" in each for each in installs] == [True]


def pinned(name: str) -> dict[str, str]:
    """Return the version of each package in a file of `locks/`; all have hashes, and none is fetched by an address."""
    blocks = re.split(r"^(?=\w)", (ROOT / "locks" / f"{name}.txt").read_text(), flags=re.MULTILINE)[1:]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) and "://" not in block for block in blocks)
    return dict(block.split(" ", 1)[0].split("==") for block in blocks)


# As the image is to be run: nothing can be written but the data, and no capability is left.
SEALED = """set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro /
for folder in /tmp "$HOME" /work; do mountpoint -q "$folder" && mount -o remount,bind,ro "$folder"; done
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all "${@:2}"
"""


@pytest.mark.long
def test_a_node_needs_no_capability_and_writes_nothing_but_its_data(tmp_path: Path) -> None:
    data, sealed = tmp_path / "data", ["unshare", "--mount", "bash", "-c", SEALED, "sealed"]
    data.mkdir()
    if subprocess.run([*sealed, str(data), "touch", str(data / "here")], capture_output=True, check=False).returncode:
        pytest.skip("mounts are not permitted here")
    outside = subprocess.run([*sealed, str(data), "touch", str(tmp_path / "x")], capture_output=True, check=False)
    assert b"Read-only" in outside.stderr
    command = [sys.executable, "-m", "tidelog_cli"]
    node = [*command, "node", "--data", str(data / "node"), "--port", "0", "--management-port", "0"]
    with subprocess.Popen([*sealed, str(data), *node], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = f"127.0.0.1:{json.loads(process.stdout.readline())['port']}"
            asked = ["topic", "create", "t", "--bootstrap", address]
            assert subprocess.run([*command, *asked], capture_output=True, check=False).returncode == 0
        finally:
            process.terminate()
    assert process.returncode == 0


def test_it_runs_the_command_as_an_unprivileged_user() -> None:
    (entrypoint,) = arguments_of("ENTRYPOINT")
    assert json.loads(entrypoint) == ["tidelog"]
    assert "tidelog" in PROJECT["project"]["scripts"]
    last_stage = instructions()[max(at for at, (name, _) in enumerate(instructions()) if name == "FROM") :]
    assert [arguments for name, arguments in last_stage if name == "USER"] == ["10001:10001"]
    (made,) = [arguments for name, arguments in last_stage if name == "RUN"]
    assert "groupadd --gid 10001 " in made
    assert "useradd --uid 10001 --gid 10001 " in made


def test_both_stages_begin_with_a_base_that_may_be_pinned() -> None:
    assert arguments_of("FROM") == ["${BASE} AS build", "${BASE}"]
    names = [name for name, _ in instructions()]
    assert names.index("ARG") < names.index("FROM"), "else it is not known to FROM"
    assert arguments_of("ARG") == [f"BASE={BASE}"], "the default base image has the tested tag"


def test_the_default_command_is_a_valid_one() -> None:
    (command,) = arguments_of("CMD")
    name, *options = json.loads(command)
    group = typer.main.get_command(build_app())
    known = {option for parameter in group.commands[name].params for option in parameter.opts}  # type: ignore[attr-defined]  # a group has commands
    assert {option for option in options if option.startswith("--")} <= known


@contextmanager
def answering(status: int) -> Iterator[int]:
    """Answer every request with the given status; the value is the port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


NODE_PORT, GATEWAY_PORT = 7401, 8080
"""Default ports of health checks: those of a node and of a gateway."""


@pytest.mark.parametrize(
    ("role", "status", "healthy"),
    [
        (NODE_PORT, 200, True),
        (NODE_PORT, 503, False),
        (GATEWAY_PORT, 200, True),
        (GATEWAY_PORT, 503, False),
        (None, 200, False),
    ],
)
def test_the_health_check_tells_well_from_ill(role: int | None, status: int, healthy: bool) -> None:
    (check,) = arguments_of("HEALTHCHECK")
    code = check.partition("CMD ")[2]
    # A port that is bound and does not listen refuses connections, and no other process gets it meanwhile.
    with answering(status) as answers, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        for port in (NODE_PORT, GATEWAY_PORT):
            asked = answers if port == role else silent.getsockname()[1]
            assert f":{port}/" in code
            code = code.replace(f":{port}/", f":{asked}/")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ended = subprocess.run(
            ["/bin/sh", "-c", code], env={**os.environ, "PATH": path}, capture_output=True, check=False
        )
    assert (ended.returncode == 0) is healthy, ended.stderr


@pytest.mark.parametrize("variable", ["", "TIDELOG_NODE_TLS_CERT_FILE", "TIDELOG_GATEWAY_TLS_CERT_FILE"])
def test_the_health_check_tries_the_configured_protocol_first(variable: str) -> None:
    """A server logs and counts a request in the wrong protocol."""
    (check,) = arguments_of("HEALTHCHECK")
    begins: list[bytes] = []

    def listen() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                begun = connection.recv(1)
            if not begun:
                return
            begins.append(begun)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen)
        thread.start()
        code = check.partition("CMD ")[2]
        for port in (NODE_PORT, GATEWAY_PORT):
            code = code.replace(f":{port}/", f":{listener.getsockname()[1]}/")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        told = {"PATH": path} | ({variable: "node.pem"} if variable else {})
        assert subprocess.run(["/bin/sh", "-c", code], env=told, capture_output=True, check=False).returncode
        socket.create_connection(listener.getsockname()).close()
        thread.join()
    plain, encrypted = [b"G"] * 2, [b"\x16"] * 2
    assert begins == (encrypted + plain if variable else plain + encrypted)


def test_health_is_asked_at_the_ports_that_a_node_and_a_gateway_have() -> None:
    (command,) = arguments_of("CMD")
    words = json.loads(command)
    assert words[words.index("--management-port") + 1] == str(NODE_PORT)
    assert GatewaySettings.model_fields["http_port"].default == GATEWAY_PORT


def test_the_ports_are_the_documented_ones() -> None:
    assert arguments_of("EXPOSE") == ["7400 7400/udp 7401 8080"], "native, gossip, management; the gateway's"


def test_the_page_runs_containers_as_they_are_tested() -> None:
    runs = re.findall(r"^docker run .*", (ROOT / "docs" / "containers.md").read_text(), re.MULTILINE)
    assert len(runs) == 3
    assert [line for line in runs if " ".join(SEALED_OPTIONS) not in line] == []
