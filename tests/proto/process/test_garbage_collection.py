"""Long-lived objects stay out of full passes of the garbage collector until enough of them were dropped."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tidelog_proto.process.garbage_collection import FREEZE_EVERY, GC_THRESHOLD, LongLived, no_collections


@pytest.fixture
def calm() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD)
    gc.unfreeze()  # tests/conftest.py freezes the collected tests
    yield
    gc.freeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("calm")
def test_new_objects_are_frozen_and_unfrozen_after_a_quarter_was_dropped() -> None:
    long_lived = LongLived()
    for _ in range(4 * FREEZE_EVERY):
        long_lived.made()
    assert gc.get_freeze_count() > 0
    long_lived.dropped(FREEZE_EVERY - 1)
    assert gc.get_freeze_count() > 0
    long_lived.dropped(1)
    assert gc.get_freeze_count() == 0


def test_nothing_is_frozen_in_a_process_that_is_not_a_nodes() -> None:
    before = gc.get_freeze_count()
    long_lived = LongLived()
    for _ in range(FREEZE_EVERY):
        long_lived.made()
    assert gc.get_freeze_count() <= before, "frozen objects may be freed meanwhile, and none is added"


def test_collections_are_paused_and_resumed_also_after_an_error() -> None:
    def load() -> None:
        with no_collections():
            with no_collections():
                assert not gc.isenabled()
            assert not gc.isenabled(), "the outer pause continues"
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert gc.isenabled()
