from __future__ import annotations

from typing import Any

import pytest

from tidelog.errors import SerializationError
from tidelog.gathering import loose_size_bytes
from tidelog.intake import Intake
from tidelog.producer_options import ProducerOptions


def test_a_record_is_serialised_before_it_is_checked_and_measured() -> None:
    intake = Intake(ProducerOptions(key_serializer="utf-8", value_serializer="json"))
    record = intake.take([1], "k", None, "tag", 3, 12)
    assert record == (b"[1]", b"k", None, "tag", 3, 12, loose_size_bytes(b"[1]", b"k", None, "tag"))
    assert not intake.plain
    assert intake.take(None, None, None, None, None, None)[:2] == (None, None)
    assert (intake.values([1, None]), intake.keys(["a"]), intake.keys(None)) == ([b"1", None], [b"a"], None)
    with pytest.raises(SerializationError):
        intake.values([1, object()])


def test_without_serializers_nothing_is_copied() -> None:
    intake = Intake(ProducerOptions())
    values: list[Any] = [b"a"]
    assert intake.values(values) is intake.keys(values) is values
    assert intake.plain
    assert not intake.chooses


def test_a_partition_that_was_given_is_not_chosen() -> None:
    intake = Intake(ProducerOptions(partitioner=lambda _key, partitions: partitions - 1))
    assert intake.chosen(intake.take(b"v", None, None, None, None, None), 4).partition == 3
    assert intake.chosen(intake.take(b"v", None, None, None, 1, None), 4).partition == 1
    assert intake.targets([None, b"k"], 3) == [2, 2]
    assert intake.chooses
