"""The options of the presets are those of the database."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.storage.rocksdb.stand import Stand

from tidelog_broker.storage.rocksdb.presets import PRESETS, options_text


@pytest.mark.parametrize("preset", PRESETS)
def test_options_of_a_preset_are_those_of_the_database(tmp_path: Path, preset: str) -> None:
    stand = Stand(tmp_path / "node", preset=preset)
    stand.create()
    written = max(stand.database.glob("OPTIONS-*")).read_text()
    assert options_text(PRESETS[preset]).count(f"max_total_wal_size={PRESETS[preset].wal_bytes}") == 1
    for line in ("manual_wal_flush=true", "atomic_flush=true", f"max_total_wal_size={PRESETS[preset].wal_bytes}"):
        assert f"  {line}\n" in written
    assert written.count(f"write_buffer_size={PRESETS[preset].write_buffer_bytes}\n") >= 1
    stand.close()
