"""The default methods of engines and stores."""

from __future__ import annotations

from pathlib import Path

from tests.broker.storage.logs import create, new_disk

from tidelog_broker.storage.engine.store import Capabilities, Engine, EpochStart, EpochStore, padded


class Least(Engine):
    name = "least"
    capabilities = Capabilities(durable=False, survives_restart=False)

    def lay_out(self, directory: Path, start: EpochStart, *, segment_bytes: int) -> None:
        raise NotImplementedError

    def open(
        self, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None, is_new: bool = False
    ) -> EpochStore | None:
        raise NotImplementedError


def test_engine_with_everything_in_its_directory_has_nothing_to_forget() -> None:
    Least().forget(Path("/nowhere"))
    assert not Least().is_deleted([])


def test_store_without_a_check_has_nothing_to_scrub() -> None:
    assert EpochStore.scrub_parts(create(new_disk()), is_newest=False) == ()


def test_space_is_reserved_in_whole_blocks() -> None:
    assert [padded(length) for length in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]
