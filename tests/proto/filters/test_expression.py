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

A, B, C = (Leaf(number, Operator.IS_NULL) for number in (1, 2, 3))


@pytest.mark.parametrize("operator", Operator)
def test_negation_is_its_own_inverse(operator: Operator) -> None:
    assert operator.negated is not operator
    assert operator.negated.negated is operator


def test_combinations_have_no_needless_levels() -> None:
    assert all_of([A, all_of([B, C])]) == AllOf((A, B, C))
    assert any_of([any_of([A, B]), C]) == AnyOf((A, B, C))
    assert all_of([A, any_of([B, C])]) == AllOf((A, AnyOf((B, C))))
    assert all_of([A]) == any_of([A]) == A


def test_constants_decide_or_disappear() -> None:
    assert all_of([A, EVERY_ROW]) == any_of([A, NO_ROW]) == A
    assert all_of([A, NO_ROW, B]) == all_of([any_of([]), A]) == NO_ROW
    assert any_of([A, EVERY_ROW, B]) == any_of([all_of([]), A]) == EVERY_ROW


def test_leaves_are_in_order() -> None:
    assert list(leaves_of(AllOf((A, AnyOf((B, A)), C)))) == [A, B, A, C]
