"""The examples of docs/spark.md and docs/spark-typed.md, each page as one program, compared with what is shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import Node, needs_spark_4_2
from tests.test_docs import FENCE, ROOT

from pyspark_tidelog.options import OPTION_NAMES
from pyspark_tidelog.write_options import WRITE_OPTION_NAMES

pytestmark = pytest.mark.spark

PAGE = ROOT / "docs" / "spark.md"
TYPED_PAGE = ROOT / "docs" / "spark-typed.md"
OPTIONS_PAGE = ROOT / "docs" / "spark-options.md"
NEEDS_JAR = "spark.jars.packages"
"""A block with this makes a Spark of its own, and its jar comes from elsewhere: `test_from_avro_of_the_jar`."""
START_S_MAX = 110


@pytest.mark.long
@needs_spark_4_2
@pytest.mark.parametrize("page", [PAGE, TYPED_PAGE], ids=lambda page: page.stem)
def test_the_examples_do_what_is_shown(
    spark: SparkSession, node: Node, capsys: pytest.CaptureFixture[str], page: Path
) -> None:
    names: dict[str, object] = {"__name__": "example"}
    blocks = FENCE.findall(page.read_text())
    assert [language for language, _ in blocks].count("python") >= 3
    left_out = [number for number, (_, code) in enumerate(blocks) if NEEDS_JAR in code]
    for number, (language, code) in enumerate(blocks):
        if number in left_out or number - 1 in left_out:
            continue
        if language == "python":
            capsys.readouterr()
            exec(compile(code.replace("127.0.0.1:7400", node.address), str(page), "exec"), names)
        else:
            assert capsys.readouterr().out == code


@pytest.mark.long
def test_from_avro_of_the_jar(node: Node, tmp_path: Path) -> None:
    blocks = FENCE.findall(PAGE.read_text())
    ((at, (_, code)),) = [(number, block) for number, block in enumerate(blocks) if NEEDS_JAR in block[1]]
    start, session, rest = code.partition("read = ")
    needed, shown = blocks[at - 2][1], blocks[at + 1][1]  # the block before says the schema, and publishes
    imports = "from pyspark_tidelog import local_spark\nfrom tidelog.sync import Client\n"
    start = start.replace("config={", f"config={{'spark.jars.ivy': {str(tmp_path)!r}, ")
    program = (imports + start + needed + session + rest).replace("127.0.0.1:7400", node.address)
    command = [sys.executable, "-c", program.replace('"landings"', '"jar"')]
    none_here = f"no jar of Avro for Spark {pyspark.__version__} is to be had from Maven here"
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_S_MAX)
    except subprocess.TimeoutExpired:
        if not any((tmp_path / "jars").glob("*spark-avro*")):
            pytest.skip(none_here)
        raise
    if re.search(r"org\.apache\.spark#spark-avro\S*: not found", ended.stderr):
        pytest.skip(none_here)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == shown * 2


def test_every_option_is_on_the_page() -> None:
    reading, _, rest = OPTIONS_PAGE.read_text().partition("## Options for writing")
    writing = rest.partition("\n## ")[0]
    for part, names in ((writing, WRITE_OPTION_NAMES), (reading, OPTION_NAMES)):
        rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
        assert sorted(name for row in rows for name in row.replace("`", "").replace(" ", "").split(",")) == sorted(
            names
        )
