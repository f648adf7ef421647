"""Comparison of partitions in messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.groups.partition_lists import grants_of, partitions_of, same_partitions

KEYS = st.tuples(st.sampled_from([b"a" * 16, b"b" * 16, b"c" * 16]), st.integers(0, 3))


@given(held=st.dictionaries(KEYS, st.integers(1, 5)), target=st.sets(KEYS))
def test_messages_are_the_same_if_their_partitions_are(
    held: dict[tuple[bytes, int], int], target: set[tuple[bytes, int]]
) -> None:
    assert same_partitions(grants_of(held), partitions_of(target)) is (held.keys() == target)


@pytest.mark.parametrize("generation", [1, 2])
def test_generations_of_grants_do_not_count(generation: int) -> None:
    keys = {(b"a" * 16, 1), (b"b" * 16, 0)}
    assert same_partitions(grants_of(dict.fromkeys(keys, generation)), partitions_of(keys))
