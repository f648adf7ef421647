"""Expressions are joined without needless levels, and operators have opposites."""

from __future__ import annotations

import pytest

from tidelog_proto.filters.expression import (
    EVERY_ROW,
    NO_ROW,
    AllOf,
    AnyOf,
    Leaf,
    Operator,
    all_of,
    any_of,
    leaves_of,
)

A, B, C = (Leaf(number, Operator.EQUAL, (number,)) for number in (1, 2, 3))


def test_conjunctions_are_flat_and_end_at_a_part_that_is_never_true() -> None:
    assert all_of([A, AllOf((B, C))]) == AllOf((A, B, C))
    assert all_of([A, AnyOf((B, C))]) == AllOf((A, AnyOf((B, C))))
    assert all_of([A]) == A
    assert all_of([A, EVERY_ROW]) == A
    assert all_of([]) == EVERY_ROW
    assert all_of([A, NO_ROW, B]) == NO_ROW


def test_disjunctions_are_flat_and_end_at_a_part_that_is_always_true() -> None:
    assert any_of([A, AnyOf((B, C))]) == AnyOf((A, B, C))
    assert any_of([AllOf((A, B)), C]) == AnyOf((AllOf((A, B)), C))
    assert any_of([B]) == B
    assert any_of([B, NO_ROW]) == B
    assert any_of([]) == NO_ROW
    assert any_of([A, EVERY_ROW, B]) == EVERY_ROW


@pytest.mark.parametrize("operator", Operator)
def test_the_opposite_of_the_opposite_is_the_operator(operator: Operator) -> None:
    assert operator.negated is not operator
    assert operator.negated.negated is operator


def test_numbers_of_operators_are_those_of_the_message() -> None:
    assert [(operator.name, operator.value) for operator in Operator] == [
        ("EQUAL", 1), ("NOT_EQUAL", 2), ("LESS", 3), ("LESS_OR_EQUAL", 4), ("GREATER", 5), ("GREATER_OR_EQUAL", 6),
        ("IS_IN", 7), ("IS_NOT_IN", 8), ("IS_NULL", 9), ("IS_NOT_NULL", 10),
    ]  # fmt: skip


def test_leaves_are_found_from_left_to_right() -> None:
    assert list(leaves_of(AllOf((AnyOf((C, A)), B)))) == [C, A, B]
    assert list(leaves_of(A)) == [A]
    assert list(leaves_of(NO_ROW)) == []
