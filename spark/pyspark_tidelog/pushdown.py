"""Whether Spark's filter push-down can be used, and the warning if it is switched on in a Spark where it cannot.

Spark 4.1 to 4.3 store the read that was planned with a scan's filters in an object that all scans of one `load()`
share: the filters pushed last then apply to every scan. Neither the planning process nor a task can learn for which
scan it works, so a reader must ignore the filters there. From SPARK-58551 on the planned read belongs to its scan.
That change also added `DataSourceReader.pushLimit`, by which it is recognized here.
"""

from __future__ import annotations

import logging
from typing import Final

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader

SETTING: Final = "spark.sql.python.filterPushdown.enabled"
PLAN_BELONGS_TO_SCAN: Final = hasattr(DataSourceReader, "pushLimit")
"""Whether this Spark uses a read that was planned with filters only for the scan with these filters."""

_LOG: Final = logging.getLogger(__name__)


def warn_of_shared_plan() -> None:
    """Log that push-down is on in a Spark that shares the planned read between scans."""
    _LOG.warning(
        "%s is on, but Spark %s applies the filters of one query to other queries of the same load(): Tidelog ignores "
        "pushed filters, and plans the read again for each query with filters. Switch the setting off. To read less, "
        "use the options key, tag, assign, columns, and those that set where the read starts and ends.",
        SETTING,
        pyspark.__version__,
    )


def warn_if_on(session: SparkSession) -> None:
    """Log a warning if push-down is on in a session of a Spark that shares the planned read between scans."""
    if (
        not PLAN_BELONGS_TO_SCAN
        and hasattr(DataSourceReader, "pushFilters")
        and session.conf.get(SETTING, "false") == "true"
    ):
        warn_of_shared_plan()
