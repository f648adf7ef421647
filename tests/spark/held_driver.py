"""A driver that is held between what a micro-batch has written and the moment when Spark takes that down as done.

    python -m tests.spark.held_driver BOOTSTRAP SOURCE SINK CHECKPOINT FILE

It makes FILE when all is written, and waits to be killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_tidelog import DefaultSource, local_spark
from pyspark_tidelog.sink import TidelogStreamWriter
from pyspark_tidelog.write_options import parse_write_options


def main() -> None:
    """Run the query."""
    bootstrap, source, sink, checkpoint, reached = sys.argv[1:]

    class HeldWriter(TidelogStreamWriter):
        def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
            super().commit(messages, batchId)
            Path(reached).touch()
            while True:
                time.sleep(1)

    class HeldSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "held"

        def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802 - Spark's name
            del schema, overwrite
            return HeldWriter(parse_write_options(self.options))

    # A short life: half of the time would go by in the better one of Java's compilers.
    config = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    spark = local_spark("held", threads=1, memory_mb=512, config=config)
    spark.dataSource.register(HeldSource)
    stream = spark.readStream.format("tidelog").options(bootstrap=bootstrap, subscribe=source)
    writing = stream.options(startingOffsets="earliest").load().select("value").writeStream.format("held")
    writing.options(bootstrap=bootstrap, topic=sink, checkpointLocation=checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
