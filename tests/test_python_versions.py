"""The supported Python versions are listed in several places, which must agree."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
SUPPORTED = [match[1] for match in map(CLASSIFIER.fullmatch, PROJECT["classifiers"]) if match]


def test_they_are_named_from_the_oldest_on() -> None:
    minors = [int(version.removeprefix("3.")) for version in SUPPORTED]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["requires-python"] == f">={SUPPORTED[0]}"


def test_this_one_is_supported() -> None:
    assert f"3.{sys.version_info.minor}" in SUPPORTED


def test_the_readme_names_them() -> None:
    assert f"Python {SUPPORTED[0]} to {SUPPORTED[-1]}" in (ROOT / "README.md").read_text()


def test_the_image_runs_on_one_of_them() -> None:
    used = re.findall(r"^ARG BASE=python:(3\.\d+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert used
    assert set(used) <= set(SUPPORTED)


def test_make_refuses_older_versions() -> None:
    assert f"sys.version_info < (3, {SUPPORTED[0].removeprefix('3.')})" in (ROOT / "Makefile").read_text()
