"""The documentation names only files, names and commands that exist.

Blocks marked `bash` or `python` are run: in the README by tests/e2e/test_readme.py, in the guides by
tests/e2e/test_guides.py, in the pages on Spark by tests/spark/test_spark_page.py, in the page on security by
tests/e2e/test_security_page.py, in the page on WebSocket by tests/gateway/websocket/test_documentation.py, in the
page on streams by tests/gateway/sse/test_documentation.py, in the page on publishing by
tests/gateway/publishing/test_documentation.py, in the page on HTTP by tests/e2e/test_http_page.py, in other pages of
`RUN_PAGES` by tests/e2e/test_examples.py. The rest has no such blocks.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from tidelog_cli.main import build_app

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
GUIDES = ("groups.md", "guarantees.md", "from-kafka.md", "deduplication.md")
SPARK_PAGES = (ROOT / "docs" / "spark.md", ROOT / "docs" / "spark-typed.md")
SECURITY_PAGE = ROOT / "docs" / "security.md"
EXAMPLES = (
    *("analytics.md", "client.md", "cookbook.md", "install.md", "sql.md", "testing.md"),
    *("typed-filters.md", "typed-topics.md"),
)
WEBSOCKET_PAGE = ROOT / "docs" / "websocket.md"
STREAMS_PAGE = ROOT / "docs" / "streams.md"
PUBLISHING_PAGE = ROOT / "docs" / "publishing-over-http.md"
HTTP_PAGE = ROOT / "docs" / "http.md"
WORDS_MAX = 2500
REFERENCES = {"configuration.md", "errors.md", "formats.md", "http.md", "metrics.md", "mutants.md", "performance.md"}
RUN_PAGES = {
    ROOT / "README.md",
    *SPARK_PAGES,
    SECURITY_PAGE,
    WEBSOCKET_PAGE,
    STREAMS_PAGE,
    PUBLISHING_PAGE,
    HTTP_PAGE,
    *(ROOT / "docs" / name for name in (*EXAMPLES, *GUIDES)),
}

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
PATH_LIKE = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|svg|proto)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    prose = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def commands() -> dict[str, set[str]]:
    """Return the command's sub-commands, each with its own."""
    group = typer.main.get_command(build_app())
    return {name: set(getattr(command, "commands", {})) for name, command in getattr(group, "commands", {}).items()}


def invocations(page: Path) -> set[tuple[str, str | None]]:
    """Return every `tidelog COMMAND [WORD]` that a page shows in code."""
    text = page.read_text()
    code = [
        *CODE_SPAN.findall(FENCE.sub("", text)),
        *(block for language, block in FENCE.findall(text) if language == "bash"),
    ]
    shown = r"(?:^|[\s|(])tidelog ([a-z]+)(?: ([a-z]+(?:-[a-z]+)*))?(?![\w.:=])"
    found = re.findall(shown, "\n".join(code), re.MULTILINE)
    return {(command, word or None) for command, word in found}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_resolves(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_snippets_that_say_they_run_are_run(page: Path) -> None:
    languages = {language for language, _ in FENCE.findall(page.read_text())}
    assert page in RUN_PAGES or not languages & {"bash", "sh", "shell", "python"}
    assert "" not in languages, "say what a block is: bash, python, text, toml"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_exist(page: Path) -> None:
    known = commands()
    unknown = [
        f"tidelog {command} {word or ''}"
        for command, word in invocations(page)
        if command not in known or (known[command] and word is not None and word not in known[command])
    ]
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    code = "\n".join([*CODE_SPAN.findall(text), *(block for _, block in FENCE.findall(text))])
    assert set(re.findall(r"(?:^|&& )make ([a-z]+)(?=$| [A-Z&]| {2})", code, re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_that_are_named_exist(page: Path) -> None:
    named = {
        path
        for span in CODE_SPAN.findall(FENCE.sub("", page.read_text()))
        for path in PATH_LIKE.findall(span)
        if span == path
    }
    folders = ("broker", "broker/tidelog_broker", "proto", "clients", "gateway", "gateway/tidelog_gateway", "spark")
    places = (ROOT, page.parent, *(ROOT / folder for folder in folders))
    modules = {path.name for path in (ROOT / "broker").rglob("*.py")}  # a name alone: of the room that is spoken of
    missing = [path for path in sorted(named) if not any((place / path).exists() for place in places)]
    assert [path for path in missing if path not in modules] == []


def created_topics() -> Iterator[tuple[str, str, str]]:
    """Yield page, name and settings of each topic that a block which is run creates."""
    for page in RUN_PAGES:
        for language, code in FENCE.findall(page.read_text()):
            if language == "python":
                yield from (
                    (page.name, *call) for call in re.findall(r"create_topic\(\"([^\"]+)\"(?:, )?([^)]*)\)", code)
                )
            elif language == "bash":
                yield from ((page.name, *call) for call in re.findall(r"topic create (\S+) ?([^\n|&]*)", code))


def named_partitions() -> Iterator[tuple[str, str]]:
    """Yield name and number of partitions of each topic of an example for which both are given, run or not."""
    forms = (
        r"create_topic\(\"([^\"]+)\", partitions=(\d+)",
        r"topic create (\S+) --partitions (\d+)",
        r"\"name\": \"([^\"]+)\", \"partitions\": (\d+)",
    )
    for page in PAGES:
        for _, code in FENCE.findall(page.read_text()):
            for form in forms:
                yield from re.findall(form, code)


def test_topics_of_examples_may_exist() -> None:
    assert [each for each in created_topics() if "exist_ok=True" not in each[2] and "--exist-ok" not in each[2]] == []


def test_examples_that_create_one_topic_agree_on_its_settings() -> None:
    wanted: dict[str, set[str]] = {}
    for _, name, settings in created_topics():
        words = settings.replace("--exist-ok", "").replace("--", "").replace("exist_ok=True", "").replace("=", " ")
        wanted.setdefault(name, set()).add(" ".join(words.replace(",", " ").split()))
    assert {name: settings for name, settings in wanted.items() if len(settings) > 1} == {}


def test_examples_agree_on_the_partitions_of_a_topic() -> None:
    wanted: dict[str, set[str]] = {}
    for name, count in named_partitions():
        wanted.setdefault(name, set()).add(count)
    assert wanted["orders"] == {"2"}
    assert {name: counts for name, counts in wanted.items() if len(counts) > 1} == {}


def test_each_group_of_the_examples_belongs_to_one_page() -> None:
    used: dict[str, set[str]] = {}
    for page in RUN_PAGES - {HTTP_PAGE, STREAMS_PAGE, WEBSOCKET_PAGE}:  # their tests start from an empty node
        for language, code in FENCE.findall(page.read_text()):
            if language in {"bash", "python"}:
                for name in re.findall(r"(?:\bgroup=|\bGroup\(|--group )\"?([\w-]+)", code):
                    used.setdefault(name, set()).add(page.name)
    del used["group"]  # a variable
    assert {name: pages for name, pages in used.items() if len(pages) > 1} == {}


def test_groups_that_an_example_asks_about_are_joined_on_its_page() -> None:
    for page in RUN_PAGES:
        code = "\n".join(code for language, code in FENCE.findall(page.read_text()) if language == "python")
        joined = set(re.findall(r"(?:\bgroup=|\bGroup\()\"([\w-]+)\"", code))
        asked = set(re.findall(r"groups\.(?:describe|lag|reset|delete)\(\"([\w-]+)\"", code))
        assert asked <= joined, page.name


def test_every_page_is_in_an_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    decisions = (ROOT / "docs" / "adr" / "README.md").read_text()
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    records = [page.name for page in (ROOT / "docs" / "adr").glob("[0-9]*.md")]
    assert [name for name in pages if f"({name})" not in index] == []
    assert [name for name in records if f"({name})" not in decisions] == []


def test_every_target_and_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [name for name in (*targets, *commands()) if name != "help" and f"`{name}`" not in readme] == []


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.svg")), ids=page_id)
def test_pictures_are_sound_and_fit_light_and_dark(picture: Path) -> None:
    root = ET.parse(picture).getroot()
    assert root.tag.endswith("svg")
    assert root.find("{http://www.w3.org/2000/svg}desc") is not None
    assert "prefers-color-scheme: dark" in picture.read_text()


def test_every_module_of_the_node_has_a_room() -> None:
    told = (ROOT / "docs" / "architecture.md").read_text().partition("### Folders of the node")[2]
    rooms = re.findall(r"^\| (`[^|]+) \|", told, re.MULTILINE)
    named = [name.rstrip("/") for room in rooms for name in re.findall(r"`([\w/]+)`", room)]
    node = ROOT / "broker" / "tidelog_broker"
    there = {path.stem for path in node.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert sorted(named) == sorted(there - {"__init__"}), "each once"


@pytest.mark.parametrize("page", [path for path in PAGES if path.parent == ROOT / "docs"], ids=page_id)
def test_only_references_are_long(page: Path) -> None:
    assert page.name in REFERENCES or len(page.read_text().split()) <= WORDS_MAX
