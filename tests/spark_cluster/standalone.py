"""A standalone cluster of Spark on this machine, a master and workers as processes, and jobs submitted to it.

It has only what it is started with: no variables of the tests' environment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark

from pyspark_tidelog.java import find_java, write_java_home
from tidelog.testing.free_ports import free_ports

HOST: Final = "127.0.0.1"
READY_TIMEOUT_S: Final = 120
JOB_TIMEOUT_S: Final = 280
END_TIMEOUT_S: Final = 30
RESULT: Final = "RESULT "
"""Before what a job tells."""
SPARK_HOME: Final = Path(pyspark.__file__).parent
_LOGGING: Final = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""
_SETTINGS: Final = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{READY_TIMEOUT_S}s",
    "spark.task.maxFailures": "1",
    "spark.ui.enabled": "false",
    # Short lives: half of the time would go by in the better one of Java's compilers.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True)
class SparkPrograms:
    """Spark's own scripts, with a Java that they run on, in a directory for all that they write."""

    directory: Path

    @classmethod
    def made(cls, directory: Path) -> SparkPrograms:
        """Make the directory."""
        directory.mkdir()
        (directory / "java").mkdir()
        write_java_home(find_java(os.environ), directory / "java")
        (directory / "conf").mkdir()
        (directory / "conf" / "log4j2.properties").write_text(_LOGGING)
        return cls(directory)

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return all that a program of Spark has."""
        return {
            "PATH": os.defpath,
            "HOME": str(self.directory),
            "JAVA_HOME": str(self.directory / "java"),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            **more,
        }

    @contextmanager
    def running(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a class of Spark, and end it with what it has started."""
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", *arguments],
                cwd=self.directory,
                env=self.environment({"SPARK_DAEMON_MEMORY": "256m"}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_TIMEOUT_S)
            with suppress(ProcessLookupError):  # executors, if any are left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def submit(
        self, master: str, job: Sequence[object], *, settings: Mapping[str, str], environment: Mapping[str, str]
    ) -> Any:
        """Run a job to its end, and return its result; its output is in the directory, too."""
        told = [f"--conf={name}={value}" for name, value in {**_SETTINGS, **settings}.items()]
        ended = subprocess.run(
            [SPARK_HOME / "bin" / "spark-submit", "--master", master, *told, *map(str, job)],
            cwd=self.directory,
            env=self.environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )
        (self.directory / "driver.log").write_text(ended.stdout + ended.stderr)
        assert ended.returncode == 0, ended.stdout[-5_000:] + ended.stderr[-20_000:]
        (result,) = [line for line in ended.stdout.splitlines() if line.startswith(RESULT)]
        return json.loads(result.removeprefix(RESULT))


@contextmanager
def started_master(programs: SparkPrograms, workers: int) -> Iterator[str]:
    """Run a master and workers of one core each; the value is the master's address."""
    port, page_port = free_ports(2)
    master = f"spark://{HOST}:{port}"
    with ExitStack() as stack:
        deploy = "org.apache.spark.deploy"
        at = ("--host", HOST, "--port")
        arguments = [f"{deploy}.master.Master", *at, str(port), "--webui-port", str(page_port)]
        started = [stack.enter_context(programs.running("master", *arguments))]
        for number in range(workers):
            work = str(programs.directory / f"worker{number}")
            size = ("--cores", "1", "--memory", "512m", "--work-dir", work, "--webui-port", "0")
            arguments = [f"{deploy}.worker.Worker", *at, "0", *size, master]
            started.append(stack.enter_context(programs.running(f"worker{number}", *arguments)))
        deadline = time.monotonic() + READY_TIMEOUT_S
        while _alive_workers(page_port) < workers:
            assert all(process.poll() is None for process in started), f"one has ended, see {programs.directory}"
            assert time.monotonic() < deadline, f"the workers have not come, see {programs.directory}"
            time.sleep(0.2)
        yield master


def _alive_workers(page_port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{page_port}/json/", timeout=READY_TIMEOUT_S) as page:
            workers: list[dict[str, str]] = json.load(page)["workers"]
    except (urllib.error.URLError, ConnectionError):
        return 0  # not there yet
    return sum(worker["state"] == "ALIVE" for worker in workers)
