"""A real node for the commands to talk to, and the command called in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from tidelog_cli.main import main


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Cli: TypeAlias = Callable[..., Ended]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a node; the value is its address."""
    data = tmp_path_factory.mktemp("node")
    command = [
        sys.executable,
        "-m",
        "tidelog_cli",
        "node",
        "--data",
        str(data),
        "--port",
        "0",
        "--management-port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield f"127.0.0.1:{ready['port']}"
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture
def cli(node: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Cli:
    """Call the command against the node: `cli("topic", "list", stdin=b"")`."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", node)
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: object, stdin: bytes = b"") -> Ended:
        (tmp_path / "stdin").write_bytes(stdin)
        with (tmp_path / "stdin").open() as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return Ended(code, out.decode(), err.decode())

    return call


@pytest.fixture
def topic(cli: Cli, request: pytest.FixtureRequest) -> str:
    """Create a topic of two partitions named after the test."""
    name = request.node.name.replace("[", ".").replace("]", "")
    assert cli("topic", "create", name, "--partitions", 2).code == 0
    return str(name)
