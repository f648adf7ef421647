"""The query that is killed: numbers from one topic, counted by second and key, into another one, each result once.

It is a process of its own, and ends when it is killed, when its query fails, or, with --to-the-end, when all is read.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from pyspark.sql import functions as sql

from pyspark_tidelog import local_spark

SOURCE: Final = "numbers"
SINK: Final = "sums"
TASK_TRIES: Final = 3
"""A task whose Python worker or executor was killed is tried again."""
EXECUTORS: Final = 2
_EXECUTOR_MB: Final = 512
_WORKER_MB: Final = 1024
_CONFIG: Final = {
    "spark.master": f"local-cluster[{EXECUTORS},1,{_WORKER_MB}]",
    "spark.task.maxFailures": f"{TASK_TRIES}",
    "spark.executor.memory": f"{_EXECUTOR_MB}m",
    # However many executors were killed, there is another one.
    "spark.deploy.maxExecutorRetries": "-1",
}


def main() -> None:
    """Run the query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--to-the-end", action="store_true")
    given = parser.parse_args()
    spark = local_spark("kills", config=_CONFIG)
    stream = spark.readStream.format("tidelog").options(
        bootstrap=given.bootstrap, subscribe=SOURCE, startingOffsets="earliest", columns="timestamp,value"
    )
    numbers = stream.load().selectExpr("timestamp", "CAST(CAST(value AS STRING) AS BIGINT) AS number")
    counted = (
        numbers.withWatermark("timestamp", "30 seconds")
        .groupBy(sql.window("timestamp", "1 second"), (sql.col("number") % 5).alias("key"))
        .agg(sql.count("*").alias("count"), sql.sum("number").alias("sum"))
    )
    results = counted.selectExpr(
        "CAST(key AS STRING) AS key", "to_json(struct(unix_seconds(window.start) AS second, key, count, sum)) AS value"
    )
    trigger: dict[str, Any] = {"availableNow": True} if given.to_the_end else {"processingTime": "0 seconds"}
    writing = results.writeStream.format("tidelog").options(bootstrap=given.bootstrap, topic=SINK)
    writing.option("checkpointLocation", given.checkpoint).trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main()
