"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import os
import signal
import ssl
from collections.abc import Callable, Generator, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from tests.tiers import is_left_out, is_slow
from tests.work_units import UnitScheduling, order_of

from tidelog.testing import free_ports

TESTS = Path(__file__).parent
MACHINE_TIMEOUT_S = 300
ONE_PROCESS = {
    "tests/cli/admin/test_spark_bundle.py",
    "tests/clients/consume/test_consumer_parts.py",
    "tests/clients/tables/test_read_arrow.py",
    "tests/clients/tables/test_tables_of_engines.py",
    "tests/e2e/test_derived_batches.py",
    "tests/e2e/test_examples.py",
    "tests/e2e/test_monitoring_files.py",
    "tests/e2e/test_standard_streams.py",
    "tests/test_layering.py",
    "tests/test_one_definition.py",
}
"""Modules whose tests share running processes or parsed sources: one of the test processes runs all tests of such a
module."""


def pytest_configure() -> None:
    """Take interrupts even where whoever started the tests ignores them (a shell's `&` does): tests send some.

    And look for free ports where no other of the processes that share the tests does: it could choose one a second time
    before the node that it is meant for has it, or while that node is down. A machine that is held up makes no example
    of a property slow.
    """
    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for transport in (httpx.HTTPTransport, httpx.AsyncHTTPTransport):
        pytest.MonkeyPatch().setattr(transport, "__init__", _with_shared_authorities(transport.__init__))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    pytest.MonkeyPatch().setattr(free_ports, "PORT_RANGE", free_ports.PORT_RANGE[worker::workers])


def _with_shared_authorities(make: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of a transport of httpx with a shared SSL context, unless it is given one.

    Each client of httpx makes its own, for plain HTTP too, and to load the certificate authorities takes 20 ms.
    """

    @wraps(make)
    def made(transport: object, verify: Any = True, cert: Any = None, trust_env: bool = True, **more: Any) -> None:
        is_default = (verify, cert, trust_env) == (True, None, True)
        make(transport, _authorities() if is_default else verify, cert, trust_env, **more)

    return made


@cache
def _authorities() -> ssl.SSLContext:
    return httpx.create_ssl_context()


@pytest.fixture(autouse=True)
def _contexts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep away from the contexts of whoever runs the tests."""
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path_factory.getbasetemp() / "nobody" / "contexts.json"))


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Put back who handles signals: a command that ends early leaves that to the end of its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that take all of a machine in one of the processes that share the tests (`make test` has several).

    Any other two may run at the same time: they have directories, ports and namespaces of their own. Java starts slowly
    on a busy machine, so these tests have more time, too. The tests of a module in ONE_PROCESS stay together, too.
    First of all hooks of its kind: the one that reads the groups would otherwise have done so before there are any.
    Tests in `tests/tiers.py` are marked as slow. Processes that share the tests run them in the order of `order_of`.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: order_of(item.nodeid.partition("::")[0]))
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("spark") or item.get_closest_marker("machine"):
            item.add_marker(pytest.mark.xdist_group("machine"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(MACHINE_TIMEOUT_S))
        elif (path := item.nodeid.partition("::")[0]) in ONE_PROCESS:
            item.add_marker(pytest.mark.xdist_group(path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling | None:
    """Return who divides the tests among processes with `--dist loadgroup`, see `tests/work_units.py`."""
    return UnitScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files and folders of which `make test`, or `make testslow`, runs no test."""
    if not collection_path.is_relative_to(TESTS):
        return None
    name = collection_path.relative_to(TESTS.parent).as_posix() + ("/" if collection_path.is_dir() else "")
    return True if is_left_out(name, config.option.markexpr) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, which live until the end: it takes a tenth of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection: a pass over them takes 0.3 s."""
    gc.collect()
    gc.freeze()
