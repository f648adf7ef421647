"""Docker or podman, whichever can run containers here: containers, volumes and networks are removed after a test."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

BASE: Final = "python:3.13-slim"
CALL_TIMEOUT_S: Final = 90
"""For one call; a container is started in a second or two, where others work as well."""
READY_TIMEOUT_S: Final = 60
LOG_LINES: Final = 40
NETWORKS_TRIED: Final = 5
SEALED: Final = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
"""How the documentation and compose.yaml run every container."""

HEALTH_CHECK: Final = (
    re.sub(r"\\\n\s*", "", (Path(__file__).parents[2] / "Dockerfile").read_text())
    .partition("\nHEALTHCHECK ")[2]
    .partition("CMD ")[2]
    .partition("\n")[0]
)
"""Health check command of the image."""


class EngineError(Exception):
    """The engine refused; the message is its output."""


@dataclass(frozen=True)
class Engine:
    """A command that runs containers."""

    name: str

    def call(self, *arguments: str, given: str | None = None, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Return the engine's output.

        Raises:
            EngineError: it failed.
        """
        command = [self.name, *arguments]
        ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout_s, check=False)
        if ended.returncode:
            raise EngineError(f"{' '.join(command)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def refuses(self, *arguments: str) -> str:
        """Return why a call fails, in its last line, or nothing if it does not."""
        try:
            self.call(*arguments)
        except EngineError as error:
            return str(error).strip().splitlines()[-1]
        return ""

    def sealed(self) -> list[str]:
        """Return the options that seal a container; podman would add places in memory that can be written to."""
        return [*SEALED, "--read-only-tmpfs=false"] if self.name == "podman" else [*SEALED]


def find_engine() -> Engine | None:
    """Return an engine that answers: docker with its daemon, or podman."""
    for name in ("docker", "podman"):
        if shutil.which(name) and not Engine(name).refuses("info"):
            return Engine(name)
    return None


class Place:
    """Objects of one test in an engine, under names of its own; `with` removes them, and nothing else.

    Args:
        engine: that runs it.
        image: image of the containers.
    """

    def __init__(self, engine: Engine, image: str) -> None:
        self.engine = engine
        self.image = image
        self._prefix = f"tidelog-test-{uuid.uuid4().hex[:12]}"
        self._net = ""
        self._left = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def named(self, name: str) -> str:
        """Return an object's name outside of the test."""
        return f"{self._prefix}-{name}"

    def volume(self, name: str) -> None:
        """Make a volume."""
        self._make("volume", name)

    def network(self) -> None:
        """Make a network that is cut off from others, for containers that `joined` puts there."""
        for at in range(NETWORKS_TRIED):
            self._net = f"10.{random.randrange(100, 250)}.{random.randrange(250)}"
            try:
                self._make("network", "net", "--internal", "--subnet", f"{self._net}.0/24")
            except EngineError:  # the addresses are in use, or the engine has no networks
                if at == NETWORKS_TRIED - 1:
                    raise
            else:
                return

    def joined(self, name: str, names: Sequence[str]) -> list[str]:
        """Return the options that put a container into the network, where it knows all of these names.

        The engine's own name server is not asked: some hang once a container is gone, and a name would be gone with it.
        """
        addresses = {each: f"{self._net}.{10 + at}" for at, each in enumerate(names)}
        known = [part for each, address in addresses.items() for part in ("--add-host", f"{each}:{address}")]
        return ["--network", self.named("net"), "--ip", addresses[name], *known]

    def _make(self, kind: str, name: str, *options: str) -> None:
        self.engine.call(kind, "create", *options, self.named(name))
        self._left.callback(self.engine.refuses, kind, "rm", self.named(name))

    def start(self, name: str, options: Sequence[str] = (), command: Sequence[str] = ()) -> None:
        """Start a sealed container in the background, with additional options."""
        # Unnamed volumes are removed with it. The name is registered before creation, so that no container is left.
        self._left.callback(self.engine.refuses, "rm", "--force", "--volumes", self.named(name))
        self._left.callback(self._tell, name)
        sealed = [*self.engine.sealed(), *options]
        self.engine.call("run", "--detach", "--pull=never", "--name", self.named(name), *sealed, self.image, *command)

    def _tell(self, name: str) -> None:
        """Print the last output of a container: pytest shows it for failed tests."""
        command = [self.engine.name, "logs", "--timestamps", self.named(name)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
        lines = sorted((said.stdout + said.stderr).splitlines())[-LOG_LINES:]
        print(f"{name}:", *lines, sep="\n  ")

    def once(self, script: str, options: Sequence[str] = ()) -> list[str]:
        """Run a shell's script in a container that is not sealed, and return the lines it prints."""
        quiet = ["run", "--rm", "--pull=never", "--network", "none", *options]
        return self.engine.call(*quiet, "--entrypoint", "sh", self.image, "-ec", script).splitlines()

    def again(self, name: str) -> None:
        """Start a container that has ended."""
        self.engine.call("start", self.named(name))

    def inside(self, name: str, *command: str, given: str | None = None) -> str:
        """Run a command in a container."""
        interactive = [] if given is None else ["--interactive"]
        return self.engine.call("exec", *interactive, self.named(name), *command, given=given)

    def kill(self, name: str) -> None:
        """End a container as a crash would."""
        self.engine.call("kill", "--signal", "KILL", self.named(name))

    def stop(self, name: str) -> int:
        """Stop a container with the image's signal, and return its exit code."""
        self.engine.call("stop", "-t", "20", self.named(name))
        return self.exit_code(name)

    def exit_code(self, name: str) -> int:
        """Wait for a container's end."""
        return int(self.engine.call("wait", self.named(name)))

    def log(self, name: str) -> str:
        """Return the standard output of a container's process, which has events."""
        return self.engine.call("logs", self.named(name))

    def ready(self, name: str, times: int = 1) -> None:
        """Wait until a node or a gateway has logged that it is ready, for this number of starts of the container."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self.log(name).count('"event": "ready"') < times:
            if time.monotonic() > deadline:
                raise EngineError(f"{name} is not ready after {READY_TIMEOUT_S} s:\n{self.log(name)}")
            time.sleep(0.2)
