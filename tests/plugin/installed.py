"""Runs of pytest in which the package is installed with the current entry points of `pyproject.toml`."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_pytest(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, with the entry points of `pyproject.toml` instead of the installed ones."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = folder / "installed" / "of_a_test-1.dist-info"
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-test\nVersion: 1\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    path = os.pathsep.join([str(installed.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
