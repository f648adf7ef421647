"""Tests speak to a part through its public verbs: how often they reach past them is counted, and only goes down.

A reach is an attribute with an underscore in front on anything but `self` and `cls`, an import of such a name, or a
patch of one by its name. A patch by a dotted path is counted, too, because moving the named object breaks it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent

REACHES_MAX = 195
DOTTED_MAX = 45
"""Lower them with every one that goes."""
SLACK = 5

PATCHES = {"setattr", "getattr", "delattr", "patch", "object"}
NAMEDTUPLE = {"_replace", "_asdict", "_fields", "_make", "_field_defaults"}
"""Public in spite of the underscore."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMEDTUPLE


def strings_of(call: ast.Call) -> Iterator[str]:
    """Yield the strings that a patch, or a look by name, is given."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in PATCHES:
        for argument in call.args[:2]:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def counts_of(text: str) -> Counter[str]:
    """Return how many reaches and dotted paths a test file has."""
    counts: Counter[str] = Counter()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            counts["reaches"] += is_private(node.attr) and not is_own(node.value)
        elif isinstance(node, ast.ImportFrom):
            counts["reaches"] += sum(is_private(alias.name) for alias in node.names)
        elif isinstance(node, ast.Call):
            for string in strings_of(node):
                counts["reaches"] += is_private(string.rsplit(".", 1)[-1])
                counts["dotted"] += "." in string and string.replace(".", "_").isidentifier()
    return counts


@pytest.mark.parametrize(
    ("text", "reaches", "dotted"),
    [
        ("node._peers['b'].link._transport.write(b'')", 2, 0),
        ("self._peers, cls._made, one._replace(a=1), one.__dict__", 0, 0),
        ("from tidelog_broker.wire.links import _Peer, Links", 1, 0),
        ("monkeypatch.setattr(Links, '_connect', None)", 1, 0),
        ("monkeypatch.setattr(node.broker.links, 'connect', None)", 0, 0),
        ("monkeypatch.setattr('tidelog_broker.wire.links.GATHER_S', 0)", 0, 1),
        ("patch.object(paxos, '_quorum', one)", 1, 0),
    ],
)
def test_a_reach_is_recognised(text: str, reaches: int, dotted: int) -> None:
    assert (counts_of(text)["reaches"], counts_of(text)["dotted"]) == (reaches, dotted)


@cache
def counted() -> dict[str, Counter[str]]:
    """Return the counts of every test file; parsing them takes a while."""
    return {str(path.relative_to(HERE)): counts_of(path.read_text()) for path in HERE.rglob("*.py")}


@pytest.mark.parametrize(("what", "most"), [("reaches", REACHES_MAX), ("dotted", DOTTED_MAX)])
def test_tests_reach_into_parts_no_more_than_they_did(what: str, most: int) -> None:
    found = {name: counts[what] for name, counts in counted().items()}
    worst = ", ".join(f"{name} {count}" for name, count in Counter(found).most_common(5))
    total = sum(found.values())
    assert total <= most, f"{total} {what}, {most} are allowed; test through public verbs. The most: {worst}"
    assert total > most - SLACK, f"{total} {what} only: lower the bound from {most}"
