"""`local_spark()`: a quiet Spark in this process's own Java, on a machine that may have none.

Spark is started the way `pyspark` starts it (its launcher script and a Java process that ends with this one),
in an environment that is ours for the duration of the start: the Java home of `java.py`, this very Python for
the workers, the loopback address, and a configuration directory with a log level. Whatever Spark writes goes
into one temporary directory, which goes away with the process.

Rejected: starting the JVM ourselves and handing Spark the port (it works, but copies Spark's own launch command,
flags of every Java version included); leaving the environment changed (a child process of the user's would get
our Java home).
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
    """Return a Spark session in this process: no cluster, no web page, nothing on the network but loopback.

    A session that is already active is returned as it is. Stop it with `.stop()`; the Java process and the
    temporary files go away when this process ends, however it ends (files stay behind after a SIGKILL).

    Args:
        app_name: what Spark calls the application.
        threads: how many tasks run at once, 1 or more; each starts a Python worker.
        memory_mb: the largest heap of the Java process, in MiB; at least 512.
        log_level: "error" is quiet, "warn" and "info" are Spark's usual ones.
        config: further Spark configuration; goes before ours.

    Raises:
        JavaError: there is no Java that this Spark runs on; the message says which it needs, and what was found.
    """
    if threads < 1 or memory_mb < 512:
        raise ValueError(f"local_spark needs 1 or more threads and 512 MiB or more, not {threads} and {memory_mb}.")
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
        # Else how many tasks the sink of a stream has depends on the cores, and rows may be stored twice (`sink.py`).
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
    if SparkContext._gateway is not None:  # noqa: SLF001 - the only way to ask whether the Java process runs
        with _environment(_PYTHONS):  # each context reads them anew when it is made
            return builder.getOrCreate()
    atexit.register(_end_java)
    with _environment(_launch_environment(directory, log_level)), warnings.catch_warnings():
        # Starting imports pyspark's test helpers, which complain about a pandas that nobody here uses.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        try:
            return builder.getOrCreate()
        except BaseException:
            # Ctrl-C in the middle: pyspark has no handle on its Java yet, which would then never end by itself,
            # because the place where it was to say its port is gone.
            if SparkContext._gateway is None:  # noqa: SLF001 - as above
                end_started(directory / _JAVA_HOME)
            raise


def _directory() -> Path:
    """Return a new temporary directory that goes away with this process."""
    directory = Path(tempfile.mkdtemp(prefix="tidelog-spark-"))
    # Handlers run last in, first out: registered before the one that ends Java, this one runs after it.
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
    """Set environment variables, and put back what was there."""
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
    """Stop what still runs and wait for the Java process, so that nothing writes into what is then removed."""
    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark keeps its Java process nowhere else
    process = None if gateway is None else gateway.proc
    if gateway is None or process is None:
        return
    # A call that Ctrl-C broke off leaves a connection on which no other works; the end of the input works still.
    with contextlib.suppress(Py4JError, OSError):
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
        gateway.shutdown()
    process.stdin.close()  # the end of its input is what the Java process ends at
    try:
        process.wait(timeout=_JVM_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
