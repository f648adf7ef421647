"""Prose is written in reference style: constructions that stop a reader are counted by area, and may only become fewer.

`RULES` lists the constructions and what to write instead; `BROKER_RULES` adds those of the broker and the
protocol. Comments, docstrings, messages, names of tests and pages are searched; code blocks are not.
`python -m tests.test_plain_language broker/tidelog_broker/wire` lists the places.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LINK_TARGET = re.compile(r"\]\([^)\s]*\)")
"""File names in links: those of decisions stay when their titles change."""
_SENTENCE = r"(?:\A|(?<=[.:;!] ))"


class Rule(NamedTuple):
    """A construction that stops a reader.

    Attributes:
        pattern: finds it in one line.
        instead: the better form.
        sample: a line that has it.
    """

    pattern: re.Pattern[str]
    instead: str
    sample: str


def rule(pattern: str, instead: str, sample: str) -> Rule:
    return Rule(re.compile(pattern), instead, sample)


RULES = {
    "clause as subject": rule(
        _SENTENCE + r"(?:[Ww]ho(?:ever|se)?|[Ww]hat(?:ever)?) (?!else\b)\w+(?!.*\?)",
        "name the actor or the thing: the client, the owner, pending records",
        "Who asks again is answered from memory.",
    ),
    "negated noun": rule(
        r"(?<![Tt]here )\b(?:is|are|was|were) (?:none\b|no (?!longer|more|less|later|earlier|other)\w+(?= |[.,;:]|\Z))",
        "state it as a verb or adjective: is not a member, is missing, does not exist",
        "the caller is no member of it",
    ),
    "person without a name": rule(
        r"\b(?:[Ss]ome|[Nn]o|[Aa]ny)body\b", "name the actor: a caller, another principal, no client", "nobody asked"
    ),
    "program as a person": rule(
        r"\b(?:[Hh]e|[Hh]im(?:self)?|[Hh]is)\b", "the caller, the client, its, their", "his key"
    ),
    "passive telling": rule(
        r"\b(?:is|are|was|were|be|been|being|gets?) told\b|\btells? (?:of|how|what|who|whom|which|when|that)\b",
        "say who reports what: the node returns, logs, sends; the client learns",
        "the client is told of it",
    ),
    "saying": rule(
        r"\b(?:is|are|was|were|been) said\b|\bsays? (?:nothing|of)\b", "reports, documents, sets", "as is said there"
    ),
    "standing": rule(
        r"\b[Ss]t(?:ands?|ood|anding) (?:in|there|behind|before|twice|beside|under|alone|for)\b",
        "is, is stored in, is listed in, represents",
        "the offset stands in the header",
    ),
    "being there": rule(
        r"\b(?:is|are|was|were) (?:not |still |no longer |already )?there\b(?! (?:is|are|was|were|a|an|no)\b)",
        "exists, is present",
        "the file is not there",
    ),
    "behind for after": rule(
        r"\b[Bb]ehind (?:it|them|that|this|which|another|those|one another|each other|the (?:end|last))\b",
        "after, following",
        "the batch behind it",
    ),
    "old adverb": rule(
        r"\b(?:[Aa]new|[Nn]owhere|[Bb]y and by|[Hh]ereby|[Tt]hereby|[Ff]or so long|[Bb]ut for)\b",
        "again, missing, gradually, except",
        "it is built anew",
    ),
}

BROKER_RULES = {
    "life of a node": rule(
        r"\b(?:(?:[Oo]ld|[Nn]ew|[Ee]arlier|[Ll]ater|[Ff]ormer|[Nn]ext|[Pp]revious|node's|own|its|same) (?:life|lives)\b"
        r"|[Ll](?:ife|ives) of )",
        "incarnation: the period from a start of a node to its end",
        "a message of an earlier life",
    ),
    "for good": rule(r"\bfor good\b", "permanently", "the replica is halted for good"),
    "room": rule(
        r"\b(?:finds? no |(?:is|are|was|were) (?:no )?|makes? |without )room\b(?!s)",
        "name the limit: fits the reply, exceeds the limit, is below the limit, needs the memory",
        "a client that finds no room waits",
    ),
    "piece": rule(r"\b[Pp]ieces?\b", "slice, part, chunk, message, buffer: whichever it is", "it is sent in pieces"),
    "rot": rule(r"\b[Rr]ot(?:s|ted|ten|ting)?\b", "damage, corruption; damaged, corrupt", "a rotten block"),
    "telling apart": rule(
        r"\btells? (?:\w+ )*apart\b|\bcannot tell\b", "distinguish, know", "the owner cannot tell them apart"
    ),
    "look": rule(r"\b(?:[Nn]ext|[Ll]ast|[Ff]irst|[Ee]very|[Ee]ach) look\b", "check, pass", "until the next look"),
    "dying": rule(
        r"\b(?:node|nodes|owner|owners|process|broker) (?:has |have |had )?(?:dies?|died)\b|\b(?:has|have|had) died\b",
        "fail, end, stop: whichever it is",
        "the owner has died",
    ),
    "standing of a replica": rule(
        r"\b(?:[Ii]ts|[Tt]he|[Oo]wn|node's|replica's) standing\b",
        "participation: whether a replica may vote, acknowledge, own",
        "the replica's standing changes",
    ),
}
"""What is ruled out besides in the broker and the protocol, whose readers need one term for each idea."""
BROKER_AREAS = ("replication protocol", "storage", "broker", "protocol")


class Area(NamedTuple):
    """Files with a common bound.

    Attributes:
        paths: folders and files.
        places_max: how many places may be left; lower it with every one that goes.
    """

    paths: tuple[str, ...]
    places_max: int


AREAS = {
    "replication protocol": Area(("broker/tidelog_broker/core",), 0),
    "storage": Area(
        (
            "broker/tidelog_broker/storage",
            "broker/tidelog_broker/partition",
            "broker/tidelog_broker/replication",
            "broker/tidelog_broker/rebalance",
        ),
        0,
    ),
    "broker": Area(
        (
            "broker/tidelog_broker/__init__.py",
            "broker/tidelog_broker/base",
            "broker/tidelog_broker/broker.py",
            "broker/tidelog_broker/cli",
            "broker/tidelog_broker/cluster",
            "broker/tidelog_broker/groups",
            "broker/tidelog_broker/metadata",
            "broker/tidelog_broker/node",
            "broker/tidelog_broker/server",
            "broker/tidelog_broker/wire",
        ),
        0,
    ),
    "client": Area(("clients/tidelog",), 0),
    "commands": Area(
        (
            "clients/tidelog_cli",
            "clients/javascript",
            "clients/tidelog_pytest",
        ),
        0,
    ),
    "gateway": Area(("gateway",), 0),
    "protocol": Area(("proto",), 0),
    "Spark": Area(("spark",), 0),
    "load test": Area(("loadtest", "demo", "hatch_build.py"), 0),
    "pages": Area(("docs", "README.md", "SECURITY.md", "CHANGELOG.md"), 0),
    "tests": Area(("tests",), 0),
}

EXCEPTIONS: dict[str, str] = {}
"""Path and line -> why the construction is right there."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that people read, with their numbers; a line that goes on with a sentence begins with `~`."""
    text = path.read_text(encoding="utf-8")
    yield from (_of_page(text) if path.suffix == ".md" else _of_module(text))


def _of_page(text: str) -> Iterator[tuple[int, str]]:
    is_code, lines = False, list[str]()
    for line in text.splitlines():
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        lines.append("" if is_fence or is_code else line)
    return _sentences(lines, 1)


def _of_module(text: str) -> Iterator[tuple[int, str]]:
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
    yield from _sentences([comments.get(number, "") for number in range(1, max(comments, default=0) + 1)], 1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
            yield from _sentences(node.value.splitlines(), node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.removeprefix("test_").replace("_", " ")


def _sentences(lines: list[str], first: int) -> Iterator[tuple[int, str]]:
    before = ""
    for number, line in enumerate(lines, first):
        stripped = line.strip()
        if stripped:
            goes_on = before and before[-1] not in ".:;!|`" and stripped[0] not in "-*|#>"
            yield number, ("~ " if goes_on else "") + re.sub(r"`[^`]*`", "`x`", LINK_TARGET.sub("]", stripped))
        before = stripped


@cache
def tracked() -> tuple[str, ...]:
    command = ["git", "ls-files", "*.py", "*.md"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    own = {"tests/test_plain_language.py"}  # its samples break the rules
    return tuple(name for name in found if not name.endswith("_pb2.py") and name not in own and (ROOT / name).is_file())


def _is_under(name: str, paths: Iterable[str]) -> bool:
    return any(name == path or name.startswith(f"{path}/") for path in paths)


def rules_for(name: str) -> dict[str, Rule]:
    """Return the rules of the area that a file belongs to."""
    is_broker = any(_is_under(name, AREAS[area].paths) for area in BROKER_AREAS)
    return RULES | BROKER_RULES if is_broker else RULES


def places_in(paths: Iterable[str]) -> list[str]:
    """Return where the files under some paths break a rule: path, line, rule and text."""
    wanted = tuple(paths)
    found: list[str] = []
    for name in tracked():
        if not _is_under(name, wanted):
            continue
        for number, line in texts(ROOT / name):
            for title, (pattern, instead, _) in rules_for(name).items():
                if pattern.search(line) and f"{name}: {line}" not in EXCEPTIONS:
                    found.append(f"{name}:{number}: {title} ({instead}): {line}")
    return found


@pytest.mark.parametrize("each", [*RULES.values(), *BROKER_RULES.values()], ids=[*RULES, *BROKER_RULES])
def test_each_rule_finds_its_sample(each: Rule) -> None:
    assert each.pattern.search(each.sample)


def test_rules_of_the_broker_do_not_replace_common_ones() -> None:
    assert not RULES.keys() & BROKER_RULES.keys()


def test_each_file_belongs_to_one_area() -> None:
    for name in tracked():
        owners = [area for area, (paths, _) in AREAS.items() if _is_under(name, paths)]
        assert len(owners) == 1, f"{name}: {owners}"


@pytest.mark.parametrize("area", AREAS)
def test_no_area_has_more_places_than_it_may(area: str) -> None:
    paths, places_max = AREAS[area]
    found = places_in(paths)
    if len(found) > places_max:
        counts = Counter(place.split(" (")[0].split(": ")[-1] for place in found)
        pytest.fail(
            f"{len(found)} places in {area}, {places_max} are allowed: {dict(counts)}; list them with: "
            f"python -m tests.test_plain_language {' '.join(paths)}"
        )
    assert len(found) > places_max - max(5, places_max // 20), f"lower places_max of {area} to {len(found)}"


if __name__ == "__main__":
    print("\n".join(places_in(sys.argv[1:])))
