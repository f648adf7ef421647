from __future__ import annotations

import numpy as np
import pytest

from tidelog.errors import InvalidRequestError
from tidelog.produce.partitioners import chooser_of

KEYS = [b"", b"a", b"ab", b"abc", b"abcd", b"key-0000017", "grün".encode(), b"\xff\x80\x00"]


@pytest.mark.parametrize(
    ("name", "partitions"), [("murmur2", [1, 0, 2, 3, 0, 2, 1, 2]), ("crc32", [0, 3, 1, 2, 1, 0, 1, 0])]
)
def test_keys_go_to_the_partitions_of_kafka_clients(name: str, partitions: list[int]) -> None:
    """Compare with the partitions, of four, that librdkafka 2.16 chose."""
    choose = chooser_of(name)
    assert choose is not None
    assert [choose(key, 4) for key in KEYS] == partitions
    assert choose(None, 4) is None, "the default chooses"


def test_round_robin_ignores_keys() -> None:
    choose = chooser_of("round_robin")
    assert choose is not None
    assert [choose(key, 3) for key in (None, b"k", b"k", None)] == [0, 1, 2, 0]


def test_default_has_no_partitioner() -> None:
    assert chooser_of(None) is chooser_of("murmur3") is None


@pytest.mark.parametrize("given", ["md5", 7, b"crc32"])
def test_invalid_partitioner_is_refused(given: object) -> None:
    with pytest.raises(InvalidRequestError, match="murmur2"):
        chooser_of(given)  # type: ignore[arg-type]  # refused at runtime


@pytest.mark.parametrize("answer", [-1, 3, "0", None, 1.0])
def test_partitioner_with_invalid_result_raises(answer: object) -> None:
    choose = chooser_of(lambda _key, _partitions: answer)  # type: ignore[arg-type]  # refused at runtime
    assert choose is not None
    with pytest.raises(ValueError, match="0 to 2"):
        choose(b"k", 3)


def test_partitioner_may_return_a_numpy_integer() -> None:
    choose = chooser_of(lambda _key, _partitions: np.int64(2))  # type: ignore[arg-type]
    assert choose is not None
    assert type(choose(b"k", 3)) is int
