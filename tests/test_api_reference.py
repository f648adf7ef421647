"""The reference of the Python API that `make docs` makes of docstrings."""

from __future__ import annotations

import re

import pytest
from tests.api_reference import FOLDER, markdown, navigation, pages
from tests.public_api import BEHIND, PAGE, WHOLE

PAGES = pages()
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def heading(name: str) -> tuple[str, str]:
    """Return the page and the heading of a name of `public_api.txt`."""
    module = max((each for each in (*WHOLE, *BEHIND) if name.startswith(f"{each}.")), key=len)
    return module, name.removeprefix(f"{module}.")


def test_every_public_name_has_a_heading() -> None:
    missing = []
    for line in PAGE.read_text().splitlines():
        name = re.split(r"[(:]", line)[0]
        if "the module" in line or " | " in line or line == "tidelog.sync.errors: as tidelog.errors":  # no members
            continue
        module, title = heading(name)
        level = "##" if "." not in title else "###"
        if f"\n{level} {title}\n" not in PAGES[module]:
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize("module", PAGES)
def test_headings_are_unique_and_nothing_is_left_of_the_syntax_of_docstrings(module: str) -> None:
    prose = FENCE.sub("", PAGES[module])
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert re.findall(r"^ *(?:Args|Raises|Returns|Attributes):$", prose, re.MULTILINE) == []
    assert PAGES[module].count("```") % 2 == 0
    assert " object at 0x" not in PAGES[module]
    assert "ForwardRef" not in PAGES[module]


def test_the_site_lists_each_page() -> None:
    assert [line.split(": ")[1] for line in navigation()[1:]] == [f"{FOLDER}/{module}.md" for module in PAGES]


def test_sections_become_lists_and_indented_lines_become_code() -> None:
    docstring = """Return <one>.

    Use it so:

        one(2)

    Args:
        name: what
            it is.
        *rest: others.

    Raises:
        ValueError: it is `<none>`.
    """
    assert [line for line in markdown(docstring) if line] == [
        "Return \\<one\\>.",
        "Use it so:",
        "```python",
        "one(2)",
        "```",
        "**Args**",
        "- `name`: what",
        "    it is.",
        "- `*rest`: others.",
        "**Raises**",
        "- `ValueError`: it is `<none>`.",
    ]
