"""`make test` repeats the few tests that failed, and fails if one fails again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests import suite

WRITING = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
SECOND_TIME = """
from pathlib import Path

def test_passes_the_second_time():
    seen = Path(__file__).with_suffix(".seen")
    first = not seen.exists()
    seen.touch()
    assert not first

def test_passes():
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run_in(folder: Path) -> int:
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # loading the others takes most of a short run

    def run(arguments: Sequence[str]) -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", *arguments]
        return subprocess.run(command, cwd=folder, env=environ, check=False).returncode

    return suite.run_suite(["-n", "2"], run_pytest=run, cache=folder / "cache")


def test_test_that_fails_once_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "test_once.py").write_text(SECOND_TIME)
    assert run_in(folder) == 0
    assert "UNSTABLE" in (told := capsys.readouterr().out)
    assert "test_once.py::test_passes_the_second_time\n" in told


def test_test_that_fails_twice_fails_the_run(folder: Path) -> None:
    (folder / "test_twice.py").write_text(SECOND_TIME + "\ndef test_fails():\n    assert False\n")
    assert run_in(folder) == pytest.ExitCode.TESTS_FAILED


def test_files_are_in_memory_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / f"tidelog-{os.getuid()}"
    assert suite.with_files_in_memory({"TMPDIR": "/x"}, tmp_path) == {"TMPDIR": "/x"}
    assert suite.with_files_in_memory({"a": "b"}, tmp_path / "missing") == {"a": "b"}
    monkeypatch.setattr(suite, "MEMORY_BYTES_MIN", 1 << 62)
    assert suite.with_files_in_memory({"a": "b"}, tmp_path) == {"a": "b"}
    assert not place.exists()
    monkeypatch.setattr(suite, "MEMORY_BYTES_MIN", 0)
    for _ in range(2):
        assert suite.with_files_in_memory({"a": "b"}, tmp_path) == {"a": "b", "TMPDIR": str(place)}
    place.chmod(0o777)
    assert suite.with_files_in_memory({"a": "b"}, tmp_path) == {"a": "b"}
    place.rmdir()
    place.symlink_to(tmp_path)
    assert suite.with_files_in_memory({"a": "b"}, tmp_path) == {"a": "b"}


def test_compiled_files_are_kept() -> None:
    assert suite.with_compiled_files({"a": "b", "PYTHONDONTWRITEBYTECODE": "1"}) == {"a": "b"}


def test_main_runs_pytest_with_compiled_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Mapping[str, str]] = []

    def run(command: Sequence[str], *, env: Mapping[str, str], check: bool) -> subprocess.CompletedProcess[str]:
        given.append(env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(suite, "run", run)
    monkeypatch.setattr(suite, "compile_tests", given.append)
    monkeypatch.setattr(suite, "run_suite", lambda arguments, *, run_pytest: run_pytest(arguments))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert suite.main(["-q"]) == 0
    assert len(given) == 2
    assert all("PYTHONDONTWRITEBYTECODE" not in environ for environ in given)


def test_many_failures_are_not_repeated(folder: Path) -> None:
    many = SECOND_TIME.replace("def test_passes_the", "@pytest.mark.parametrize('n', range(6))\ndef test_passes_the")
    many = "import pytest\n" + many.replace("second_time()", "second_time(n)").replace('".seen"', 'f".{n}"')
    (folder / "test_many.py").write_text(many)
    assert run_in(folder) == pytest.ExitCode.TESTS_FAILED


def test_errors_of_collection_fail_the_run(folder: Path) -> None:
    (folder / "test_broken.py").write_text("def broken(:\n")
    assert run_in(folder) not in {0, pytest.ExitCode.TESTS_FAILED}


def test_two_processes_compile_the_tests_of_a_new_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "NOT_COMPILED_MAX", 1)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text("def test_x() -> None:\n    assert True\n")
    suite.compile_tests(WRITING, tmp_path)
    assert suite.not_compiled(tmp_path) == set()


def test_only_files_that_are_new_or_changed_are_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "a/__pycache__").mkdir(parents=True)
    for name in ("kept", "changed", "new"):
        (tmp_path / f"a/test_{name}.py").write_text("def test_x() -> None:\n    assert True\n")
    for name in ("kept", "changed", "deleted"):
        (tmp_path / f"a/__pycache__/test_{name}.cpython-311-pytest-9.0.0.pyc").touch()
    os.utime(tmp_path / "a/test_changed.py", (2**32, 2**32))
    assert {path.name for path in suite.not_compiled(tmp_path)} == {"test_changed", "test_new"}
    suite.compile_tests(WRITING, tmp_path)  # few files: each process that shares the tests compiles them
    assert {path.name for path in suite.not_compiled(tmp_path)} == {"test_changed", "test_new"}
