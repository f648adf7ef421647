from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.spark_kills.check import Ranges, expected, wrong_results


def results(**changed: Any) -> list[bytes]:
    listed = [
        {"second": second, "key": key, "count": count, "sum": total}
        for (second, key), (count, total) in expected(2).items()
    ]
    listed[3] |= changed
    return [json.dumps(each).encode() for each in listed]


def test_results_are_judged() -> None:
    assert wrong_results(results(), 2) == []
    assert wrong_results([*results(), results()[0]], 2) == ["(0, 0) exists 2 times"]
    assert wrong_results(results()[1:], 2) == ["(0, 0) is missing"]
    assert len(wrong_results(results(count=199), 2)) == 1
    assert "should not" in wrong_results(results(second=9), 2)[0]


def test_a_range_that_changes_is_reported(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    batch = tmp_path / "offsets" / "0"
    batch.write_text('v1\n{"batchTimestampMs":1}\n{"numbers":{"0":5}}')
    ranges = Ranges(tmp_path)
    assert ranges.look() == 1
    batch.write_text('v1\n{"batchTimestampMs":2}\n{"numbers":{"0":5}}')
    assert (ranges.look(), ranges.changed) == (1, [])
    batch.write_text('v1\n{"batchTimestampMs":2}\n{"numbers":{"0":6}}')
    ranges.look()
    assert len(ranges.changed) == 1
