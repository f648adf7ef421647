from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tidelog_proto import limits


def test_sizes_that_clients_may_rely_on() -> None:
    """These are promises: lowering one breaks a producer that works today."""
    assert limits.HEADER_BYTES == 128
    assert limits.BATCH_BYTES_MAX == 16 * 2**20
    assert limits.BATCH_UNCOMPRESSED_BYTES_MAX == 64 * 2**20
    assert limits.FRAME_BYTES_MAX == 64 * 2**20
    assert limits.BATCH_RECORDS_MAX == 1_000_000


def test_a_relation_that_does_not_hold_stops_the_import(tmp_path: Path) -> None:
    source = Path(limits.__file__).read_text()
    broken = tmp_path / "limits.py"
    for good, bad in (
        ("FRAME_BYTES_MAX: Final = 64 * MIB", "FRAME_BYTES_MAX: Final = 16 * MIB"),
        ("HEADER_BYTES: Final = 128", "HEADER_BYTES: Final = 130"),
        ("BATCH_UNCOMPRESSED_BYTES_MAX: Final = 64 * MIB", "BATCH_UNCOMPRESSED_BYTES_MAX: Final = 8 * MIB"),
        ("SEQUENCE_WINDOW_BATCHES: Final = 8", "SEQUENCE_WINDOW_BATCHES: Final = 4"),
    ):
        assert good in source
        broken.write_text(source.replace(good, bad))
        with pytest.raises(AssertionError):
            runpy.run_path(str(broken))
