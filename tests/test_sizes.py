"""Long files and functions are listed with the reason why they are not divided; a list has no fixed length."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE_LINES_MAX = 600
"""Of a file that is not listed."""
FUNCTION_LINES_MAX = 80
"""Of a function that is not listed."""
LONG_FILES = {
    "clients/tidelog/client.py": "every method of the public class, most of them docstrings",
    "clients/tidelog/model.py": "the values that the API returns, most of them docstrings",
    "clients/tidelog/consume/consumer.py": "every method of the public class, most of them docstrings",
    "clients/tidelog/subscriptions/subscription_keeper.py": "one state machine: subscribe, receive, move, resubscribe",
    "broker/tidelog_broker/wire/connection.py": "one connection from its handshake to its end",
    "broker/tidelog_broker/core/replication/replica.py": "one replica: each event is passed to its handler",
    "broker/tidelog_broker/replication/driver.py": "one queue of writes: each is begun, completed and reported here",
    "broker/tidelog_broker/core/replication/backfill.py": "one fetch of missing epochs, from its choice to its end",
    "gateway/tidelog_gateway/server/http_protocol.py": "one HTTP connection from its first byte to its last answer",
    "broker/tidelog_broker/broker.py": "the parts of a node, connected in one place",
    "broker/tidelog_broker/cluster/incarnation_registry.py": "one protocol: announcing, comparing and refusing",
    "clients/tidelog/testing/engine_suite.py": "one test for each promise of the interface",
    "clients/tidelog/cluster/routing.py": "one path of a request: route, connection, retry",
    "broker/tidelog_broker/wire/links.py": "one link to a node: connect, authenticate, send, answer",
    "clients/tidelog/produce/producer.py": "every method of the public class, most of them docstrings",
}
LONG_FUNCTIONS: dict[tuple[str, str], str] = {}
FOLDERS = ("proto", "clients", "broker", "gateway", "spark", "loadtest", "demo", "tests")


def sources(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if not path.name.endswith("_pb2.py")]


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_no_file_of_the_javascript_client_is_too_long(folder: str) -> None:
    texts = {path: path.read_text() for path in (ROOT / "clients" / "javascript" / folder).rglob("*.[jt]s")}
    assert texts
    assert [str(path) for path, text in texts.items() if text.count("\n") > FILE_LINES_MAX] == []


def function_lines(text: str) -> dict[str, int]:
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines: dict[str, int] = {}
    for node in functions:
        lines[node.name] = max(lines.get(node.name, 0), (node.end_lineno or 0) - node.lineno + 1)
    return lines


@pytest.mark.parametrize("folder", FOLDERS)
def test_long_files_and_functions_are_listed_with_a_reason(folder: str) -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sources(folder)}
    assert texts
    long_files = {path for path, text in texts.items() if text.count("\n") > FILE_LINES_MAX}
    assert long_files <= LONG_FILES.keys(), "divide the file by its ideas, or list it with the reason why it is one"
    long_functions = {
        (path, name)
        for path, text in texts.items()
        for name, lines in function_lines(text).items()
        if lines > FUNCTION_LINES_MAX
    }
    assert long_functions <= LONG_FUNCTIONS.keys(), "divide the function, or list it with the reason why it is one"


def test_listed_files_and_functions_are_long() -> None:
    short = [path for path in LONG_FILES if (ROOT / path).read_text().count("\n") <= FILE_LINES_MAX * 9 // 10]
    short += [
        f"{path}: {name}"
        for path, name in LONG_FUNCTIONS
        if function_lines((ROOT / path).read_text())[name] <= FUNCTION_LINES_MAX * 9 // 10
    ]
    assert short == [], "remove these from the list"


def test_a_function_is_measured_from_its_first_line_to_its_last() -> None:
    assert function_lines("def f():\n    a = 1\n\n    return a\n\nx = 1\n") == {"f": 4}
