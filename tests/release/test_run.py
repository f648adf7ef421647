"""What `make release` refuses and writes. The whole target builds and installs, which needs a package index."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import pytest
from tests.release import run
from tests.release.installed import ReleaseError
from tests.release.sbom import complete

from tidelog_proto.version import VERSION


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with a changelog, in the place of this one."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("*\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.9.0] - 2026-11-29\n\n## [0.0.1] - 2026-01-01\n")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "VERSION", "0.9.0")
    monkeypatch.setattr(run, "DEVELOPMENT", False)
    return tmp_path


def test_committed_sources_with_the_version_in_the_changelog_are_accepted(project: Path) -> None:
    run.check_sources(dirty=False)
    assert project.exists()


def test_files_that_are_not_committed_are_refused(project: Path) -> None:
    (project / ".git" / "info" / "exclude").write_text("")
    with pytest.raises(ReleaseError, match=r"commit these files first, or try it with DIRTY=1:\n\?\? CHANGELOG.md"):
        run.check_sources(dirty=False)
    run.check_sources(dirty=True)


def test_a_release_whose_changelog_has_unreleased_changes_is_refused(project: Path) -> None:
    (project / "CHANGELOG.md").write_text("## [Unreleased]\n")
    with pytest.raises(
        ReleaseError, match=r"begins with \[Unreleased\], and .*version\.py has 0\.9\.0: .* with \[0\.9\.0\]"
    ):
        run.check_sources(dirty=False)


def test_a_development_build_has_the_unreleased_changes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "DEVELOPMENT", True)
    with pytest.raises(ReleaseError, match=r"begins with \[0\.9\.0\], .*: begin the changelog with \[Unreleased\]"):
        run.check_sources(dirty=False)
    (project / "CHANGELOG.md").write_text("## [Unreleased]\n")
    run.check_sources(dirty=False)


def test_sums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    files = [tmp_path / "b.whl", tmp_path / "a.tar.gz"]
    for file in files:
        file.write_bytes(file.name.encode())
    lines = run.sums(files).splitlines()
    assert lines[0] == f"{hashlib.sha256(b'a.tar.gz').hexdigest()}  a.tar.gz"
    (tmp_path / "SHA256SUMS").write_text(run.sums(files))
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)


def test_wheels_are_compared_by_the_content_of_their_files(tmp_path: Path) -> None:
    for name, text in (("one", "x"), ("other", "y")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("a.py", text)
    assert run.contents(tmp_path / "one") != run.contents(tmp_path / "other")


def test_the_bill_of_materials_names_the_version(tmp_path: Path) -> None:
    path = tmp_path / "sbom.json"
    path.write_text(json.dumps({"metadata": {"component": {"name": "tidelog"}}, "components": [{}, {}]}))
    assert complete(path) == 2
    assert json.loads(path.read_text())["metadata"]["component"] == {"name": "tidelog", "version": VERSION}
