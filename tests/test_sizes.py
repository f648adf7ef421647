"""Functions fit a screen, and no file runs away; what a file should hold is a matter of its idea, not of its length."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
FOLDERS = ("proto", "clients", "broker", "gateway", "spark", "loadtest", "demo", "tests")


def sources(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if not path.name.endswith("_pb2.py")]


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_no_file_of_the_javascript_client_is_too_long(folder: str) -> None:
    texts = {path: path.read_text() for path in (ROOT / "clients" / "javascript" / folder).rglob("*.[jt]s")}
    assert texts
    assert [str(path) for path, text in texts.items() if text.count("\n") > FILE_LINES_MAX] == []


def longest_function(text: str) -> int:
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return max(((node.end_lineno or 0) - node.lineno + 1 for node in functions), default=0)


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_is_too_long(folder: str) -> None:
    texts = {path.relative_to(ROOT): path.read_text() for path in sources(folder)}
    assert texts
    assert [str(path) for path, text in texts.items() if text.count("\n") > FILE_LINES_MAX] == []
    assert [str(path) for path, text in texts.items() if longest_function(text) > FUNCTION_LINES_MAX] == []


def test_a_function_is_measured_from_its_first_line_to_its_last() -> None:
    assert longest_function("def f():\n    a = 1\n\n    return a\n\nx = 1\n") == 4
