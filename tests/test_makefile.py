"""The Makefile sets itself up, or says in one message why it cannot."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tidelog_cli.up import command as up

ROOT = Path(__file__).parents[1]
TARGETS = {
    "help",
    "demo",
    "up",
    "docs",
    "generate",
    "test",
    "testall",
    "testslow",
    "check",
    "faults",
    "freeze",
    "soak",
    "abuse",
    "bench",
    "loadtest",
    "clean",
    "simulate",
    "mutants",
    "pipeline",
    "kills",
    "image",
    "lock",
    "audit",
    "sbom",
    "release",
    "upgrade",
    "sparkbench",
    "sparktest",
    "sparkcluster",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copy what `make` looks at into an empty folder."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=folder, env=environ, capture_output=True, text=True, check=False)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_help_is_the_default_and_lists_every_target() -> None:
    shown = make(ROOT).stdout
    assert set(re.findall(r"^  make (\w+)", shown, re.MULTILINE)) == TARGETS


def test_every_target_that_needs_python_sets_it_up_first(project: Path) -> None:
    for target in sorted(TARGETS - {"help", "clean", "image"}):
        assert "-m venv --clear .venv" in make(project, "-n", target).stdout, target


def test_an_old_python_is_refused_with_a_way_out(project: Path) -> None:
    old = script(project / "python3.9", '[ "$1" = --version ] && echo Python 3.9.2 && exit 0; exit 1')
    ended = make(project, "check", f"PYTHON={old}")
    assert ended.returncode != 0
    assert "needs Python 3.11 or newer" in ended.stdout
    assert "is Python 3.9.2" in ended.stdout
    assert "make PYTHON=" in ended.stdout


def test_a_python_that_cannot_make_a_venv_is_explained_and_leaves_nothing(project: Path) -> None:
    broken = script(
        project / "python3",
        '[ "$1" = -c ] && exit 0; mkdir -p .venv/bin; touch .venv/bin/python; chmod +x .venv/bin/python; exit 1',
    )
    ended = make(project, "check", f"PYTHON={broken}")
    assert ended.returncode != 0
    assert "install the package python3-venv" in ended.stdout
    assert not (project / ".venv").exists()


def fake_python(project: Path, install: str = ":") -> tuple[str, Path]:
    """Make a python3 whose .venv logs how it is called and runs `install` for `pip install`; return it and the log."""
    log = project / "python.log"
    inner = script(project / "inner", f'echo "$@" >> {log}; case "$*" in *"pip install"*) {install};; esac')
    outer = f'[ "$1" = -c ] && exit 0; echo "$@" >> {log}; mkdir -p .venv/bin; cp {inner} .venv/bin/python'
    return script(project / "python3", outer), log


def calls(log: Path, what: str) -> int:
    return sum(what in line for line in log.read_text().splitlines())


def test_the_setup_runs_once_and_again_when_the_project_changes(project: Path) -> None:
    python, log = fake_python(project)
    for _ in range(2):
        assert make(project, ".venv/.installed", f"PYTHON={python}").returncode == 0
    assert calls(log, "pip install") == 1
    later = (project / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(project / "pyproject.toml", (later, later))
    assert make(project, ".venv/.installed", f"PYTHON={python}").returncode == 0
    assert calls(log, "pip install") == 2
    assert calls(log, "-m venv") == 1


def test_tools_of_a_release_do_not_change_the_installed_project(project: Path) -> None:
    python, log = fake_python(project)
    assert make(project, ".venv/.release-tools", f"PYTHON={python}").returncode == 0
    installed = [line for line in log.read_text().splitlines() if "pip install" in line]
    assert len(installed) == 2
    assert all(" -e .[" in line for line in installed), "a copy of it would hide what is changed later, and has no demo"


def test_an_interrupted_venv_is_recreated(project: Path) -> None:
    python, log = fake_python(project)
    (project / ".venv" / "bin").mkdir(parents=True)
    script(project / ".venv" / "bin" / "python", "exit 1")  # there, but without pip
    assert make(project, ".venv/.installed", f"PYTHON={python}").returncode == 0
    assert calls(log, "-m venv --clear .venv") == 1


def test_a_failed_installation_is_shown_and_tried_again(project: Path) -> None:
    python, log = fake_python(project, "echo no such release >&2; exit 1")
    (project / ".venv").mkdir()
    (project / ".venv" / ".installed").touch()
    os.utime(project / ".venv" / ".installed", (0, 0))
    for _ in range(2):
        ended = make(project, ".venv/.installed", f"PYTHON={python}")
        assert ended.returncode != 0
        assert "no such release" in ended.stderr
        assert "Ready" not in ended.stdout
    assert calls(log, "pip install") == 2


def make_image(project: Path, *arguments: str, **engines: str) -> subprocess.CompletedProcess[str]:
    """Run `make image` where nothing else is to be had than the engines given, each by what its script does."""
    tools = project / "tools"
    tools.mkdir()
    for engine, text in engines.items():
        script(tools / engine, text)
    command = [shutil.which("make") or "make", "image", *arguments]
    return subprocess.run(
        command, cwd=project, env={"PATH": str(tools)}, capture_output=True, text=True, timeout=60, check=False
    )


WORKS = 'echo "$0 $* as $BUILDAH_FORMAT"'


def test_the_image_is_built_with_the_first_engine_that_answers(project: Path) -> None:
    ended = make_image(project, "IMAGE=mine", docker="exit 1", podman=WORKS, buildah=WORKS)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1].endswith("/podman build -t mine . as docker")
    assert "docker is here" in ended.stderr
    assert "buildah" not in ended.stdout


def test_the_engine_of_the_image_can_be_named(project: Path) -> None:
    ended = make_image(project, "ENGINE=buildah", docker=WORKS, podman=WORKS, buildah=WORKS)
    assert ended.stdout.splitlines()[-1].endswith("/buildah build -t tidelog . as docker")


def test_the_base_of_the_image_can_be_pinned(project: Path) -> None:
    ended = make_image(project, "BASE=python@sha256:12", docker=WORKS)
    assert ended.stdout.splitlines()[-1].endswith(
        "/docker build --build-arg BASE=python@sha256:12 -t tidelog . as docker"
    )


def test_all_that_the_image_is_installed_from_is_asked_about() -> None:
    installed = set(re.findall(r"-r (locks/\S+)", (ROOT / "Dockerfile").read_text()))
    told = make(ROOT, "--dry-run", "--old-file", ".venv/.release-tools", "audit").stdout
    (asking,) = [line for line in told.splitlines() if "pip-audit" in line and "--strict" in line]
    assert set(re.findall(r"-r (locks/\S+)", asking)) == installed == {"locks/build.txt", "locks/image.txt"}


def test_an_image_that_cannot_be_built_is_a_failure(project: Path) -> None:
    assert make_image(project, podman='[ "$1" = info ] || exit 7', buildah=WORKS).returncode != 0


def test_without_an_engine_the_message_names_what_to_install(project: Path) -> None:
    ended = make_image(project)
    assert ended.returncode != 0
    assert "install Docker" in ended.stderr
    assert "podman or buildah" in ended.stderr
    assert "is here" not in ended.stderr


def test_files_of_a_trial_cluster_are_never_committed_and_are_cleaned_up() -> None:
    """It holds the cluster's secret."""
    data = inspect.signature(up.up).parameters["data"].default
    assert f"/{data}/" in (ROOT / ".gitignore").read_text().splitlines()
    assert str(data) in make(ROOT, "-n", "clean").stdout.split()


def test_continuous_integration_runs_the_tests() -> None:
    path = ROOT / ".ci" / "run"
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()
    assert path.read_text().rstrip().endswith("make TESTERS=4 test testslow")
