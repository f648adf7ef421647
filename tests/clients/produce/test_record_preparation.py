from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tidelog.errors import SerializationError
from tidelog.produce.open_batch import record_size_bytes
from tidelog.produce.producer_options import ProducerOptions
from tidelog.produce.record_preparation import RecordPreparation


def test_a_record_is_serialized_before_it_is_checked_and_measured() -> None:
    preparation = RecordPreparation(ProducerOptions(key_serializer="utf-8", value_serializer="json"))
    record = preparation.prepare([1], "k", None, "tag", 3, 12)
    assert record == (b"[1]", b"k", None, "tag", 3, 12, record_size_bytes(b"[1]", b"k", None, "tag"), None)
    assert not preparation.plain
    assert preparation.prepare(None, None, None, None, None, None)[:2] == (None, None)
    assert (preparation.values([1, None]), preparation.keys(["a"]), preparation.keys(None)) == (
        [b"1", None],
        [b"a"],
        None,
    )
    with pytest.raises(SerializationError):
        preparation.values([1, object()])


def test_without_serializers_nothing_is_copied() -> None:
    preparation = RecordPreparation(ProducerOptions())
    values: list[Any] = [b"a"]
    assert preparation.values(values) is preparation.keys(values) is values
    assert preparation.plain
    assert not preparation.has_partitioner


@pytest.mark.parametrize("text", ["abc", ["a", b"b"], [None, "a"], ("a",)])
def test_text_is_refused_as_list_of_bytes(text: Any) -> None:
    preparation = RecordPreparation(ProducerOptions())
    with pytest.raises(TypeError, match=r"a value must be bytes or None, got str.*value_serializer"):
        preparation.values(text)
    with pytest.raises(TypeError, match=r"a key must be bytes or None, got str.*key_serializer"):
        preparation.keys(iter(text))
    stream: Any = iter([None, b"a"])
    assert list(preparation.values(stream)) == [None, b"a"]


def test_explicit_partition_bypasses_the_partitioner() -> None:
    preparation = RecordPreparation(ProducerOptions(partitioner=lambda _key, partitions: partitions - 1))
    assert preparation.with_partition(preparation.prepare(b"v", None, None, None, None, None), 4).partition == 3
    assert preparation.with_partition(preparation.prepare(b"v", None, None, None, 1, None), 4).partition == 1
    assert preparation.targets([None, b"k"], 3) == [2, 2]
    assert preparation.has_partitioner


@pytest.mark.parametrize("name", ["partition", "timestamp_us"])
@pytest.mark.parametrize("number", [True, 1.0, "1", b"1"])
def test_non_integer_is_refused(name: str, number: object) -> None:
    preparation = RecordPreparation(ProducerOptions())
    given: dict[str, Any] = {"partition": None, "timestamp_us": None, name: number}
    with pytest.raises(TypeError, match=f"{name} must be an integer"):
        preparation.prepare(b"v", None, None, None, **given)


def test_numpy_integers_become_int() -> None:
    record = RecordPreparation(ProducerOptions()).prepare(b"v", None, None, None, np.int64(3), np.uint32(12))  # type: ignore[arg-type]
    assert (record.partition, record.timestamp_us) == (3, 12)
    assert type(record.partition) is type(record.timestamp_us) is int


def test_headers_are_copied() -> None:
    preparation = RecordPreparation(ProducerOptions())
    headers: Any = [["n", b"1"]]
    record = preparation.prepare(b"v", None, headers, None, None, None)
    headers[0][1] = 5
    headers.append("no header")
    assert record.headers == (("n", b"1"),)
    once: Any = iter([("n", None)])
    assert preparation.prepare(b"v", None, once, None, None, None).headers == (("n", None),)
