from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.work_units import FIRST, UNIT_TESTS_MAX, order_of, units_of

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.work_units import UnitScheduling

def pytest_xdist_make_scheduler(config, log):
    return UnitScheduling(config, log)
"""
TESTS = """
import os
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(3))
def test_writes_its_process(number):
    with Path(__file__).with_suffix(".txt").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""


def test_tests_of_a_file_are_in_units_of_a_bounded_size() -> None:
    names = [f"tests/test_a.py::test[{number}]" for number in range(2 * UNIT_TESTS_MAX + 1)]
    units = units_of([*names, "tests/test_b.py::test"])
    assert sorted(Counter(units.values()).values()) == [1, 1, UNIT_TESTS_MAX, UNIT_TESTS_MAX]
    assert len({units[name] for name in names[:UNIT_TESTS_MAX]}) == 1


def test_tests_of_a_group_are_one_unit() -> None:
    names = [f"tests/test_{number}.py::test@machine" for number in range(2 * UNIT_TESTS_MAX)]
    assert set(units_of(names).values()) == {"machine"}


def test_a_parameter_with_an_at_sign_is_not_a_group() -> None:
    units = units_of(["tests/test_a.py::test[a@b]", "tests/test_a.py::test[c]"])
    assert len(set(units.values())) == 1


@pytest.mark.parametrize("path", FIRST)
def test_each_first_path_has_tests(path: str) -> None:
    place = ROOT / path
    assert place.is_dir() if path.endswith("/") else place.is_file()


def test_the_longest_files_come_first_and_folders_are_mixed() -> None:
    paths = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    ordered = sorted(paths, key=order_of)
    first = sum(path.startswith(FIRST) for path in paths)
    assert all(path.startswith(FIRST) for path in ordered[:first])
    others = [path.split("/")[1] for path in ordered[first:]]
    assert {"broker", "clients", "e2e", "gateway"} <= set(others[: len(others) // 10])
    assert {"broker", "clients", "e2e", "gateway"} <= set(others[-len(others) // 10 :])


def test_one_process_runs_the_tests_of_a_unit(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text(TESTS)
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--dist", "loadgroup"]
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, timeout=100)
    workers = [(tmp_path / f"test_{number}.txt").read_text().split() for number in range(6)]
    assert [len(set(each)) for each in workers] == [1] * 6
    assert [len(each) for each in workers] == [3] * 6
    assert {each[0] for each in workers} == {"gw0", "gw1"}
