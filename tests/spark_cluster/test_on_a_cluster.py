"""Executors that have the zip and the named libraries, and nothing else: on a standalone cluster, and on a local one.

Each job starts a Java for the driver and one for each executor, so it takes a minute: `make sparkcluster`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import Node, started_node
from tests.spark_cluster.bare_python import bare_python, link_libraries
from tests.spark_cluster.standalone import SparkPrograms, started_master

from tidelog.cluster.contexts import Context, change_contexts, with_context
from tidelog.security import AccessRule
from tidelog.sync import Client
from tidelog_cli.admin.spark_bundle import LIBRARIES, PACKAGES, write_bundle
from tidelog_cli.certs.files import CA, paths
from tidelog_cli.up.local_security import secure

pytestmark = [pytest.mark.spark, pytest.mark.machine, pytest.mark.long]

JOB = Path(__file__).with_name("job.py")
NUMBERS = 1_000
SPLIT = {"maxRecordsPerPartition": str(NUMBERS // 4)}
"""Tasks for all executors, though the topic has one partition."""


@dataclass(frozen=True)
class Spark:
    """Spark's programs, the zip, and a Python for executors that has nothing of the project."""

    programs: SparkPrograms
    bundle: Path
    python: Path

    def run(
        self,
        master: str,
        job: list[object],
        *,
        python: Path | None = None,
        settings: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Any:
        """Submit a job with the zip; `python` in place of the one with the libraries."""
        program = str(python or self.python)
        return self.programs.submit(
            master,
            job,
            settings={"spark.submit.pyFiles": str(self.bundle), **(settings or {})},
            environment={"PYSPARK_DRIVER_PYTHON": program, "PYSPARK_PYTHON": program, **(environment or {})},
        )


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Spark:
    directory = tmp_path_factory.mktemp("spark")
    bundle = write_bundle(directory / "tidelog.zip", replace=False).path
    return Spark(SparkPrograms.made(directory / "programs"), bundle, bare_python(directory / "python", LIBRARIES))


@pytest.fixture(scope="module")
def master(spark: Spark) -> Iterator[str]:
    with started_master(spark.programs, workers=2) as master:
        yield master


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with started_node(tmp_path_factory.mktemp("node")) as node:
        yield node


@dataclass(frozen=True)
class Topics:
    """One with the numbers, and two to write to: for a frame and for a stream."""

    numbers: str
    doubled: str
    streamed: str


def make_topics(client: Client, name: str) -> Topics:
    """Make the topics of a job."""
    topics = Topics(f"{name}-in", f"{name}-out", f"{name}-streamed")
    for topic in (topics.numbers, topics.doubled, topics.streamed):
        client.create_topic(topic, flush="never")
    with client.producer(topics.numbers) as producer:
        producer.send_many([b"%d" % number for number in range(NUMBERS)])
    return topics


def project_path() -> str:
    """Return the path on which this Python finds the project."""
    origins = [spec.origin for package in PACKAGES if (spec := find_spec(package)) is not None]
    return os.pathsep.join({str(Path(origin).parents[1]) for origin in origins if origin})


def numbers(client: Client, topic: str) -> list[int]:
    """Return the numbers in a topic of one partition."""
    found: list[int] = []
    end = client.list_offsets(topic, "latest")[0].offset
    offset = 0
    while offset < end:
        answer = client.fetch(topic, 0, offset)
        found += [
            int(value or b"") for batch in answer.batches for value in batch.columns().column("value").to_pylist()
        ]
        assert answer.next_offset > offset
        offset = answer.next_offset
    return found


def check(client: Client, topics: Topics, told: Any, python: Path) -> None:
    """See that all was read and written, on both executors, by the bare Python with what the zip has."""
    assert (told["rows"], told["total"]) == (NUMBERS, sum(range(NUMBERS)))
    assert sorted(numbers(client, topics.doubled)) == [2 * number for number in range(NUMBERS)]
    assert sorted(numbers(client, topics.streamed)) == list(range(NUMBERS))
    directories, programs, files = zip(*told["tasks"], strict=True)
    assert len(set(directories)) == 2
    assert set(programs) == {str(python)}
    assert all("tidelog.zip/pyspark_tidelog" in file for file in files)


def job(options: dict[str, str], topics: Topics, checkpoint: Path, *, register: bool = True) -> list[object]:
    told = {
        "reading": {**options, **SPLIT, "subscribe": topics.numbers},
        "writing": {**options, "topic": topics.doubled},
        "streaming": {**options, "topic": topics.streamed, "checkpointLocation": str(checkpoint)},
        "register": register,
    }
    return [JOB, json.dumps(told)]


def test_the_zip_is_all_of_the_project_on_driver_and_executors(
    spark: Spark, master: str, node: Node, tmp_path: Path
) -> None:
    with Client(node.address) as client:
        topics = make_topics(client, "zip")
        told = spark.run(master, job({"bootstrap": node.address}, topics, tmp_path / "stream"))
        check(client, topics, told, spark.python)


@contextmanager
def secured(directory: Path) -> Iterator[tuple[Client, str]]:
    """Run a node that asks who calls; yield an administrator, and a key that is kept in the context `prod`."""
    files = secure(directory, ["node"])
    with (
        started_node(directory / "node", *files.config("node")) as node,
        Client(node.address, **files.client_options(node.address)) as admin,
    ):
        for topic in ("secured-in", "secured-out", "secured-streamed"):
            admin.security.grant(AccessRule("spark", ("consume", "produce"), "topic", topic))
        key = admin.security.create_key("spark").api_key
        context = Context((node.address,), api_key=key, ca_file=str(paths(files.certs, CA)[0]))
        change_contexts(lambda kept: with_context(kept, "prod", context, instead=False, use=False))
        yield admin, key


def test_a_context_of_the_driver_works_and_its_secret_is_not_written(
    spark: Spark, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has the project on its path, as if installed, so the source is not registered."""
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "contexts.json"))
    events = tmp_path / "events"
    events.mkdir()
    with secured(tmp_path) as (admin, key):
        topics = make_topics(admin, "secured")
        told = spark.run(
            master,
            job({"context": "prod"}, topics, tmp_path / "stream", register=False),
            settings={
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": events.as_uri(),
            },
            environment={"PYTHONPATH": project_path(), "TIDELOG_CONTEXTS": os.environ["TIDELOG_CONTEXTS"]},
        )
        check(admin, topics, told, spark.python)
    written = [
        path
        for place in (spark.programs.directory, events, tmp_path / "stream")
        for path in place.rglob("*")
        if path.is_file()
    ]
    texts = {path: path.read_bytes() for path in written}
    assert b"Physical Plan" in texts[spark.programs.directory / "driver.log"]
    assert any(b"SparkListenerSQLExecutionStart" in texts[path] for path in texts if path.is_relative_to(events))
    assert any(path.name == "stderr" and texts[path] for path in texts), "executors write logs"
    assert [path for path, text in texts.items() if key.encode() in text] == []


def test_executors_with_nothing_get_the_libraries_as_an_archive(
    spark: Spark, master: str, node: Node, tmp_path: Path
) -> None:
    nothing = bare_python(tmp_path / "python")
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    link_libraries(libraries, LIBRARIES)
    with tarfile.open(tmp_path / "libraries.tar", "w", dereference=True) as archive:
        for path in sorted(libraries.iterdir()):  # Spark refuses an archive with an entry for "."
            archive.add(path, path.name)
    lacking = subprocess.run([nothing, "-c", "import pyarrow"], env={}, capture_output=True, check=False)
    assert b"ModuleNotFoundError" in lacking.stderr
    with Client(node.address) as client:
        topics = make_topics(client, "archive")
        told = spark.run(
            master,
            job({"bootstrap": node.address}, topics, tmp_path / "stream"),
            python=nothing,
            settings={
                "spark.archives": f"{tmp_path / 'libraries.tar'}#libraries",
                "spark.executorEnv.PYTHONPATH": "libraries",
            },
            environment={"PYTHONPATH": str(libraries)},
        )
        check(client, topics, told, nothing)


def test_a_local_cluster(spark: Spark, node: Node, tmp_path: Path) -> None:
    with Client(node.address) as client:
        topics = make_topics(client, "local")
        told = spark.run("local-cluster[2,1,1024]", job({"bootstrap": node.address}, topics, tmp_path / "stream"))
        check(client, topics, told, spark.python)
