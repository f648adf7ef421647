"""Write the table of `docs/security.md` that says what each request needs: `python -m tests.access_table`."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog_broker.server.access import AUDITED, RULES

PAGE = Path(__file__).parents[1] / "docs" / "security.md"
_BLOCK = re.compile(r"(?<=\n)\| request \| needs \| written down \|\n(?:\|[^\n]*\n)+")


def render() -> str:
    """Return the table."""
    rows = [
        f"| `{kind}` | {need.words} | {'always' if kind in AUDITED else 'when it is refused'} |"
        for kind, need in sorted(RULES.items())
    ]
    return "\n".join(["| request | needs | written down |", "| --- | --- | --- |", *rows, ""])


def shown() -> str:
    """Return the table as the page has it."""
    (found,) = _BLOCK.findall(PAGE.read_text())
    return str(found)


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(shown(), render()))
