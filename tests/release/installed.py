"""A wheel in a bare environment, without the sources: installed, used once, and uninstalled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Final

EXTRAS: Final = "[broker,gateway]"
READY_S: Final = 120
STOP_S: Final = 40
COMMAND_S: Final = 120
INSTALL_S: Final = 900
LINES: Final = "one\ntwo\nthree\n"


class ReleaseError(Exception):
    """The wheel does not do what it should."""


class BareEnvironment:
    """An environment in a directory of its own, whose commands see neither the sources nor settings of this shell."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._home = directory / "home"
        self._home.mkdir()
        self._bin = directory / "venv" / "bin"
        self._environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("TIDELOG_", "PYTHON", "VIRTUAL_"))
        } | {"HOME": str(self._home), "PATH": f"{self._bin}:{os.environ['PATH']}"}
        subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)

    def run(self, *command: str | Path, text: str = "") -> str:
        """Run a program of the environment; return what it prints.

        Raises:
            ReleaseError: it failed.
        """
        done = subprocess.run(
            [self._bin / command[0], *command[1:]],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            cwd=self._home,
            env=self._environ,
            timeout=INSTALL_S if command[0] == "pip" else COMMAND_S,
        )
        if done.returncode != 0:
            raise ReleaseError(
                f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def up(self) -> subprocess.Popen[str]:
        """Start `tidelog up` on free ports."""
        options = ("--data", "data", "--port", "0", "--management-port", "0", "--http-port", "0", "--json")
        with (self._home / "up.log").open("w") as log:
            return subprocess.Popen(
                [self._bin / "tidelog", "up", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._home,
                env=self._environ,
            )

    def has(self, command: str) -> bool:
        """Whether the environment has a command."""
        return (self._bin / command).exists()

    def packages(self) -> list[str]:
        """Return what lies in its site-packages and is of the project."""
        found = (self._directory / "venv" / "lib").glob("python*/site-packages/*tidelog*")
        return sorted(path.name for path in found)


def check_wheel(wheel: Path, version: str, directory: Path) -> None:
    """Install a wheel, start `tidelog up`, publish, consume, and uninstall.

    Raises:
        ReleaseError: something did not work.
    """
    bare = BareEnvironment(directory)
    bare.run("pip", "install", "--disable-pip-version-check", "--quiet", f"{wheel}{EXTRAS}")
    _equal("tidelog --version", bare.run("tidelog", "--version").strip(), f"tidelog {version}")
    up = bare.up()
    try:
        assert up.stdout is not None
        addresses = json.loads(_document(up))
        bootstrap = ("--bootstrap", addresses["bootstrap"])
        bare.run("tidelog", "topic", "create", "orders", *bootstrap)
        bare.run("tidelog", "produce", "orders", *bootstrap, text=LINES)
        consumed = bare.run("tidelog", "consume", "orders", "--group", "readers", *bootstrap)
        _equal("the consumed records", sorted(consumed.split()), sorted(LINES.split()))
        (node,) = json.loads(bare.run("tidelog", "cluster", "status", "--json", *bootstrap))["nodes"]
        _equal("the version in the status", node["software"], f"tidelog-node/{version}")
        with urllib.request.urlopen(f"{addresses['http_url']}/openapi.json", timeout=COMMAND_S) as answer:
            _equal("the version in the OpenAPI description", json.load(answer)["info"]["version"], version)
        up.send_signal(signal.SIGINT)
        _equal("the exit code of tidelog up after Ctrl-C", up.wait(STOP_S), 0)
    finally:
        if up.poll() is None:
            up.kill()
    bare.run("pip", "uninstall", "--quiet", "--yes", "tidelog")
    _equal("rest of the package", (bare.has("tidelog"), bare.packages()), (False, []))


def _document(up: subprocess.Popen[str]) -> str:
    """Return the JSON object that `tidelog up` prints in one line when it is ready."""
    assert up.stdout is not None
    late = threading.Timer(READY_S, up.kill)
    late.start()
    try:
        line = up.stdout.readline()
    finally:
        late.cancel()
    if not line:
        raise ReleaseError(f"tidelog up ended with {up.wait()}, or was not ready after {READY_S} s")
    return line


def _equal(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ReleaseError(f"{what}: {found!r}, and {wanted!r} was expected")
