"""`local_spark()`: a quiet local Spark session, also on a machine without Java.

Spark is started as by `pyspark` (its launcher script and a Java process that ends with this one), in an environment
that is changed only during the start: the Java home of `java.py`, this Python for the workers, the loopback address,
and a configuration directory with a log level. Spark's files are in one temporary directory, which is removed at exit.

Rejected: starting the JVM directly and passing Spark the port, which duplicates Spark's launch command with the flags
of every Java version; leaving the environment changed, which would affect child processes of the user.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pyspark_tidelog.java import end_started, find_java, write_java_home
from pyspark_tidelog.pushdown import warn_if_on

_JVM_EXIT_TIMEOUT_S: Final = 20.0
_JAVA_HOME: Final = "java"
_PYTHONS: Final = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}

_LOG_CONFIG: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} spark %p %c{{1}}: %m%n%ex
# pyspark's entry point announces its own level wherever it differs from the root's.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""


def local_spark(
    app_name: str = "tidelog",
    *,
    threads: int = 2,
    memory_mb: int = 1024,
    log_level: str = "error",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a local Spark session: no cluster, no web UI, only loopback connections.

    An active session is returned unchanged. Stop the session with `.stop()`; the Java process and the temporary files
    are removed when this process ends (files remain after a SIGKILL).

    Args:
        threads: number of concurrent tasks, at least 1; each starts a Python worker.
        memory_mb: maximum heap of the Java process in MiB, at least 512.
        log_level: "error" is quiet; "warn" and "info" as in Spark.
        config: further Spark configuration, which overrides the defaults here.

    Raises:
        ValueError: `threads` or `memory_mb` is below its minimum.
        JavaError: no supported Java was found; the message has the required version and those found.
    """
    if threads < 1 or memory_mb < 512:
        raise ValueError(f"local_spark needs threads >= 1 and memory_mb >= 512, got {threads} and {memory_mb}.")
    active = SparkSession.getActiveSession()
    session = active or _started(app_name, threads, memory_mb, log_level, config or {})
    warn_if_on(session)
    return session


def _started(app_name: str, threads: int, memory_mb: int, log_level: str, config: Mapping[str, str]) -> SparkSession:
    directory = _directory()
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{memory_mb}m",
        "spark.local.dir": str(directory / "local"),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        # Off, because the number of tasks of a stream's sink would depend on the cores, which may duplicate rows
        # (`sink.py`).
        "spark.sql.adaptive.streaming.stateless.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(threads),
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **config,
    }
    builder = SparkSession.builder.master(f"local[{threads}]").appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if SparkContext._gateway is not None:  # noqa: SLF001 - the only way to check whether the Java process runs
        with _environment(_PYTHONS):  # read by each new context
            return builder.getOrCreate()
    atexit.register(_end_java)
    with _environment(_launch_environment(directory, log_level)), warnings.catch_warnings():
        # The start imports pyspark's test helpers, which warn about an unsupported pandas that is not used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        try:
            return builder.getOrCreate()
        except BaseException:
            # After Ctrl-C during the start, pyspark has no handle on its Java process, which would never end, because
            # the file for its port was removed.
            if SparkContext._gateway is None:  # noqa: SLF001 - as above
                end_started(directory / _JAVA_HOME)
            raise


def _directory() -> Path:
    """Return a new temporary directory that is removed at exit."""
    directory = Path(tempfile.mkdtemp(prefix="tidelog-spark-"))
    # Exit handlers run in reverse order, so this handler runs after the one that ends Java.
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _launch_environment(directory: Path, log_level: str) -> dict[str, str]:
    java_home = directory / _JAVA_HOME
    java_home.mkdir()
    write_java_home(find_java(os.environ), java_home)
    configuration = directory / "conf"
    configuration.mkdir()
    (configuration / "log4j2.properties").write_text(_LOG_CONFIG.format(level=log_level), encoding="utf-8")
    return {
        "JAVA_HOME": str(java_home),
        **_PYTHONS,
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end_java() -> None:
    """Stop the session and wait for the Java process, so that it does not write into the removed directory."""
    gateway = SparkContext._gateway  # noqa: SLF001 - the only handle on pyspark's Java process
    process = None if gateway is None else gateway.proc
    if gateway is None or process is None:
        return
    # After a call that Ctrl-C interrupted, the connection is unusable; closing Java's input still works.
    with contextlib.suppress(Py4JError, OSError):
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
        gateway.shutdown()
    process.stdin.close()  # ends the Java process
    try:
        process.wait(timeout=_JVM_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
