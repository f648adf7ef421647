"""Names that no shipped code uses are dead: they are deleted, or moved to the tests if only tests need them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("proto", "clients", "broker", "gateway", "spark", "loadtest", "demo")

CALLED_BY_OTHERS = {
    "datagram_received": "asyncio, of a protocol",
    "can_write_eof": "websockets, of a transport",
    "Ramp": "locust, of a locust file",
    "get_fragments": "pyarrow, of a Dataset; the method of its base class would return a file that does not exist",
    "to_reader": "DuckDB, of a pyarrow scanner",
    "makefile": "http.client, of a socket",
    "render": "rich, of a column",
    "streamReader": "Spark, of a source",
    "streamWriter": "Spark, of a source",
    "initialOffset": "Spark, of a stream",
    "getDefaultReadLimit": "Spark, of a stream",
    "reportLatestOffset": "Spark, of a stream",
    "prepareForTriggerAvailableNow": "Spark, of a stream",
    "action_clear_filter": "textual, of an application",
    "action_filter": "textual, of an application",
    "action_internal": "textual, of an application",
    "action_interrupt": "textual, of an application",
    "action_pause": "textual, of an application",
    "action_sort": "textual, of an application",
    "action_tab": "textual, of an application",
    "compose": "textual, of an application",
    "on_input_changed": "textual, of an application",
    "on_input_submitted": "textual, of an application",
    "on_mount": "textual, of an application",
    "on_tabbed_content_tab_activated": "textual, of an application",
}
"""Names that a library calls, each with who does."""

PROPERTIES = {"property", "cached_property", "classmethod", "staticmethod"}


def sources() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if not path.name.endswith("_pb2.py")]


def defined(text: str) -> list[str]:
    """Return the functions and classes of a module that are reached only from outside."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("__")
        and all(isinstance(one, ast.Name) and one.id in PROPERTIES for one in node.decorator_list)
    ]


def dead(texts: list[str]) -> set[str]:
    named = Counter(word for text in texts for word in re.findall(r"\b\w+\b", text))
    called_by_pytest = ("test_",)
    names = {name for text in texts for name in defined(text) if named[name] == 1}
    return {name for name in names if not name.startswith(called_by_pytest)}


def test_each_definition_is_used() -> None:
    texts = [path.read_text() for path in sources()]
    assert texts
    assert dead(texts) == CALLED_BY_OTHERS.keys()


def test_a_function_without_a_caller_is_found() -> None:
    assert dead(["def f():\n    g()\n\ndef g():\n    pass\n", "class C:\n    @property\n    def h(self): ...\n"]) == {
        *("f", "C", "h")
    }
