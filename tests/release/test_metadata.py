"""The metadata of distributions: the links of the README and the project's addresses."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
HOME = "https://example.org/logs/tidelog"
RELATIVE = re.compile(r"\]\((?!https?:|#|mailto:)[^)]*\)")


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metadata(folder: Path, repository: str) -> Message:
    """Build the wheel of a project with our settings and no packages; return its metadata."""
    for name in ("README.md", "hatch_build.py", "LICENSE"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "proto" / "tidelog_proto").mkdir(parents=True)
    (folder / "proto" / "tidelog_proto" / "version.py").write_bytes(
        (ROOT / "proto" / "tidelog_proto" / "version.py").read_bytes()
    )
    settings = (ROOT / "pyproject.toml").read_text()
    settings = re.sub(r'^repository = ".*"$', f'repository = "{repository}"', settings, flags=re.MULTILINE)
    settings = re.sub(
        r"^packages = \[.*?\]", 'packages = ["proto/tidelog_proto"]', settings, flags=re.MULTILINE | re.DOTALL
    )
    (folder / "pyproject.toml").write_text(settings)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_links_into_the_repository_are_absolute(hook: ModuleType) -> None:
    text = "[a](docs/a.md#b) ![p](docs/img/p.png) [c](https://example.org/c) [d](#d)\n```text\n[e](f)\n```\n"
    assert hook.absolute_links(text, HOME) == (
        f"[a]({HOME}/blob/main/docs/a.md#b) ![p]({HOME}/raw/main/docs/img/p.png) [c](https://example.org/c) [d](#d)\n"
        "```text\n[e](f)\n```\n"
    )


def test_without_a_repository_links_into_it_become_text(hook: ModuleType) -> None:
    assert (
        hook.absolute_links("[a](docs/a.md) and [c](https://example.org/c)", "") == "a and [c](https://example.org/c)"
    )


@pytest.mark.parametrize(
    "given", ["http://example.org/x", "https://me:secret@example.org/x", "file:///home/me/x", "/home/me/x", "git@a:b"]
)
def test_an_address_that_users_cannot_open_is_refused(hook: ModuleType, given: str) -> None:
    with pytest.raises(ValueError, match="repository must be an https address without credentials, or empty, got"):
        hook.checked(given)


def test_the_metadata_has_no_link_that_only_works_in_the_repository(tmp_path: Path) -> None:
    made = metadata(tmp_path, "")
    assert RELATIVE.search(str(made.get_payload())) is None
    assert made.get_all("Project-URL") is None
    assert str(ROOT) not in made.as_string()


def test_with_a_repository_the_metadata_names_it(tmp_path: Path) -> None:
    made = metadata(tmp_path, f"{HOME}/")
    assert RELATIVE.search(str(made.get_payload())) is None
    assert f"({HOME}/blob/main/docs/README.md)" in str(made.get_payload())
    assert made.get_all("Project-URL") == [
        f"Source, {HOME}",
        f"Documentation, {HOME}/blob/main/docs/README.md",
        f"Changelog, {HOME}/blob/main/CHANGELOG.md",
        f"Issues, {HOME}/issues",
    ]
