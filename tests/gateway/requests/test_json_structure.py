"""The marks between JSON values, compared with those of a scan byte by byte."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from tidelog_gateway.requests import json_structure
from tidelog_gateway.requests.json_structure import marks


def one_by_one(text: bytes) -> list[tuple[int, int]]:
    """Return place and depth of each mark, found byte by byte."""
    found: list[tuple[int, int]] = []
    in_string = is_escaped = False
    depth = 0
    for place, byte in enumerate(text):
        character = chr(byte)
        if in_string:
            in_string = is_escaped or character != '"'
            is_escaped = not is_escaped and character == "\\"
        elif character == '"':
            in_string = True
        elif character in "[]{},":
            depth += {"[": 1, "{": 1, ",": 0}.get(character, -1)
            found.append((place, depth))
    return found


def some_json(random: Random, level: int = 0) -> Any:
    kind = random.random()
    if kind < 0.4 or level > 4:
        return "".join(random.choice('\\",{}[]ab\n\u00e9') for _ in range(random.randrange(9)))
    if kind < 0.5:
        return random.randrange(1_000)
    if kind < 0.75:
        return [some_json(random, level + 1) for _ in range(random.randrange(4))]
    return {some_json(random, 9): some_json(random, level + 1) for _ in range(random.randrange(4))}


@pytest.mark.parametrize("stretch_bytes", [1, 2, 3, 7, 64])
def test_marks_are_found_wherever_a_stretch_ends(stretch_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_structure, "STRETCH_BYTES", stretch_bytes)
    random = Random(stretch_bytes)
    for _ in range(200):
        text = json.dumps(some_json(random)).encode()
        found = [
            (int(place), int(depth))
            for each in marks(text)
            for place, depth in zip(each.places, each.depths, strict=True)
        ]
        assert found == one_by_one(text), text
