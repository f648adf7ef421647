"""The version is written in one file, and every place that shows a version reads it from there."""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from tidelog_proto.version import CLIENT_SOFTWARE, NODE_SOFTWARE, VERSION

ROOT = Path(__file__).parents[1]
SOURCES = ("proto", "clients", "broker", "gateway", "spark", "loadtest", "demo")
FROM_METADATA = re.compile(r"\bversion\(['\"]tidelog['\"]\)")
"""Metadata of an editable install is older than the code until `pip install` is run again."""


TABLES = ("levels.py", "topic_settings.py")
"""Modules that name the release which added each entry."""


def test_the_package_is_built_with_the_version_of_the_code() -> None:
    assert ProjectMetadata(str(ROOT), PluginManager()).version == VERSION


def test_greetings_name_the_version() -> None:
    assert (f"tidelog-node/{VERSION}", f"tidelog-python/{VERSION}") == (NODE_SOFTWARE, CLIENT_SOFTWARE)


def test_no_other_source_has_the_version_or_reads_it_from_metadata() -> None:
    found = [
        str(path.relative_to(ROOT))
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name not in {"version.py", *TABLES}
        if f'"{VERSION}"' in path.read_text() or FROM_METADATA.search(path.read_text())
    ]
    assert found == []


def test_the_changelog_begins_with_this_release_or_with_unreleased_changes_of_a_development_build() -> None:
    first, *_ = re.findall(r"^## \[([^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == ("Unreleased" if ".dev" in VERSION else VERSION)
