"""Spark data source for Tidelog topics: `spark.read.format("tidelog")`.

Spark finds the data source if this package is installed next to pyspark (on the executors, too). `local_spark()` starts
a local session, also on a machine without Java:

    from pyspark_tidelog import local_spark

    spark = local_spark()
    flights = (
        spark.read.format("tidelog")
        .option("bootstrap", "127.0.0.1:7400")
        .option("subscribe", "flights")
        .load()
    )
    flights.groupBy("partition").count().show()
"""

from __future__ import annotations

try:
    import pyspark as _pyspark
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"pyspark_tidelog needs pyspark ({error}); run: pip install 'tidelog[spark]'", name=error.name
    ) from None

from pyspark_tidelog.backlog import offsets_behind_latest
from pyspark_tidelog.errors import ChangedRowsError, DataLossError, OptionError, TidelogSourceError
from pyspark_tidelog.java import JavaError
from pyspark_tidelog.local import local_spark
from pyspark_tidelog.source import DefaultSource

del _pyspark

__all__ = [
    "ChangedRowsError",
    "DataLossError",
    "DefaultSource",
    "JavaError",
    "OptionError",
    "TidelogSourceError",
    "local_spark",
    "offsets_behind_latest",
]
