"""The Spark job: flights and mean departure delay by carrier, read from the topic.

The job is a separate process (`python -m tidelog_demo.spark_job CONTEXT TOPIC`, one JSON line on stdout), because a
Java runtime in the demonstration's process would block Ctrl-C: a call into it returns only when Spark is done. The
output of the job and of Java goes to a log file, so that a cancelled job prints nothing to the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tidelog_cli.up.supervised_child import command
from tidelog_demo.source import CarrierStats
from tidelog_proto.process.private_files import open_private_log

_STOP_TIMEOUT_S: Final = 10.0


class SparkJobError(Exception):
    """The job failed; its output is in its log."""


async def stats_by_carrier(context: str, topic: str, *, log: Path) -> list[CarrierStats]:
    """Run the job and return its lines, most flights first. Cancellation ends the job's process and Java.

    Args:
        context: the name of the cluster, see `tidelog context`.
        topic: topic of the flights.
        log: file for the job's stderr; overwritten.

    Raises:
        SparkJobError: the job failed.
    """
    with open_private_log(log, append=False) as stderr:
        process = await asyncio.create_subprocess_exec(
            *command(__name__, [context, topic]),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    try:
        output, _ = await process.communicate()
    finally:
        await _stop(process)
    if process.returncode:
        raise SparkJobError(f"the Spark job ended with code {process.returncode}: {_last_line(log)} (see {log})")
    lines = output.splitlines()
    if not lines:
        raise SparkJobError(f"the Spark job printed no result; see {log}")
    return [CarrierStats(**line) for line in json.loads(lines[-1])]


def _last_line(log: Path) -> str:
    """Return the last line of the job's log, which is the exception if the log ends with a traceback."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "its log is empty"


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the job, then the remaining processes of its session (Java, Spark's workers)."""
    if process.returncode is None:
        process.terminate()
        with contextlib.suppress(TimeoutError):  # it is killed below
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):  # no process is left
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def run(context: str, topic: str) -> list[CarrierStats]:
    """Group the topic's JSON values by the records' keys, in this process."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only the job's process needs Spark

    from pyspark_tidelog import local_spark  # noqa: PLC0415 - likewise

    spark = local_spark("flights by carrier")
    records = spark.read.format("tidelog").option("context", context).option("subscribe", topic).load()
    flight = sql.from_json(records["value"].cast("string"), "dep_delay double")
    rows = (
        records.select(records["key"].cast("string").alias("carrier"), flight.alias("flight"))
        .groupBy("carrier")
        .agg(sql.count("*").alias("flights"), sql.avg("flight.dep_delay").alias("delay"))
        .orderBy(sql.desc("flights"))
        .collect()
    )
    spark.stop()  # after a failure, the exit of the process stops it
    return [CarrierStats(row["carrier"], row["flights"], row["delay"]) for row in rows]


def main() -> None:
    """Run the job and print its result as JSON."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that Spark cleans up
    context, topic = sys.argv[1:]
    print(json.dumps([asdict(line) for line in run(context, topic)]), flush=True)


if __name__ == "__main__":
    main()
