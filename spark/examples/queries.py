"""Two streaming queries over flights, and the program that runs them until it is killed, or until all is read.

The queries return:

    delays     number and mean delay of a carrier's departures of a day, once when the day is closed
    caught_up  each landed flight with the minutes it caught up in the air: a join of departures and arrivals

Both queries write each row to a topic exactly once, however often this program is killed: the sink uses the query's id
and the micro-batch's number, which are in the checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights import ARRIVALS, DEPARTURES
from pyspark_tidelog import local_spark

DELAYS: Final = "delays"
CAUGHT_UP: Final = "caught-up"
CLOSED_AFTER: Final = "1 day"
"""Maximum delay between an event and its publication: Spark's watermark."""


def events(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Return a topic of flights as a stream of its fields; `timestamp` is the time of the event."""
    stream = spark.readStream.format("tidelog").options(
        bootstrap=bootstrap, subscribe=topic, startingOffsets="earliest", columns="timestamp,value"
    )
    parsed = stream.load().selectExpr(
        "timestamp", "from_json(CAST(value AS STRING), 'trip BIGINT, carrier STRING, delay INT') AS event"
    )
    return parsed.select("timestamp", "event.*").withWatermark("timestamp", CLOSED_AFTER)


def delays(departures: DataFrame) -> DataFrame:
    """Return number and mean delay of a carrier's departures of a day, as records."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - Spark's functions under a short name

    grouped = departures.groupBy(sql.window("timestamp", "1 day"), "carrier").agg(
        sql.count("*").alias("flights"), sql.avg("delay").alias("delay")
    )
    return grouped.selectExpr(
        "carrier AS key",
        "to_json(struct(unix_date(CAST(window.start AS DATE)) AS day, carrier, flights, delay)) AS value",
    )


def caught_up(departures: DataFrame, arrivals: DataFrame) -> DataFrame:
    """Return landed flights with the caught-up time, as records."""
    left = departures.selectExpr("trip", "carrier", "delay AS departed", "timestamp AS departed_at")
    right = arrivals.selectExpr("trip AS landed_trip", "delay AS landed", "timestamp AS landed_at")
    joined = left.join(
        right,
        on=_same_trip(),
    )
    return joined.selectExpr("carrier AS key", "to_json(struct(trip, carrier, departed - landed AS minutes)) AS value")


def _same_trip() -> Any:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    return sql.expr("trip = landed_trip AND landed_at >= departed_at AND landed_at <= departed_at + INTERVAL 1 DAY")


def start(frame: DataFrame, bootstrap: str, topic: str, checkpoints: Path, *, to_the_end: bool) -> StreamingQuery:
    """Start a query that writes a stream to a topic until it is stopped, or until all current records are read."""
    trigger: dict[str, Any] = {"availableNow": True} if to_the_end else {"processingTime": "0 seconds"}
    writing = frame.writeStream.format("tidelog").options(bootstrap=bootstrap, topic=topic)
    return writing.option("checkpointLocation", str(checkpoints / topic)).trigger(**trigger).start()


def main() -> None:
    """Run both queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="addresses of nodes, separated by commas")
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory for the checkpoints of the queries")
    parser.add_argument("--to-the-end", action="store_true", help="read all current records, and exit")
    arguments = parser.parse_args()
    spark = local_spark("flights")
    departures = events(spark, arguments.bootstrap, DEPARTURES)
    arrivals = events(spark, arguments.bootstrap, ARRIVALS)
    running = [
        start(frame, arguments.bootstrap, topic, arguments.checkpoints, to_the_end=arguments.to_the_end)
        for topic, frame in ((DELAYS, delays(departures)), (CAUGHT_UP, caught_up(departures, arrivals)))
    ]
    print("running", flush=True)
    for query in running:
        query.awaitTermination()


if __name__ == "__main__":
    main()
