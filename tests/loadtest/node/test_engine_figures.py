from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.node.engine_figures import EnginePoint, EngineSide, EnginesPlan, EnginesResult

POINTS = [
    EnginePoint(
        "segment",
        1_000,
        used=10,
        created_rss_anon_bytes=10 << 20,
        node=EngineSide(rates=[100.0, 300.0]),
        stored_per_s=5.0,
    ),
    EnginePoint(
        "shared", 1_000, used=10, stored_per_s=35.0, node=EngineSide(rates=[2_000.0]), probe=EngineSide(rates=[5_000.0])
    ),
    EnginePoint("shared", 5, node=EngineSide(rates=[7.0])),
    EnginePoint("segment", 9),
]


def test_shared_files_are_compared_with_segments_of_as_many_partitions() -> None:
    assert EnginesResult(EnginesPlan(), POINTS).shared_ratios() == {1_000: 10.0}
    assert EnginesResult(EnginesPlan(), POINTS).stored_ratios() == {1_000: 7.0}


def test_memory_of_a_used_partition_is_what_it_added() -> None:
    point = EnginePoint("segment", 999, used=400, created_rss_anon_bytes=1_000, rss_anon_bytes=5_000)
    assert point.used_partition_bytes == 10
    assert EnginePoint("segment", 999, used=400, created_rss_anon_bytes=5_000).used_partition_bytes == 0
    assert EnginePoint("segment", 9, used=4, rss_anon_bytes=5_000).used_partition_bytes == 0, "too few to tell"


def test_tables_have_a_row_for_each_point_and_the_ratio() -> None:
    out = io.StringIO()
    Console(file=out, width=240).print(EnginesResult(EnginesPlan(), POINTS).table())
    assert out.getvalue().count("shared, always") == 4
    assert "relative to segment, by partitions: 10.0 at 1,000; of the storage alone: 7.0 at 1,000" in out.getvalue()
    assert "5,000" in out.getvalue()


def test_the_document_is_complete(tmp_path: Path) -> None:
    document = EnginesResult(EnginesPlan(data=tmp_path), POINTS).document(environment_of(tmp_path))
    read = json.loads(json.dumps(document))
    assert (read["benchmark"], read["rocksdb_preset"], read["shared_of_segment"]) == ("engines", "small", {"1000": 10})
    second = read["points"][1]
    assert (second["engine"], second["file_model"], second["flush"]) == ("segment", "shared", "always")
    assert (second["node"]["records_per_s"], second["probe"]["records_per_s"]) == (2_000, 5_000)
