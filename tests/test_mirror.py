"""Tests mirror the rooms of the code: the path of a module gives that of its tests.

A large module has a test file of its own name; a small one is tested with its room, through what uses it.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]

TEST_FOLDER = {
    "proto/tidelog_proto": "proto",
    "clients/tidelog": "clients",
    "clients/tidelog_cli": "cli",
    "clients/tidelog_pytest": "plugin",
    "broker/tidelog_broker": "broker",
    "gateway/tidelog_gateway": "gateway",
    "spark/pyspark_tidelog": "spark",
    "loadtest/tidelog_loadtest": "loadtest",
    "demo/tidelog_demo": "demo",
}

OWN_FILE_LINES: Final = 100
"""From this size on a module has a test file of its own."""

EXEMPT = {
    "proto/tidelog_proto/broker_pb2.py": "generated; tests/proto/test_generated.py checks that it is current",
    "proto/tidelog_proto/gossip_pb2.py": "the same",
    "proto/tidelog_proto/websocket_pb2.py": "the same",
    "broker/tidelog_broker/storage/partition/held_epochs.py": "test_partition_log.py sees all of it",
    "broker/tidelog_broker/storage/memory/contents.py": "test_engine_suite.py and test_memory_engine.py see all of it",
    "broker/tidelog_broker/storage/memory/file_copy.py": "test_write_behind.py sees all of it",
    "broker/tidelog_broker/storage/memory/memory_reader.py": "test_engine_suite.py sees all of it",
    "broker/tidelog_broker/storage/memory/memory_store.py": "test_engine_suite.py sees all of it",
    "broker/tidelog_broker/storage/commit_log/log_files.py": "test_tidying.py and test_commit_log.py see all of it",
    "broker/tidelog_broker/storage/commit_log/shared_reader.py": "test_shared_engine.py sees all of it",
    "broker/tidelog_broker/storage/commit_log/tail.py": "test_replay.py and test_log_recovery.py see all of it",
    "broker/tidelog_broker/storage/commit_log/tail_batches.py": "test_shared_store.py sees all of it",
    "broker/tidelog_broker/storage/epoch/segment_extent.py": "test_matching.py and test_projecting.py see all of it",
}
"""Large modules with logic and without a test file of their own, each with the reason."""


def has_logic(path: Path) -> bool:
    """Tell whether a module does more than declare: it has a function whose body is not just a docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not all(
            isinstance(statement, ast.Pass | ast.Raise)
            or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
            for statement in node.body
        ):
            return True
    return False


def expected_test(path: Path) -> Path:
    for package, folder in TEST_FOLDER.items():
        if path.is_relative_to(ROOT / package):
            inside = path.relative_to(ROOT / package)
            return ROOT / "tests" / folder / inside.parent / f"test_{inside.name}"
    raise AssertionError(f"{path} belongs to no known package")


def modules() -> list[Path]:
    return [
        path
        for package in TEST_FOLDER
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name not in {"__init__.py", "__main__.py"}
    ]


def is_large(path: Path) -> bool:
    return path.read_text().count("\n") >= OWN_FILE_LINES and has_logic(path)


def test_every_large_module_has_its_test_file() -> None:
    missing = [
        f"{path.relative_to(ROOT)} -> {expected_test(path).relative_to(ROOT)}"
        for path in modules()
        if is_large(path) and str(path.relative_to(ROOT)) not in EXEMPT and not expected_test(path).is_file()
    ]
    assert not missing, "\n".join(missing)


def test_every_room_with_logic_has_tests() -> None:
    rooms = {expected_test(path).parent for path in modules() if has_logic(path)}
    assert rooms
    assert [str(room.relative_to(ROOT)) for room in rooms if not list(room.glob("test_*.py"))] == []


def test_every_exemption_is_still_needed() -> None:
    stale = [name for name in EXEMPT if not (ROOT / name).is_file() or expected_test(ROOT / name).is_file()]
    assert not stale


def test_definition_of_logic(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('from typing import Protocol\n\nclass P(Protocol):\n    def f(self) -> int:\n        """Say."""\n')
    assert not has_logic(path)
    path.write_text("def f(x: int) -> int:\n    return x + 1\n")
    assert has_logic(path)
