"""A limit, an alias and a name are defined once: two definitions could diverge, or be confused."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest
from tests.test_layering import FOLDERS, MAY_IMPORT, module_name, sources

UNITS = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
ARITHMETIC = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Name, ast.operator, ast.unaryop, ast.expr_context)

Definitions = dict[tuple[str, str], list[str]]


def value_of(node: ast.expr) -> str | None:
    """Return a constant's value, or an alias's text, in a form that compares; None for what is neither."""
    parts = list(ast.walk(node))
    if all(isinstance(part, ARITHMETIC) for part in parts):
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        if names <= UNITS.keys():
            return repr(eval(compile(ast.Expression(node), "constant", "eval"), {}, dict(UNITS)))
        return None
    return ast.unparse(node) if isinstance(node, ast.Subscript) else None


def definitions(paths: list[Path]) -> Definitions:
    """Return the modules that define each public name with each value."""
    found: Definitions = defaultdict(list)
    for path in paths:
        for definition in definitions_in(path):
            found[definition].append(module_name(path))
    return found


@cache
def definitions_in(path: Path) -> list[tuple[str, str]]:
    """Return the public names that a module defines, with their values; parsing all modules takes a second."""
    found: list[tuple[str, str]] = []
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.AnnAssign | ast.Assign) or (value := node.value) is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and not target.id.startswith("_") and (text := value_of(value)) is not None:
            found.append((target.id, text))
    return found


def modules_of(package: str) -> list[Path]:
    return [path for path in sources(package) if not path.name.endswith("_pb2.py")]


EXEMPT = {
    ("TOPIC", "'loadtest'"): "the locust file can neither import nor be imported: it is patched from its first line",
}


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_a_limit_or_an_alias_is_defined_once(package: str) -> None:
    own = definitions(modules_of(package))
    below = definitions([path for other in MAY_IMPORT[package] for path in modules_of(other)])
    twice = {
        f"{name} = {text}": [*places, *below.get((name, text), [])]
        for (name, text), places in own.items()
        if len(places) + len(below.get((name, text), [])) > 1 and (name, text) not in EXEMPT
    }
    assert twice == {}


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_a_module_assigns_a_name_once(package: str) -> None:
    """Assignments of a module's body; those in a condition, such as a fallback for a missing import, are left out."""
    twice: dict[str, list[str]] = {}
    for path in modules_of(package):
        body = ast.parse(path.read_text()).body
        targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
        targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
        names = Counter(target.id for target in targets if isinstance(target, ast.Name))
        if found := [name for name, count in names.items() if count > 1]:
            twice[module_name(path)] = found
    assert twice == {}


def classes(paths: list[Path]) -> dict[str, list[str]]:
    """Return the modules that define a public class of each name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module_name(path))
    return found


def test_a_class_of_the_node_has_a_unique_name() -> None:
    found = classes(modules_of("tidelog_broker"))
    assert found
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_the_rules_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_layering.ROOT", tmp_path)
    package = tmp_path / "broker" / "tidelog_broker"
    package.mkdir(parents=True)
    shared = "class Tail: ...\nclass _Own: ...\n"
    (package / "one.py").write_text(
        shared + "LIMIT: Final = 16 * KIB\nKey = tuple[bytes, int]\n_OWN = 1\nAGAIN_S = 1\nclass One: ...\n"
    )
    (package / "two.py").write_text(shared + "LIMIT = 16 * 1024\nKey = tuple[bytes, int]\n_OWN = 1\nAGAIN_S = 2\n")
    assert {name for name, places in classes(sources("tidelog_broker")).items() if len(places) > 1} == {"Tail"}
    assert {name for (name, _), places in definitions(sources("tidelog_broker")).items() if len(places) > 1} == {
        "LIMIT",
        "Key",
    }
