"""`tidelog bench spark`: Spark on a topic, compared with Spark on Parquet files of the same rows, on one machine.

One node, one local Spark. The topic is filled once and written to Parquet files (uncompressed) by Spark; then every job
runs once unmeasured and once per round, so that all run under similar conditions. Except for `write`, rows go to
Spark's `noop` sink, which accepts every column of every row and stores none. The jobs read or write:

scan, parquet scan         all columns of all rows
empty                      as many rows of a Python source that generates them: the cost of Spark's Python data sources
tuples                     the topic's rows as Python tuples, the usual form of a source; a tenth of the rows
columns, parquet columns   partition and offset of all rows
empty columns              these columns from the source that generates rows
offset, time               about a hundredth of the rows, selected with options for offsets or times
write                      keys and values of the Parquet files to another topic
rows                       the same rows, not written: the cost of the input of `write`
typed, parquet typed       all fields of as many rows of a typed topic (`typed_rows.py`), and of its own Parquet files
typed columns, parquet typed columns   two fields of all of these rows

CPU seconds are those of Java, of Spark's Python workers, and of the node; bytes are those that the node sent.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from rich.table import Table

from pyspark_tidelog import local_spark
from tidelog import Client
from tidelog.sync import Client as SyncClient
from tidelog_cli.up.child_processes import running
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.footprint import cpu_s
from tidelog_loadtest.measure.process_tree import JavaWatch
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_loadtest.spark.sources import EmptySource, TupleSource
from tidelog_loadtest.spark.typed_rows import SOME, TIME, TYPED_SCHEMA, typed_rows
from tidelog_loadtest.stand.payloads import value_batches

JOBS: Final = (
    "scan",
    "parquet scan",
    "empty",
    "tuples",
    "columns",
    "parquet columns",
    "empty columns",
    "offset",
    "time",
    "write",
    "rows",
    "typed",
    "parquet typed",
    "typed columns",
    "parquet typed columns",
)
RATIOS: Final = (
    ("scan", "parquet scan", 0.9),
    ("scan", "empty", None),
    ("columns", "parquet columns", 0.6),
    ("columns", "empty columns", None),
    ("scan", "tuples", 6.0),
    ("write", "rows", None),
    ("typed", "parquet typed", None),
    ("typed columns", "parquet typed columns", None),
    ("typed columns", "typed", None),
)
"""Pairs of jobs whose rates are compared, with the target of the ratio; None for no target."""
WRITE_AIM: Final = 1_500_000
"""Target of the job `write`, in rows per second."""
SHARE: Final = {"tuples": 10, "offset": 100}
"""By job: one of this many rows is selected. Other jobs select all rows, except `time` (`SparkResult.early_rows`)."""
BATCH_RECORDS: Final = 10_000
TYPED: Final = "typed"
"""The typed topic, and a part of the names of the jobs that read its rows."""
_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """The parameters of the benchmark.

    Attributes:
        records: rows in the topic.
        size_bytes: size of a value.
        partitions: partitions of each topic.
        threads: number of concurrent Spark tasks.
        rounds: number of rounds.
        only: names of the jobs to run; empty for all.
        warms_up: whether all jobs run once unmeasured first.
        data: directory for temporary files.
    """

    records: int = 10_000_000
    size_bytes: int = 100
    partitions: int = 4
    threads: int = 2
    rounds: int = 3
    only: tuple[str, ...] = ()
    warms_up: bool = True
    data: Path | None = None

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs to run, in order."""
        return tuple(job for job in JOBS if not self.only or job in self.only)

    @property
    def has_typed(self) -> bool:
        """Whether a job reads the typed topic."""
        return any(TYPED in job for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Spent:
    """One run of a job: its duration, CPU seconds by process, and bytes sent by the node."""

    elapsed_s: float
    java_s: float
    python_s: float
    node_s: float
    read_bytes: int


@dataclass(slots=True)
class SparkResult:
    """The measured runs of each job."""

    plan: SparkPlan
    runs: dict[str, list[Spent]] = field(default_factory=dict)
    early_rows: int = 0
    """The number of rows that the job `time` selects."""

    def rows(self, job: str) -> int:
        """Return the number of rows that a job passes to its sink."""
        return self.early_rows if job == "time" else self.plan.records // SHARE.get(job, 1)

    def rate(self, job: str) -> float:
        """Return rows per second: median of the rounds."""
        return self.rows(job) / statistics.median(run.elapsed_s for run in self.runs[job])

    def ratio(self, job: str, other: str) -> float | None:
        """Return the median over the rounds of the ratio of two rates; None if one was not measured."""
        if job not in self.runs or other not in self.runs:
            return None
        rows = self.rows(job) / self.rows(other)
        pairs = zip(self.runs[job], self.runs[other], strict=True)
        return statistics.median(rows * theirs.elapsed_s / mine.elapsed_s for mine, theirs in pairs)

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        plan = asdict(self.plan) | {"data": None, "only": list(self.plan.jobs)}
        return {
            "benchmark": "spark",
            **plan,
            "rows_per_s": {job: round(self.rate(job)) for job in self.runs},
            "ratios": {f"{job} : {other}": self.ratio(job, other) for job, other, _ in RATIOS},
            "runs": {job: [asdict(run) for run in runs] for job, runs in self.runs.items()},
            "environment": asdict(environment),
        }

    def table(self) -> Table:
        """Return the results as a table."""
        plan = self.plan
        title = (
            f"Spark, {plan.records:,} rows of {plan.size_bytes} bytes, local[{plan.threads}]; CPU seconds by process"
        )
        table = Table(title=title)
        for column in ("job", "M rows", "s", "M rows/s", "MB", "java", "python", "node"):
            table.add_column(column, justify="left" if column == "job" else "right", min_width=len(column))
        for job, runs in self.runs.items():
            spent = [statistics.median(values) for values in zip(*(asdict(run).values() for run in runs), strict=True)]
            elapsed_s, java_s, python_s, node_s, read_bytes = spent
            figures = (f"{self.rows(job) / 1e6:.2f}", f"{elapsed_s:.2f}", f"{self.rate(job) / 1e6:.2f}")
            cpu = (f"{each:.2f}" for each in (java_s, python_s, node_s))
            table.add_row(job, *figures, f"{read_bytes / _MB:,.2f}", *cpu)
        for job, other, aim in RATIOS:
            ratio = self.ratio(job, other)
            if ratio is not None:
                table.add_row(
                    f"{job} : {other}", "", "", f"{ratio:.2f}", "" if aim is None else f"target {aim}", "", "", ""
                )
        if "write" in self.runs:
            table.add_row("write", "", "", f"{self.rate('write') / 1e6:.2f}", f"target {WRITE_AIM / 1e6}", "", "", "")
        return table


async def measure(plan: SparkPlan, tell: Tell = say_nothing, *, spark: SparkSession | None = None) -> SparkResult:
    """Run the benchmark.

    The jobs block the event loop, which has nothing else to do, because Spark keeps its session per thread.

    Args:
        plan: the parameters.
        tell: displays the progress.
        spark: the session to use; None to start one, which is stopped at the end.

    Raises:
        CommandFailed: the node did not start.
        JavaError: Java is not installed.
    """
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data)))
        arguments = ("node", "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
        log = stack.enter_context((directory / "node.log").open("ab"))
        node = await stack.enter_async_context(running("node", arguments, log=log))
        tell("a topic", 1)
        address = f"127.0.0.1:{node.ready['port']}"
        topic = await _filled(plan, address)
        await _filled_typed(plan, address)
        if spark is None:
            spark = local_spark("bench", threads=plan.threads, memory_mb=3072)
            stack.callback(spark.stop)
        jobs = _Jobs(plan, spark, address, topic, directory)
        tell("the same rows in Parquet files", 2)
        result = SparkResult(plan, {job: [] for job in plan.jobs})
        result.early_rows = jobs.write_parquet()
        for number in range(0 if plan.warms_up else 1, plan.rounds + 1):
            for job in plan.jobs:
                tell(f"round {number} of {plan.rounds}: {job}" if number else f"warm-up: {job}", 3 + number)
                spent = _timed(jobs, job, node.process.pid, node.ready["management_port"])
                if number:
                    result.runs[job].append(spent)
    return result


def steps(plan: SparkPlan) -> int:
    """Return the number of progress steps."""
    return 3 + plan.rounds


async def _filled(plan: SparkPlan, address: str) -> str:
    """Publish the rows to a new topic, evenly over its partitions; return its name."""
    batches = value_batches(plan.size_bytes, max(1, min(BATCH_RECORDS, plan.records // plan.partitions)))
    async with Client(address, client_id="tidelog-bench") as client:
        await client.create_topic("rows", partitions=plan.partitions, flush="never")
        async with client.producer("rows") as producer:
            left = plan.records
            for number in range(-(-plan.records // batches[0].num_rows)):
                batch = batches[number % len(batches)].slice(0, left)
                await producer.send_arrow(batch, partition=number % plan.partitions)
                left -= batch.num_rows
    return "rows"


async def _filled_typed(plan: SparkPlan, address: str) -> None:
    """Publish rows to a new typed topic, evenly over its partitions, if a job reads it."""
    if not plan.has_typed:
        return
    rows = typed_rows(max(1, min(BATCH_RECORDS, plan.records // plan.partitions)))
    async with Client(address, client_id="tidelog-bench") as client:
        await client.create_topic(TYPED, partitions=plan.partitions, flush="never", schema=TYPED_SCHEMA, time=TIME)
        async with client.producer(TYPED) as producer:
            left = plan.records
            for number in range(-(-plan.records // rows.num_rows)):
                batch = rows.slice(0, left)
                await producer.send_arrow(batch, partition=number % plan.partitions)
                left -= batch.num_rows


def _timed(jobs: _Jobs, job: str, node_pid: int, management_port: int) -> Spent:
    node_s, sent_bytes = cpu_s(node_pid), _sent_bytes(management_port)
    with JavaWatch() as watch:
        began_s = time.perf_counter()
        jobs.run(job)
        elapsed_s = time.perf_counter() - began_s
    read_bytes = _sent_bytes(management_port) - sent_bytes
    return Spent(elapsed_s, watch.java_s, watch.below_s, cpu_s(node_pid) - node_s, read_bytes)


def _sent_bytes(management_port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{management_port}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return int(next(float(line.split()[1]) for line in lines if line.startswith("tidelog_bytes_out_total ")))


class _Jobs:
    def __init__(self, plan: SparkPlan, spark: SparkSession, address: str, topic: str, files: Path) -> None:
        self._plan = plan
        self._spark = spark
        self._address = address
        self._topic = topic
        self._parquet = files / "parquet"
        self._typed_parquet = files / "typed-parquet"
        spark.dataSource.register(EmptySource)
        spark.dataSource.register(TupleSource)
        self._frames: Mapping[str, Callable[[], DataFrame]] = {
            "scan": self._rows_of,
            "parquet scan": self._files,
            "empty": self._empty,
            "tuples": lambda: self._rows_of("tuples", **self._ending(SHARE["tuples"])),
            "columns": lambda: self._rows_of(columns="partition,offset"),
            "empty columns": lambda: self._empty("partition int, offset bigint"),
            "parquet columns": lambda: self._files().select("partition", "offset"),
            "offset": lambda: self._rows_of(**self._ending(SHARE["offset"])),
            "time": lambda: self._rows_of(endingTimestamp=str(self._early_ms)),
            "write": self._pairs,
            "rows": self._pairs,
            TYPED: lambda: self._rows_of(subscribe=TYPED),
            "parquet typed": self._typed_files,
            "typed columns": lambda: self._rows_of(subscribe=TYPED, columns=",".join(SOME)),
            "parquet typed columns": lambda: self._typed_files().select(*SOME),
        }

    @property
    def _per_partition(self) -> int:
        return max(1, self._plan.records // self._plan.partitions)

    def _ending(self, share: int) -> dict[str, str]:
        offsets = ",".join(f'"{number}":{self._per_partition // share}' for number in range(self._plan.partitions))
        return {"endingOffsets": f'{{"{self._topic}":{{{offsets}}}}}'}

    def write_parquet(self) -> int:
        """Write the topics' rows to uncompressed files; return the number of rows that `time` is expected to find."""
        if self._plan.has_typed:
            self._rows_of(subscribe=TYPED).write.option("compression", "none").parquet(str(self._typed_parquet))
        self._rows_of().write.option("compression", "none").parquet(str(self._parquet))
        early = self._files().where(f"offset = {self._per_partition // SHARE['offset']}")
        (row,) = early.selectExpr("unix_millis(min(timestamp)) AS at").collect()
        self._early_ms: int = row["at"] + 1
        return self._files().where(f"timestamp < timestamp_millis({self._early_ms})").count()

    def run(self, job: str) -> None:
        """Run a job to its end."""
        frame = self._frames[job]()
        if job != "write":
            frame.write.format("noop").mode("overwrite").save()
            return
        topic = f"written-{uuid.uuid4().hex}"
        with SyncClient(self._address) as client:
            client.create_topic(topic, partitions=self._plan.partitions, flush="never")
            frame.write.format("tidelog").options(bootstrap=self._address, topic=topic).mode("append").save()
            client.delete_topic(topic)

    def _rows_of(self, source: str = "tidelog", **options: str) -> DataFrame:
        given = {"bootstrap": self._address, "subscribe": self._topic, **options}
        return self._spark.read.format(source).options(**given).load()

    def _empty(self, schema: str | None = None) -> DataFrame:
        plan = self._plan
        sizes = {"rows": plan.records, "size": plan.size_bytes, "partitions": plan.partitions, "batch": 100_000}
        reading = self._spark.read.format("empty").options(**{name: str(size) for name, size in sizes.items()})
        return reading.load(schema=schema)

    def _files(self) -> DataFrame:
        return self._spark.read.parquet(str(self._parquet))

    def _typed_files(self) -> DataFrame:
        return self._spark.read.parquet(str(self._typed_parquet))

    def _pairs(self) -> DataFrame:
        return self._files().select("key", "value")
