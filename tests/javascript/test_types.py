"""The types name what the JavaScript module exports, and `tsc` accepts a program that uses them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.javascript_bundle import render

from tidelog_proto.version import VERSION

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"


def test_the_types_name_all_that_the_module_exports() -> None:
    exported = re.search(r"^export \{ (.*) \};$", render(), re.MULTILINE)
    assert exported is not None
    types = (CLIENT / "src" / "index.d.ts").read_text()
    declared = re.findall(r"^export (?:class|function) (\w+)", types, re.MULTILINE)
    assert sorted(declared) == sorted(exported[1].split(", "))


def test_the_package_has_the_version_of_the_project_and_no_dependencies() -> None:
    package = json.loads((CLIENT / "package.json").read_text())
    project = tomllib.loads((CLIENT.parents[1] / "pyproject.toml").read_text())["project"]
    assert (package["version"], package["license"]) == (VERSION.replace(".dev", "-dev."), project["license"])
    assert [name for name in package if name.lower().endswith("dependencies")] == []


def test_a_typed_program_is_accepted() -> None:
    compiler = os.environ.get("TIDELOG_TSC") or shutil.which("tsc")
    if compiler is None:
        pytest.skip("needs the TypeScript compiler: npm install -g typescript, or its path in TIDELOG_TSC")
    done = subprocess.run(
        [compiler, "-p", CLIENT / "tests" / "tsconfig.json"], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout
