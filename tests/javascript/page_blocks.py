"""The examples of `docs/javascript.md`, and the pages of `docs/cookbook-web.md`."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "javascript.md"
COOKBOOK = PAGE.with_name("cookbook-web.md")
ADDRESS = "http://127.0.0.1:8080"


def scripts() -> list[tuple[str, str]]:
    """Return each script with the output that is shown below it."""
    text = PAGE.read_text()
    found = re.findall(r"^```javascript\n(.*?)^```\n\n```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(found) == text.count("```javascript"), "each script is followed by its output"
    return found


def html(document: Path = PAGE, number: int = 0) -> str:
    """Return an example of a page; `number`: its place in the document."""
    found = re.findall(r"^```html\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    return str(found[number])
