from __future__ import annotations

from typing import Any

import pytest

from tidelog.errors import SerializationError
from tidelog.gathering import loose_size_bytes
from tidelog.preparation import Preparation
from tidelog.producer_options import ProducerOptions


def test_a_record_is_serialised_before_it_is_checked_and_measured() -> None:
    preparation = Preparation(ProducerOptions(key_serializer="utf-8", value_serializer="json"))
    record = preparation.take([1], "k", None, "tag", 3, 12)
    assert record == (b"[1]", b"k", None, "tag", 3, 12, loose_size_bytes(b"[1]", b"k", None, "tag"))
    assert not preparation.plain
    assert preparation.take(None, None, None, None, None, None)[:2] == (None, None)
    assert (preparation.values([1, None]), preparation.keys(["a"]), preparation.keys(None)) == (
        [b"1", None],
        [b"a"],
        None,
    )
    with pytest.raises(SerializationError):
        preparation.values([1, object()])


def test_without_serializers_nothing_is_copied() -> None:
    preparation = Preparation(ProducerOptions())
    values: list[Any] = [b"a"]
    assert preparation.values(values) is preparation.keys(values) is values
    assert preparation.plain
    assert not preparation.chooses


@pytest.mark.parametrize("text", ["abc", ["a", b"b"], [None, "a"], ("a",)])
def test_text_is_no_list_of_bytes(text: Any) -> None:
    preparation = Preparation(ProducerOptions())
    with pytest.raises(TypeError, match=r"a value is bytes or None, not str.*value_serializer"):
        preparation.values(text)
    with pytest.raises(TypeError, match=r"a key is bytes or None, not str.*key_serializer"):
        preparation.keys(iter(text))
    stream: Any = iter([None, b"a"])
    assert list(preparation.values(stream)) == [None, b"a"]


def test_a_partition_that_was_given_is_not_chosen() -> None:
    preparation = Preparation(ProducerOptions(partitioner=lambda _key, partitions: partitions - 1))
    assert preparation.chosen(preparation.take(b"v", None, None, None, None, None), 4).partition == 3
    assert preparation.chosen(preparation.take(b"v", None, None, None, 1, None), 4).partition == 1
    assert preparation.targets([None, b"k"], 3) == [2, 2]
    assert preparation.chooses
