"""Imports run one way. Read from the source, so that an import inside a function counts too."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FOLDERS = {
    "tidelog_proto": "proto",
    "tidelog": "clients",
    "tidelog_cli": "clients",
    "tidelog_pytest": "clients",
    "tidelog_broker": "broker",
    "tidelog_gateway": "gateway",
    "pyspark_tidelog": "spark",
    "tidelog_loadtest": "loadtest",
    "tidelog_demo": "demo",
}

MAY_IMPORT = {
    "tidelog_proto": set[str](),
    "tidelog": {"tidelog_proto"},
    "tidelog_cli": {"tidelog", "tidelog_proto", "pyspark_tidelog"},  # one engine of `sql`, see docs/adr/0098
    "tidelog_pytest": {"tidelog"},
    "tidelog_broker": {"tidelog_proto"},
    "tidelog_gateway": {"tidelog", "tidelog_proto"},
    "pyspark_tidelog": {"tidelog", "tidelog_proto"},
    # These start nodes and gateways as processes, like anyone else.
    "tidelog_loadtest": {"tidelog", "tidelog_cli", "tidelog_proto", "pyspark_tidelog"},
    "tidelog_demo": {"tidelog", "tidelog_cli", "tidelog_proto", "pyspark_tidelog"},
}

ENGINE_SUITE = {f"tidelog.testing.{name}" for name in ("engine_suite", "engine_batches", "failing_files")}
"""Tests of storage engines, which only an author of an engine imports, together with the node."""

CORE = "tidelog_broker.core"
STORAGE = "tidelog_broker.storage"

ROOMS = {
    "tidelog_broker": (
        *(
            "cli",
            "node",
            "server",
            "broker",
            "groups",
            "metadata",
            "rebalance",
            "partition",
            "replication",
            "cluster",
            "wire",
        ),
        *("base", "storage", "core"),
    ),
    "tidelog_proto": ("tls", "auth", "text", "wire", "filters", "batch", "schema", "flow", "process", "*"),
    "tidelog": (
        *("testing", "tables", "sync", "client"),
        *("consume", "groups", "subscriptions", "produce", "admin", "security", "requests", "cluster"),
        *("prometheus", "opentelemetry", "client_options", "credentials", "tls", "auth"),
        *("schemas", "topic_settings", "fetch_options", "model", "rows", "base", "metrics", "errors"),
    ),
    "tidelog_cli": (
        *("__main__", "main", "plugins", "up", "doctor", "top", "parquet", "sql", "admin", "records", "cluster"),
        *("topics", "certs", "base"),
    ),
    "tidelog_loadtest": (
        *(
            "commands",
            "engine_commands",
            "cluster",
            "node",
            "gateway",
            "clients",
            "spark",
            "users",
            "stand",
            "probe",
            "measure",
        ),
    ),
    "tidelog_gateway": (
        *("route_costs", "commands", "workers", "server", "app", "flow", "fast_paths", "description", "ui"),
        *("administration", "sse", "websocket", "publishing", "reading", "offsets", "subscriptions", "json_answers"),
        *("bodies", "callers", "context", "coalescing", "feed", "protocol", "records", "history", "worker_channel"),
        *("metrics", "auth", "http1", "requests", "budget", "problems", "browser_headers", "settings"),
    ),
    STORAGE: (
        "offline",
        "partition",
        "node",
        "engines",
        "memory",
        "rocksdb",
        "commit_log",
        "epoch",
        "segment",
        "directory",
        "engine",
        "io",
    ),
    CORE: ("membership", "groups", "placement", "replication", "security", "*"),
}
"""From the top to the ground; `*` is whatever lies in the package itself. See docs/adr/0066 and 0163."""

TOP_MODULES_MAX = 12
"""So many modules stand at the top of a package with rooms, besides the generated ones."""

WORLD = {
    *("asyncio", "concurrent", "multiprocessing", "selectors", "signal", "socket", "ssl", "subprocess", "threading"),
    *("os", "pathlib", "io", "shutil", "tempfile", "mmap", "fcntl", "sys"),
    *("time", "random", "secrets", "uuid", "logging", "uvloop", "prometheus_client"),
}
"""Modules that the sans-IO core may not import: it gets clocks, randomness, files, sockets and threads as arguments."""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / FOLDERS[package] / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> list[str]:
    """Return the dotted name of everything that a file imports; parsing all files takes a second."""
    found: list[str] = []
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return found


def below(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_a_package_imports_only_lower_packages(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        if module_name(path) not in ENGINE_SUITE
        for name in imports(path)
        if name.split(".")[0] in FOLDERS and name.split(".")[0] not in allowed
    ]
    assert not wrong


def test_the_core_knows_neither_the_shell_nor_the_storage_nor_the_world() -> None:
    core = [path for path in sources("tidelog_broker") if below(module_name(path), CORE)]
    assert core
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in core
        for name in imports(path)
        if name.split(".")[0] in WORLD or (below(name, "tidelog_broker") and not below(name, CORE))
        if name != "tidelog_broker"
    ]
    assert not wrong


def test_the_storage_knows_neither_the_shell_nor_the_event_loop() -> None:
    storage = [path for path in sources("tidelog_broker") if below(module_name(path), STORAGE)]
    assert storage
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in storage
        for name in imports(path)
        if name.split(".")[0] in {"asyncio", "uvloop"}
        or (below(name, "tidelog_broker") and not below(name, STORAGE) and not below(name, CORE))
    ]
    assert not wrong


def room_of(name: str, rooms: tuple[str, ...], package: str) -> int | None:
    """Return how far down a module's room lies in `package`, None for what is not in it."""
    if not below(name, package) or name == package:
        return None
    first = name[len(package) + 1 :].split(".", maxsplit=1)[0]
    return rooms.index(first) if first in rooms else rooms.index("*")


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_no_import_climbs_from_room_to_room(package: str) -> None:
    rooms = ROOMS[package]
    inside = [path for path in sources(package.split(".", maxsplit=1)[0]) if below(module_name(path), package)]
    assert inside
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in inside
        for name in imports(path)
        if (here := room_of(module_name(path), rooms, package)) is not None
        and (there := room_of(name, rooms, package)) is not None
        and there < here
    ]
    assert not wrong


ENGINES = {
    "segment": (f"{STORAGE}.epoch", f"{STORAGE}.segment"),
    "segment-shared": (f"{STORAGE}.commit_log",),
    "memory": (f"{STORAGE}.memory",),
    "rocksdb": (f"{STORAGE}.rocksdb",),
}
"""The folders of each storage engine; everything else uses `storage.engine`. See docs/adr/0182."""

KNOW_ENGINES = {
    **dict.fromkeys((f"{STORAGE}.engines.stores",), "finds the engines"),
    **dict.fromkeys((f"{STORAGE}.offline", "tidelog_broker.cli.log_commands"), "reads segment files of a stopped node"),
    **dict.fromkeys(
        (
            "tidelog_broker.broker",
            "tidelog_broker.base.threads",
            "tidelog_broker.base.descriptors",
            "tidelog_broker.cli.storage_rate",
        ),
        "gives the segment engine its threads, memory and descriptors",
    ),
}


def test_engines_are_used_through_their_interface() -> None:
    folders = [folder for engine in ENGINES.values() for folder in engine]
    assert all((ROOT / "broker").joinpath(*folder.split(".")).is_dir() for folder in folders)
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources("tidelog_broker")
        if not any(below(module_name(path), room) for room in (*folders, *KNOW_ENGINES))
        for name in imports(path)
        if any(below(name, folder) for folder in folders)
    ]
    assert not wrong
    known = {
        module for module in KNOW_ENGINES for path in sources("tidelog_broker") if below(module_name(path), module)
    }
    assert known == set(KNOW_ENGINES)


def test_every_room_is_in_the_order_and_few_modules_are_outside() -> None:
    package = ROOT / "broker" / "tidelog_broker"
    assert {path.name for path in package.iterdir() if (path / "__init__.py").is_file()} <= set(ROOMS["tidelog_broker"])
    assert len(list(package.glob("*.py"))) <= 3
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    assert modules <= {f"{room}.py" for room in ROOMS["tidelog_broker"]}


@pytest.mark.parametrize("package", sorted({name for name in ROOMS if "." not in name} - {"tidelog_broker"}))
def test_modules_are_in_rooms_and_few_stand_at_the_top(package: str) -> None:
    folder = ROOT / FOLDERS[package] / package
    rooms = {path.name for path in folder.iterdir() if (path / "__init__.py").is_file()}
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.endswith("_pb2")} - {"__init__"}
    named = set(ROOMS[package]) - {"*"}
    assert rooms <= named
    assert named <= rooms | modules
    assert "*" in ROOMS[package] or modules <= named
    assert len(modules) < TOP_MODULES_MAX


GATEWAY_GROUND = 5
"""Number of the gateway's lowest folders, which every folder above them may import."""


def gateway_plan() -> dict[str, set[str]]:
    """Return the rooms of the gateway in the order of docs/gateway-code.md, each with those that it may import."""
    plan: dict[str, set[str]] = {}
    rows = re.findall(r"^\| `(\w+)/?` \|.*\| ([^|]*)\|$", (ROOT / "docs" / "gateway-code.md").read_text(), re.MULTILINE)
    for room, allowed in reversed(rows):
        ground = set([*plan][:GATEWAY_GROUND])
        plan[room] = set(plan) if allowed.strip() == "all" else ground | set(re.findall(r"`(\w+)`", allowed))
    return {room: plan[room] for room in reversed(plan)}


def test_rooms_of_the_gateway_import_what_its_page_allows() -> None:
    package = "tidelog_gateway"
    plan = gateway_plan()
    assert tuple(plan) == ROOMS[package]
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}, which docs/gateway-code.md does not allow for `{room}`"
        for path in sources(package)
        if (room := module_name(path).partition(".")[2].partition(".")[0])
        for name in imports(path)
        if below(name, package) and (other := name.partition(".")[2].partition(".")[0])
        if other != room and other not in plan[room]
    }
    assert not wrong


def test_the_floor_plan_names_each_room_of_the_gateway_once() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("### Folders of the gateway")[2].partition("###")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    assert tuple(name for cell in cells for name in re.findall(r"`(\w+)/?`", cell)) == ROOMS["tidelog_gateway"]


LEVELS_MAX = {"tidelog": 10}
"""So many modules stand above each other at most: each imports the next at run time."""


def names_that_run(tree: ast.Module) -> set[str]:
    """Return the names that a module uses outside of annotations, which are never evaluated."""
    annotations = [getattr(node, field, None) for node in ast.walk(tree) for field in ("annotation", "returns")]
    unread = {id(node) for each in annotations if each is not None for node in ast.walk(each)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in unread}


def imported_at_run_time(path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules that a file imports for more than the names in annotations."""
    tree = ast.parse(path.read_text())
    used = names_that_run(tree)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if path.name == "__init__.py" or (alias.asname or alias.name) in used:
                    found |= {name if name in modules else node.module} & set(modules)
    return found


@pytest.mark.parametrize("package", sorted(LEVELS_MAX))
def test_a_package_has_few_levels(package: str) -> None:
    modules = {module_name(path): path for path in sources(package)}
    graph = {
        name: {other for other in imported_at_run_time(path, modules) if not name.startswith(f"{other}.")} - {name}
        for name, path in modules.items()
    }
    levels: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        levels[name] = 1 + max((levels[other] for other in graph[name]), default=0)
    deepest = max(levels, key=lambda name: levels[name])
    assert levels[deepest] <= LEVELS_MAX[package], deepest
    assert levels["tidelog.errors"] == 1


def test_an_import_for_annotations_alone_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("from a.b import C, D\nfrom a import e\n\ndef f(c: C) -> D:\n    return e.g(c)\n")
    assert imported_at_run_time(path, {"a", "a.b", "a.e"}) == {"a.e"}


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """Imports for the type checker alone count too: they say who knows whom."""
    modules = {module_name(path): path for path in sources(package)}
    graph = {
        # A package's __init__ stands above its modules; a module that names its package means a sibling.
        name: {
            other for other in imports(path) if other in modules and other != name and not name.startswith(f"{other}.")
        }
        for name, path in modules.items()
    }
    assert cycle_in(graph) == []
    assert cycle_in({"a": {"b"}, "b": {"a"}})


def test_the_rules_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    culprit = tmp_path / "broker" / "tidelog_broker" / "core" / "culprit.py"
    culprit.parent.mkdir(parents=True)
    culprit.write_text("def f():\n    import time\n    from ..storage import segment\n    from tidelog import Client\n")
    climber = culprit.parents[1] / "wire" / "climber.py"
    climber.parent.mkdir()
    climber.write_text("from tidelog_broker.node.node import Node\n")
    user = culprit.parents[1] / "partition" / "user.py"
    user.parent.mkdir()
    user.write_text("from tidelog_broker.storage.epoch.epoch_log import EpochLog\n")
    for folder in (name for engine in ENGINES.values() for name in engine):
        (tmp_path / "broker").joinpath(*folder.split(".")).mkdir(parents=True)
    page = tmp_path / "gateway" / "tidelog_gateway" / "ui" / "page.py"
    page.parent.mkdir(parents=True)
    page.write_text("from tidelog_gateway.auth.credentials import UserPassword\n")
    plan = tmp_path / "docs" / "gateway-code.md"
    plan.parent.mkdir()
    plan.write_text((ROOT / "docs" / plan.name).read_text())
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    found = set(imports(culprit))
    assert {"time", "tidelog_broker.storage", "tidelog_broker.storage.segment", "tidelog.Client"} <= found
    with pytest.raises(AssertionError):
        test_the_core_knows_neither_the_shell_nor_the_storage_nor_the_world()
    with pytest.raises(AssertionError):
        test_a_package_imports_only_lower_packages("tidelog_broker")
    with pytest.raises(AssertionError):
        test_no_import_climbs_from_room_to_room("tidelog_broker")
    with pytest.raises(AssertionError, match=r"user\.py imports tidelog_broker\.storage\.epoch"):
        test_engines_are_used_through_their_interface()
    with pytest.raises(AssertionError, match="does not allow for `ui`"):
        test_rooms_of_the_gateway_import_what_its_page_allows()


SPLIT = {
    "tidelog.tables.read_arrow.RangeOptions": "the options of a client, and those of a range",
    "tidelog.testing.failing_files.FailingFileSystem": "real files, of which some operations fail",
    "tidelog.testing.failing_files._FailingFile": "the same",
    "tidelog_broker.replication.driver_ports.Neighbours": "a protocol that says more than another one",
    "tidelog_broker.storage.memory.write_behind.WriteBehindEngine": "the memory engine with a file copy of each store",
    "tidelog_broker.storage.memory.write_behind.WriteBehindStore": "the same",
    "tidelog_gateway.budget.request_budget.RequestBudget": "the admission of requests, over the shared count",
    "tidelog_gateway.bodies.arrow_body.WrongColumns": "an error that one caller handles in another way",
    "tidelog_gateway.budget.response_budget.ResponseBudget": "the admission of answers, over the shared count",
    "tidelog_gateway.budget.response_budget.Receiver": "a protocol that says more than another one",
    "tidelog_loadtest.probe.owner.OwnerServer": "the probe of a cluster is that of one node, and followers",
    "tidelog_loadtest.probe.owner.OwnerProtocol": "the same",
}
"""Classes that inherit one of another file, each with the reason. Composition splits a file, inheritance does not."""


INTERFACE = f"{STORAGE}.engine"
"""Classes of this room are implemented by every engine."""


def inherited(path: Path) -> Iterator[str]:
    """Yield the classes of a file that inherit a class of another file of this project."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = {base.id for base in node.bases if isinstance(base, ast.Name)}
            modules = {imported[name] for name in names if name in imported}
            if any(module.split(".")[0] in FOLDERS and not below(module, INTERFACE) for module in modules):
                yield f"{module_name(path)}.{node.name}"


def test_no_class_is_split_over_files_by_inheritance() -> None:
    """Errors may inherit errors, and what is on the wire what is on the wire."""
    found = {
        name
        for package in FOLDERS
        for path in sources(package)
        if not below(module_name(path), "tidelog_broker.wire")
        for name in inherited(path)
        if not name.endswith("Error")
    }
    assert found == SPLIT.keys(), "a new one, or a removed one"
