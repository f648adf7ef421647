"""The examples of `docs/javascript.md`, and the page of `docs/cookbook.md`."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "javascript.md"
COOKBOOK = PAGE.with_name("cookbook.md")
ADDRESS = "http://127.0.0.1:8080"


def scripts() -> list[tuple[str, str]]:
    """Return each script with the output that is shown below it."""
    text = PAGE.read_text()
    found = re.findall(r"^```javascript\n(.*?)^```\n\n```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(found) == text.count("```javascript"), "each script is followed by its output"
    return found


def html(document: Path = PAGE) -> str:
    """Return the example of a page."""
    found = re.search(r"^```html\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]
