"""The sources of `make docs`: links of pages, and the navigation. `make docs` itself checks links and anchors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs_site import OUTSIDE, ROOT, loaded_in, navigation, shelves, site_links

INDEX = (ROOT / "docs" / "README.md").read_text()


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("docs/a.md", "[x](b.md#c)", "[x](b.md#c)"),
        ("docs/a.md", "[x](../README.md)", "[x](quick-start.md)"),
        ("docs/adr/0001.md", "[x](../../CHANGELOG.md)", "[x](../changelog.md)"),
        ("README.md", "![x](docs/img/a.png)", "![x](img/a.png)"),
        ("README.md", "[x](LICENSE)", "x"),
        ("docs/a.md", "[x](../proto/b.proto)", "x"),
        ("docs/a.md", "[x](#c) [y](https://example.org/a)", "[x](#c) [y](https://example.org/a)"),
        ("docs/a.md", "```text\n[x](../README.md)\n```", "```text\n[x](../README.md)\n```"),
    ],
)
def test_links_point_into_the_site_or_become_text(page: str, link: str, expected: str) -> None:
    assert site_links(link, Path(page)) == expected


def test_each_page_is_on_one_shelf() -> None:
    listed = [target for _, pages in shelves(INDEX) for _, target in pages]
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert sorted(listed) == sorted([*pages, "adr/README.md", *(f"../{name}" for name in OUTSIDE)])
    assert [title for title, _ in shelves(INDEX)] == ["Start here", "How to", "Reference", "How it works"]


def test_the_navigation_has_the_titles_of_the_index() -> None:
    lines = navigation("# T\n\n## How to\n\n| page |\n| --- |\n| [A](a.md) | b |\n").splitlines()
    assert lines == ["nav:", "  - Tidelog: README.md", '  - "How to":', '    - "A": a.md']


def test_the_shelf_of_references_has_the_python_api() -> None:
    lines = navigation("# T\n\n## Reference\n\n| page |\n| --- |\n| [A](a.md) | b |\n").splitlines()
    assert lines[3:6] == ['    - "A": a.md', "    - Python API:", "      - tidelog: reference/tidelog.md"]


def test_scripts_and_styles_of_other_hosts_are_found() -> None:
    page = '<script src=https://a.example/x></script><link rel="stylesheet" href="//b.example/y"><a href="https://c.example">'
    assert loaded_in(page) == ["https://a.example/x", "//b.example/y"]
    assert loaded_in('<script src="assets/x.js"></script><link rel=stylesheet href=assets/y.css>') == []
