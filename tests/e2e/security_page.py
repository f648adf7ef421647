"""The blocks of the pages on security, and what runs them: a shell, nodes and gateways, and machines to copy to."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = tuple(DOCS / name for name in ("security.md", "permissions.md", "tls.md"))
WAIT_S = 200.0
"""For a handful of commands, on a machine that is busy with other things."""

_SSH = """#!/bin/sh
# Replaces ssh: a command for a machine runs in its directory.
while case $1 in -*) true;; *) false;; esac; do case $1 in -[oplEFi]) shift;; esac; shift; done
cd "$MACHINES/$1" && shift && exec sh -c "$*"
"""
_SCP = """#!/bin/sh
# Replaces scp if it is not installed: several files need an existing directory.
case $1 in -*) options=$1; shift;; esac
for last; do :; done
into=$MACHINES/${last%%:*}/${last#*:}
[ -d "$into" ] || { echo "$last: no directory" >&2; exit 1; }
while [ $# -gt 1 ]; do cp $options "$1" "$into" || exit 1; shift; done
"""
_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def sections() -> dict[str, str]:
    """Return the text of the pages by their headings."""
    parts = [part for page in PAGES for part in page.read_text().split("\n## ")[1:]]
    return {part.partition("\n")[0]: part for part in parts}


def blocks(heading: str, language: str = "text") -> list[str]:
    """Return the commands under a heading of the page."""
    return re.findall(rf"```{language}\n(.*?)```", sections()[heading], re.DOTALL)


def environment(**variables: object) -> dict[str, str]:
    """Return the environment of a user who has only `tidelog` installed."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return mine | {"PATH": path} | {name: str(value) for name, value in variables.items()}


def machines(directory: Path, *names: str) -> dict[str, str]:
    """Make a directory for each machine, and return what `ssh` and `scp` to them need in an environment."""
    programs = directory / "bin"
    programs.mkdir()
    for name in names:
        (directory / name).mkdir()
    ssh, scp = programs / "ssh", programs / "scp"
    for program, text in ((ssh, _SSH), (scp, _scp(ssh))):
        program.write_text(text)
        program.chmod(0o755)
    return {"MACHINES": str(directory), "PATH": f"{programs}:{environment()['PATH']}"}


def _scp(ssh: Path) -> str:
    """Return scp, with its older protocol, which needs only a shell on the other machine; else its replacement."""
    real = shutil.which("scp")
    if real is None:
        return _SCP
    usage = subprocess.run([real, "-O"], capture_output=True, text=True, check=False).stderr
    older = "" if "unknown option" in usage or "illegal option" in usage else "-O "
    return f'#!/bin/sh\nexec {real} {older}-S "{ssh}" "$@"\n'


def run(script: str, cwd: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run lines in a shell."""
    return subprocess.run(
        ["bash", "-c", script], cwd=cwd, env=variables, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@contextlib.contextmanager
def serving(lines: str | Sequence[str], cwd: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run lines of which the last one serves until the end of the block, which begins when the server is ready."""
    *before, last = lines.strip().splitlines() if isinstance(lines, str) else lines
    settings, _, command = last.rpartition("tidelog ")
    script = "\n".join(["set -e", *before, *(f"export {each}" for each in settings.split()), f"exec tidelog {command}"])
    with (cwd / "log").open("a+") as log:
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=log, text=True
        )
        with process:
            try:
                assert process.stdout is not None
                while '"ready"' not in (line := process.stdout.readline()):
                    assert line, f"it did not start: {(cwd / 'log').read_text()}"
                yield process
            finally:
                process.terminate()


def at_a_terminal(script: str, cwd: Path, variables: dict[str, str], answer: str) -> tuple[int, str]:
    """Run lines at a terminal that asks for passwords; return the exit code and the terminal's content."""
    command = [sys.executable, "-c", _TERMINAL, "bash", "-c", script]
    said, asked = "", 0
    with subprocess.Popen(command, cwd=cwd, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(WAIT_S, process.kill)
        watch.start()
        while part := os.read(process.stdout.fileno(), 1024):
            said += part.decode()
            while asked < len(re.findall(r"(?:Password|Again): ", said)):
                os.write(process.stdin.fileno(), f"{answer}\n".encode())
                asked += 1
        watch.cancel()
    return process.returncode, said
