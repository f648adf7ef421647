"""Every example of `docs/http.md`, run in its order, and its tables, compared with the description of the API.

The blocks that start something are started by this module on free ports; 127.0.0.1:8080 is the gateway that was started
last. The Python examples are one program, as the page says.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.test_readme import FENCE, stack

from tidelog_gateway.app import create_app
from tidelog_gateway.settings import GatewaySettings

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
STARTS = re.compile(r"tidelog up( --secure)?\n")
READS = ("/v1/topics/{topic}/partitions/{partition}/records", "/v1/topics/{topic}/records")
NOT_DESCRIBED = {"GET /v1/ws", "GET /docs", "GET /openapi.json", "GET /ui"}
EXAMPLE_S_MAX = 60


def outputs(folder: Path, started: contextlib.ExitStack) -> list[tuple[str, str, str]]:
    """Run the page; return the code of each example, its output, and the output that the page shows."""
    program: dict[str, Any] = {"__name__": "example"}
    started.callback(close_clients, program)
    address, done = "", list[tuple[str, str, str]]()
    for language, block in FENCE.findall(PAGE):
        if language == "text":
            done[-1] = (*done[-1][:2], block)
            continue
        if language == "console":  # an alternative to other examples of the page
            continue
        if start := STARTS.fullmatch(block):
            place = folder / f"stack{len(done)}"
            place.mkdir()
            options = ["--secure"] if start[1] else []
            address = started.enter_context(stack(place, *options))["http_url"].partition("://")[2]
            started.enter_context(contextlib.chdir(place))
            continue
        code = block.replace("127.0.0.1:8080", address)
        done.append((block, ran(code) if language == "bash" else executed(code, program), ""))
    return done


def close_clients(program: dict[str, Any]) -> None:
    for value in program.values():
        if isinstance(value, httpx.Client):
            value.close()


def ran(code: str) -> str:
    command = ["bash", "-euo", "pipefail", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=EXAMPLE_S_MAX)
    assert ended.returncode == 0, f"{code}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def executed(code: str, program: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "docs/http.md", "exec"), program)  # the page's own examples
    return printed.getvalue()


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_examples_print_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "contexts.json"))
    with contextlib.ExitStack() as started:
        done = outputs(tmp_path, started)
    assert len(done) > 30
    for code, printed, shown in done:
        lines = [line for line in printed.splitlines() if line.strip()]
        for line, expected in zip(lines, filter(str.strip, shown.splitlines()), strict=True):
            pattern = expected.replace("[", "[[]").replace("?", "[?]").replace("*", "[*]").replace("…", "*")
            assert fnmatchcase(line, pattern), f"{code}\nprints\n{line}\nand not\n{expected}"


def described() -> dict[str, dict[str, Any]]:
    """Return the operations of the description by method and path."""
    paths = create_app(GatewaySettings()).openapi()["paths"]
    return {f"{method.upper()} {path}": each for path, methods in paths.items() for method, each in methods.items()}


def test_the_tables_list_every_route() -> None:
    routes = PAGE[PAGE.index("## Routes") : PAGE.index("## Topics")]
    listed = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", routes, re.MULTILINE)
    assert sorted(listed) == sorted({*described(), *NOT_DESCRIBED})


def test_the_tables_name_every_parameter_of_reads() -> None:
    section = PAGE[PAGE.index("## Reading a partition") : PAGE.index("`Accept` chooses")]
    cells = "".join(re.findall(r"^\|([^|]*)\|", section, re.MULTILINE))
    operations = [described()[f"GET {path}"] for path in READS]
    names = {each["name"] for operation in operations for each in operation["parameters"] if each["in"] == "query"}
    assert set(re.findall(r"`(\w+)`", cells)) == names


def requests() -> set[tuple[str, str]]:
    """Return method and path of each request in the examples."""
    found = set[tuple[str, str]]()
    for language, block in FENCE.findall(PAGE):
        if language == "bash":
            for command in re.split(r"\n(?=curl)", block.replace("\\\n", " ")):
                if url := re.search(r"https?://127\.0\.0\.1:8080(/[^\s'?]*)", command):
                    method = re.search(r" -X (\w+)", command)
                    found.add((method[1] if method else "POST" if "--json" in command else "GET", url[1]))
        elif language == "python":
            calls = re.findall(r'\.(get|post|put|patch|delete)\(f?"(/[^"]*)"', block)
            found |= {(method.upper(), path) for method, path in calls}
    assert len(found) > 40
    return found


def test_every_route_is_in_an_example() -> None:
    shown = requests()
    for route in described():
        method, _, path = route.partition(" ")
        pattern = re.sub(r"\\\{\w+\\\}", r"[^/]+", re.escape(path))
        assert any(each == method and re.fullmatch(pattern, at) for each, at in shown), f"{route} has no example"
