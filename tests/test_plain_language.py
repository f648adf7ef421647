"""Prose is written in reference style: constructions that stop a reader are counted by area, and may only become fewer.

`RULES` lists the constructions and what to write instead. Comments, docstrings, messages, names of tests and pages are
searched; code blocks are not.
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
_BROKER_SIDE = ("broker/", "proto/")
_CLIENT_SIDE = ("clients/", "gateway/", "proto/", "loadtest/", "spark/")
_WITHOUT_WORK = (
    *("clients/tidelog/cluster/", "clients/tidelog/consume/", "clients/tidelog_cli/", "clients/tidelog_pytest/"),
    *("broker/", "gateway/", "proto/", "loadtest/", "spark/"),
)
"""Code that does not explain `Work.piece`."""


class Rule(NamedTuple):
    """A construction that stops a reader.

    Attributes:
        pattern: finds it in one line.
        instead: the better form.
        sample: a line that has it.
        folders: only files below these are searched; all files if empty.
    """

    pattern: re.Pattern[str]
    instead: str
    sample: str
    folders: tuple[str, ...] = ()


def rule(pattern: str, instead: str, sample: str, folders: tuple[str, ...] = ()) -> Rule:
    return Rule(re.compile(pattern), instead, sample, folders)


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
    "a place without a name": rule(
        r"\b[Ss]ee there\b|\b[Pp]ast it\b",
        "name the function, the module or the page; after the record, beyond the end",
        "As for batches; see there.",
        _CLIENT_SIDE,
    ),
    "a result that tells": rule(
        r"\b(?:[Rr]esults?|`x`|[Ee]rrors?|[Mm]essages?) tells?\b",
        "reports, contains, names",
        "the result tells the count",
        _CLIENT_SIDE,
    ),
    "sentence without a verb": rule(
        _SENTENCE + r"The same (?:for|of|in|with|as)\b|\AOf (?:an?|the|this|its|JSON|CSV)\b",
        "write the verb: applies to topics too, return the fields of a body",
        "The same for groups.",
        _CLIENT_SIDE,
    ),
    "someone has it done": rule(
        _SENTENCE + r"Have (?!a\b|an\b|the\b|no\b)\w+ \w+",
        "say who does it: the owner commits",
        "Have it committed.",
        _CLIENT_SIDE,
    ),
    "a second for per second": rule(
        r"\b(?:records|frames|batches|requests|bytes|messages|pushes|connections) a second\b",
        "per second",
        "5 requests a second",
        _CLIENT_SIDE,
    ),
    "figure of speech": rule(
        r"\b(?:is|are) gone\b|\b(?:is|are) under way\b|\bin vain\b|\bat hand\b|\bin hand\b|\b[Bb]eside\b|\bnothing "
        "but\b"
        r"|\bcarr(?:y|ied|ies) (?:it |them |its \w+ )?out\b",
        "ended, was deleted; runs; without success; stored, available; next to; only; execute",
        "a request is under way",
        _CLIENT_SIDE,
    ),
    "standing as an adjective": rule(
        r"\b(?:a|the|its|their|same) standing\b|\bstanding (?:of|as)\b",
        "bounds, state, position, order",
        "the standing of a partition",
        _CLIENT_SIDE,
    ),
    "piece": rule(
        r"\b[Pp]ieces?\b",
        "slice, part, chunk, message, entry: one word for one thing",
        "a piece of columns",
        _WITHOUT_WORK,
    ),
    "defined by another": rule(
        r"\AAs `x`, ",
        "say what it does or holds: retry like `x`, the same limit for tokens",
        "As `x`, for requests about one topic.",
    ),
    "absence without a noun": rule(
        r"\b(?:there (?:is|are|was|were)|it has|they have|it had|that have|[Ii]f|[Ff]or) none\b(?! of)",
        "name what is absent: None if no row has the key, None without segments",
        "Read a row; None if there is none.",
        ("broker/", "clients/", "gateway/", "loadtest/", "proto/", "spark/"),
    ),
    "no effect": rule(
        r"\AProcess that\b",
        "say what changes: record, schedule, raise, drop",
        "Process that a replica has stored an offset.",
    ),
    "one after another": rule(
        r"\b(?:with|at|by|in|from|of|,|request|requests) one [\w ]{1,20} after the other\b",
        "in turn, topic by topic; hedged",
        "requested one page, one page after the other",
        ("broker/", "clients/", "gateway/", "proto/", "spark/"),
    ),
    "the own": rule(r"\b[Tt]he own\b", "name the owner: this process's, the node's", "the own certificate"),
    "all of whose": rule(
        r"\ball of whose\b", "that contains only, that is completely", "a file all of whose rows are read"
    ),
    "a revocation list by another name": rule(
        r"\b[Ll]ists? of revoked certificates\b|(?<!certificate )\b[Rr]evocation lists?\b(?! \(CRL)",
        "CRL",
        "the list of revoked certificates",
        ("broker/", "clients/", "gateway/", "proto/", "spark/"),
    ),
    "life of a node": rule(
        r"\b(?:(?:[Oo]ld|[Nn]ew|[Ee]arlier|[Ll]ater|[Ff]ormer|[Nn]ext|[Pp]revious|node's|own|its|same) (?:life|lives)\b"
        r"|[Ll](?:ife|ives) of )",
        "incarnation: the period from a start of a node to its end",
        "a message of an earlier life",
        _BROKER_SIDE,
    ),
    "for good": rule(r"\bfor good\b", "permanently", "the replica is halted for good", _BROKER_SIDE),
    "room": rule(
        r"\b(?:finds? no |(?:is|are|was|were) (?:no )?|makes? |without )room\b(?!s)",
        "name the limit: fits the reply, exceeds the limit, is below the limit, needs the memory",
        "a client that finds no room waits",
        _BROKER_SIDE,
    ),
    "rot": rule(
        r"\b[Rr]ot(?:s|ted|ten|ting)?\b", "damage, corruption; damaged, corrupt", "a rotten block", _BROKER_SIDE
    ),
    "telling apart": rule(
        r"\btells? (?:\w+ )*apart\b|\bcannot tell\b",
        "distinguish, know",
        "the owner cannot tell them apart",
        _BROKER_SIDE,
    ),
    "look": rule(
        r"\b(?:[Nn]ext|[Ll]ast|[Ff]irst|[Ee]very|[Ee]ach) look\b", "check, pass", "until the next look", _BROKER_SIDE
    ),
    "dying": rule(
        r"\b(?:node|nodes|owner|owners|process|broker) (?:has |have |had )?(?:dies?|died)\b|\b(?:has|have|had) died\b",
        "fail, end, stop: whichever it is",
        "the owner has died",
        _BROKER_SIDE,
    ),
    "standing of a replica": rule(
        r"\b(?:[Ii]ts|[Tt]he|[Oo]wn|node's|replica's) standing\b",
        "participation: whether a replica may vote, acknowledge, own",
        "the replica's standing changes",
        _BROKER_SIDE,
    ),
}


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


def places_in(paths: Iterable[str]) -> list[str]:
    """Return where the files under some paths break a rule: path, line, rule and text."""
    wanted = tuple(paths)
    found: list[str] = []
    for name in tracked():
        if not _is_under(name, wanted):
            continue
        for number, line in texts(ROOT / name):
            for title, (pattern, instead, _, folders) in RULES.items():
                is_searched = not folders or name.startswith(folders)
                if is_searched and pattern.search(line) and f"{name}: {line}" not in EXCEPTIONS:
                    found.append(f"{name}:{number}: {title} ({instead}): {line}")
    return found


@pytest.mark.parametrize("title", RULES)
def test_each_rule_finds_its_sample(title: str) -> None:
    assert RULES[title].pattern.search(RULES[title].sample)


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
