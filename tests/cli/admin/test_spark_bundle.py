"""`tidelog spark bundle`: contents of the zip, that they suffice, and failed writes."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pyspark
import pytest
from tests.cli.conftest import Cli
from tests.spark_cluster.bare_python import bare_python

from tidelog_cli.admin.spark_bundle import LIBRARIES, PACKAGES, needed_libraries, write_bundle
from tidelog_cli.base.failures import CommandFailed

IN_A_TASK = """
import importlib, json, sys
for name in ("source", "local", "java"):
    importlib.import_module(f"pyspark_tidelog.{name}")
import tidelog.sync, tidelog.cluster.contexts, tidelog_proto.version
ours = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] in sys.argv[1:]}
print(json.dumps({"files": list(ours.values()), "software": tidelog_proto.version.CLIENT_SOFTWARE}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("python"), LIBRARIES)


def import_with(python: Path, path: Path) -> dict[str, object]:
    """Import what tasks import in a Python that has only this of the project; Spark itself comes as on executors."""
    spark = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
    ended = subprocess.run(
        [python, "-c", IN_A_TASK, *PACKAGES],
        env={"PYTHONPATH": ":".join(map(str, [path, *spark]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, object] = json.loads(ended.stdout)
    return answer


def test_the_zip_and_the_named_libraries_are_enough(cli: Cli, python: Path, tmp_path: Path) -> None:
    path = tmp_path / "tidelog.zip"
    made = cli("spark", "bundle", "--output", path, "--json")
    assert made.code == 0, made.err
    told = json.loads(made.out)
    assert told["size_bytes"] == path.stat().st_size
    assert [each.split(">")[0].split("<")[0] for each in told["executors_need"]] == list(LIBRARIES)
    answer = import_with(python, path)
    files = answer["files"]
    assert isinstance(files, list)
    assert len(files) > 50
    assert {Path(file).suffix for file in files} == {".pyc"}, "a Python worker would compile them again"
    assert all(file.startswith(str(path)) for file in files)
    assert answer["software"] == f"tidelog-python/{told['version']}"


def test_another_python_takes_the_source(python: Path, tmp_path: Path) -> None:
    """Files compiled by another release begin with another magic number."""
    write_bundle(tmp_path / "made.zip", replace=False)
    with zipfile.ZipFile(tmp_path / "made.zip") as made, zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        for name in made.namelist():
            content = made.read(name)
            other.writestr(name, b"\0\0\r\n" + content[4:] if name.endswith(".pyc") else content)
    files = import_with(python, tmp_path / "other.zip")["files"]
    assert isinstance(files, list)
    assert {Path(file).suffix for file in files} == {".py"}


def test_the_same_packages_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.zip", "two.zip"):
        write_bundle(tmp_path / name, replace=False)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)
    assert not [name for name in names if "__pycache__" in name]


def test_existing_file_is_kept_without_replace(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "tidelog.zip"
    path.write_bytes(b"kept")
    refused = cli("spark", "bundle", "-o", path)
    assert refused.code == 1
    assert "with --replace" in refused.err
    assert path.read_bytes() == b"kept"
    made = cli("spark", "bundle", "-o", path, "--replace")
    assert made.code == 0
    assert "--py-files; executors need 'crc32c>=" in made.out
    assert zipfile.is_zipfile(path)


@pytest.mark.parametrize(("name", "why"), [("tidelog.tar", "must end in .zip"), ("none/t.zip", "does not exist")])
def test_a_name_that_cannot_be(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        write_bundle(tmp_path / name, replace=True)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_existing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tidelog.zip"
    path.write_bytes(b"kept")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OSError, match="No space"):
        write_bundle(path, replace=True)
    assert path.read_bytes() == b"kept"
    assert list(tmp_path.iterdir()) == [path]


def test_every_library_is_a_dependency_of_the_client() -> None:
    assert len(needed_libraries()) == len(LIBRARIES)
