"""Settings in compose.yaml, read without a YAML parser: its lists are lines of JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "compose.yaml").read_text()
NODES = ["node1", "node2", "node3"]


def services() -> dict[str, str]:
    """Return each service's lines."""
    part = re.split(r"^(?=\w)", TEXT, flags=re.MULTILINE)
    (found,) = [lines for lines in part if lines.startswith("services:")]
    pieces = re.split(r"^  (\w+):\n", found, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def list_of(service: str, name: str) -> list[str]:
    """Return a list of a service: `command`, `volumes`; an empty one where it has none."""
    found = re.findall(rf"^    {name}: (\[.*\])$", services()[service], re.MULTILINE)
    words: list[str] = json.loads(found[0]) if found else []
    return words


def value_of(service: str, option: str) -> str:
    """Return the value of an option of a service's command."""
    words = list_of(service, "command")
    return words[words.index(option) + 1]
