"""One Spark and one node for all tests that are marked `spark`, and a PATH without any Java for some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pyspark_tidelog import local_spark
from pyspark_tidelog.task import KEPT
from tidelog.sync import Client

READY_TIMEOUT_S = 60
SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
needs_spark_4_1 = pytest.mark.skipif(SPARK < (4, 1), reason="needs Spark 4.1")
needs_spark_4_2 = pytest.mark.skipif(SPARK < (4, 2), reason="needs Spark 4.2")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let pass what Spark itself warns of, in its own modules, about the machine's pandas."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
            )
            if SPARK < (4, 1):  # it leaves sockets to be closed by the garbage collector
                item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
                item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@dataclass(frozen=True)
class Node:
    """A node of the tests' own, as a process."""

    address: str
    management_port: int

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.management_port}/metrics", timeout=READY_TIMEOUT_S
        ) as page:
            lines = page.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.fixture(autouse=True)
def _no_kept_client() -> Iterator[None]:
    """Close what tasks keep that a test has run in this process."""
    yield
    KEPT.close()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with started_node(tmp_path_factory.mktemp("node")) as node:
        yield node


@contextmanager
def started_node(data: Path, *options: str) -> Iterator[Node]:
    """Run a node in a directory, as a process."""
    data.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tidelog_cli", "node", *options, "--data", str(data / "data")]
    with (data / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--port", "0", "--management-port", "0"],
            env={**os.environ, "TIDELOG_NODE_RETENTION_INTERVAL_MS": "50"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (data / "log").read_text()
        ready = json.loads(line)
        assert ready["event"] == "ready"
        yield Node(f"127.0.0.1:{ready['port']}", ready["management_port"])
    finally:
        process.terminate()
        process.wait(READY_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with Client(node.address) as client:
        yield client


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_spark("tests", memory_mb=768)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def path_without_java(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a PATH on which every program is, except a Java."""
    directory = tmp_path_factory.mktemp("bin")
    for place in os.get_exec_path():
        for program in sorted(Path(place).glob("*")) if Path(place).is_dir() else []:
            if program.name != "java" and not (directory / program.name).exists():
                (directory / program.name).symlink_to(program)
    return str(directory)
