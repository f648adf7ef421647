"""The job that is submitted: reads one topic, writes others, also as a stream, and prints where its tasks run.

Told as JSON: `reading`, `writing` and `streaming` are options, the last of the stream's sink; `register` says whether
the source is registered with the session.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable

from pyspark import SparkFiles
from pyspark.sql import SparkSession

TASKS = 4


def whereabouts(_: Iterable[int]) -> Iterable[tuple[str, str, str]]:
    """Yield which executor a task runs on, its Python, and where the connector is imported from."""
    import pyspark_tidelog  # noqa: PLC0415 - in the task

    yield os.path.realpath(SparkFiles.getRootDirectory()), sys.executable, str(pyspark_tidelog.__file__)


def main() -> None:
    """Run the job."""
    told = json.loads(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    if told["register"]:
        from pyspark_tidelog import DefaultSource  # noqa: PLC0415 - where the zip is all there is

        spark.dataSource.register(DefaultSource)
    read = spark.read.format("tidelog").options(**told["reading"]).load()
    read.explain(mode="extended")
    numbers = read.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
    (row,) = numbers.selectExpr("sum(number) AS total", "count(*) AS rows").collect()
    doubled = numbers.selectExpr("CAST(number * 2 AS STRING) AS value")
    doubled.write.format("tidelog").options(**told["writing"]).mode("append").save()
    stream = spark.readStream.format("tidelog").options(**told["reading"], startingOffsets="earliest").load()
    streamed = stream.select("value").writeStream.format("tidelog").options(**told["streaming"])
    streamed.trigger(availableNow=True).start().awaitTermination()
    tasks = spark.sparkContext.parallelize(range(TASKS), TASKS).mapPartitions(whereabouts).collect()
    print("RESULT " + json.dumps({"total": row.total, "rows": row.rows, "tasks": tasks}))
    spark.stop()


if __name__ == "__main__":
    main()
