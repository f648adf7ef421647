"""Pythons for executors: with some libraries of this one, linked, and nothing of the project."""

from __future__ import annotations

import sys
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path


def link_libraries(directory: Path, names: Iterable[str]) -> None:
    """Link what distributions of this Python have installed, metadata included, into a directory."""
    for name in names:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            if not (directory / top).exists():
                (directory / top).symlink_to(str(installed.locate_file(top)))


def bare_python(directory: Path, names: Iterable[str] = ()) -> Path:
    """Make a Python of this version with these libraries alone; return the program."""
    venv.EnvBuilder(with_pip=False).create(directory)
    site = sysconfig.get_path("purelib", "venv", {"base": str(directory)})
    link_libraries(Path(site), names)
    return directory / "bin" / Path(sys.executable).name
