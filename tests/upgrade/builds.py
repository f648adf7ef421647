"""Builds of Tidelog: the one of this folder, and another one in its own environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CACHE: Final = ROOT / ".upgrade"
"""Environments of other builds, one a commit; `make clean` removes them."""
BEFORE_LEVELS: Final = "212e4fc66b0c46f31b0f8aa4a97bce8b4951d141"
"""The build that is upgraded unless another one is named: the last commit before rooms, releases and feature levels."""
EXTRAS: Final = "[broker,gateway]"
PROBE: Final = "from importlib.metadata import version; print(version('tidelog'))"


@dataclass(frozen=True, slots=True)
class Build:
    """A build that can be run.

    Attributes:
        name: the commit, or the name of the wheel.
        version: the build's own version.
        python: the interpreter of the environment that has it.
    """

    name: str
    version: str
    python: str


def has_history() -> bool:
    """Return whether this folder is a clone with its whole history, which contains `BEFORE_LEVELS`."""
    done = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and done.stdout.strip() == "false"


def this_build() -> Build:
    """Return the build of this folder."""
    from tidelog_proto.version import VERSION  # noqa: PLC0415 - the module itself runs without the project

    return Build("this folder", VERSION, sys.executable)


def other_build(wanted: str) -> Build:
    """Return the build of a commit or of a wheel, in an environment that is made if it is missing.

    Raises:
        SystemExit: there is no such commit or wheel, or it cannot be built or installed.
    """
    if wanted.endswith(".whl"):
        wheel = Path(wanted).absolute()
        if not wheel.is_file():
            raise SystemExit(f"FROM={wanted} does not exist: give the path of a wheel, or a commit")
        return _installed(wheel.stem, wheel)
    done = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"FROM={wanted} is not a commit of this repository: give a commit, or the path of a wheel")
    return _installed(done.stdout.strip(), None)


def _installed(name: str, wheel: Path | None) -> Build:
    home = CACHE / name
    python = home / "venv" / "bin" / "python"
    if not (home / "installed").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _run([sys.executable, "-m", "venv", home / "venv"], "make an environment")
        built = wheel or build_wheel(name, home)
        _run([python, "-m", "pip", "install", *QUIETLY, f"{built}{EXTRAS}"], f"install {built.name}")
        (home / "installed").touch()
    version = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=True).stdout.strip()
    return Build(name[:12], version, str(python))


QUIETLY: Final = ("--disable-pip-version-check", "--quiet")


def build_wheel(commit: str, directory: Path) -> Path:
    """Build the wheel of a commit; return its path in the directory.

    Raises:
        SystemExit: it cannot be built.
    """
    with tempfile.TemporaryDirectory() as sources:
        archive = Path(sources) / "sources.tar"
        _run(["git", "-C", ROOT, "archive", "--output", archive, commit], "export the commit")
        _run(["tar", "-xf", archive, "-C", sources], "unpack the commit")
        archive.unlink()
        _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory], "build", cwd=sources)
    (wheel,) = directory.glob("*.whl")
    return wheel


def _run(command: list[str | Path], what: str, cwd: str | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"could not {what}: {done.stdout}{done.stderr}")
