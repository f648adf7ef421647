from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from tidelog_cli.admin.deploy import FILES, FOLDER
from tidelog_cli.base.failures import EXIT_USAGE
from tidelog_cli.main import main


@pytest.fixture
def alone(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command, without a node."""
    from tests.cli.conftest import Ended  # noqa: PLC0415 - of the fixture alone

    def call(*arguments: object, stdin: bytes = b"") -> Ended:
        assert not stdin
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return call


def test_every_file_of_the_folder_is_listed(alone: Cli) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(FILES)
    listed = json.loads(alone("deploy", "--json").out)
    assert [Path(each["path"]) for each in listed] == [FOLDER / name for name in FILES]
    assert all(Path(each["path"]).is_file() for each in listed)
    assert "tidelog-rules.yml" in alone("deploy").out


def test_existing_files_are_replaced_only_on_request(alone: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert alone("deploy", folder).code == 0
    assert {path.name for path in folder.iterdir()} == set(FILES)
    (folder / "tidelog-rules.yml").write_text("mine")
    (folder / "tidelog-dashboard.json").unlink()
    refused = alone("deploy", folder)
    assert refused.code == EXIT_USAGE
    assert "already has tidelog-rules.yml" in refused.err or "tidelog-rules.yml" in refused.err
    assert (folder / "tidelog-rules.yml").read_text() == "mine"
    assert not (folder / "tidelog-dashboard.json").exists()
    assert alone("deploy", folder, "--replace").code == 0
    assert (folder / "tidelog-rules.yml").read_bytes() == (FOLDER / "tidelog-rules.yml").read_bytes()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_named(alone: Cli, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    told = alone("deploy", tmp_path / "x")
    assert told.code == 1
    assert "cannot write to" in told.err


def test_the_files_are_in_the_wheel(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder  # noqa: PLC0415 - takes its time, of this test alone

    root = str(Path(__file__).parents[3])
    (wheel,) = WheelBuilder(root).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as made:
        assert {f"tidelog_cli/deploy_files/{name}" for name in FILES} <= set(made.namelist())
