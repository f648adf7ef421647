"""The examples of docs/spark.md, one after the other in one program, each compared with what is shown."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import Node, needs_spark_4_2
from tests.test_docs import FENCE, ROOT

from pyspark_tidelog.options import OPTION_NAMES
from pyspark_tidelog.write_options import WRITE_OPTION_NAMES

pytestmark = pytest.mark.spark

PAGE = ROOT / "docs" / "spark.md"


@pytest.mark.long
@needs_spark_4_2
def test_the_examples_do_what_is_shown(spark: SparkSession, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "example"}
    blocks = FENCE.findall(PAGE.read_text())
    assert [language for language, _ in blocks].count("python") >= 3
    for language, code in blocks:
        if language == "python":
            capsys.readouterr()
            exec(compile(code.replace("127.0.0.1:7400", node.address), str(PAGE), "exec"), names)
        else:
            assert capsys.readouterr().out == code


def test_every_option_is_on_the_page() -> None:
    _, _, page = PAGE.read_text().partition("## Writing")
    writing, _, reading = page.partition("## Options for reading")
    reading = reading.partition("\n## ")[0]
    for part, names in ((writing, WRITE_OPTION_NAMES), (reading, OPTION_NAMES)):
        rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
        assert sorted(name for row in rows for name in row.replace("`", "").replace(" ", "").split(",")) == sorted(
            names
        )
