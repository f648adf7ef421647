from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pytest
from tests.clients.rows.python_rows import read, stored
from tests.clients.rows.test_row_writer import NOW, ROW, SCHEMA

from tidelog.rows.row_writer import row_writer
from tidelog.rows.value_checks import RowError


class Color(str, Enum):  # noqa: UP042 - `str` of a member is its name, unlike with StrEnum
    RED = "red"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("small", 1.0, "expected int8, got the float 1.0"),
        ("small", "1", "expected int8, got the str '1'"),
        ("small", True, "expected int8, got the bool True"),
        ("small", np.bool_(True), "expected int8"),
        ("small", 128, "give -128 to 127, or widen the field"),
        ("small", np.array([1, 2]), "expected int8"),
        ("id", None, "'id' is required"),
        ("at", None, "'at' is required"),
        ("at", datetime(2026, 1, 1), "give it a time zone"),  # noqa: DTZ001 - refused for that
        ("at", datetime(1969, 1, 1, tzinfo=UTC), "the years 1970 to 9999"),
        ("kind", "é" * 2049, "the tag has 4098 bytes"),
        ("kind", b"sale", "expected string"),
        ("price", 1.5, "expected decimal128(6, 2), got the float"),
        ("price", "1.50", "expected decimal128(6, 2), got the str"),
        ("price", Decimal("1.005"), "expected decimal128(6, 2)"),
        ("price", Decimal(10000), "expected decimal128(6, 2)"),
        ("price", Decimal("NaN"), "expected decimal128(6, 2)"),
        ("ratio", "0.1", "expected float64"),
        ("ratio", Decimal("0.1"), "expected float64"),
        ("ratio", 2**53 + 1, "an int that a float holds exactly"),
        ("ratio", 10**400, "expected float64"),
        ("ratio", False, "expected float64"),
        ("half", 1e39, "a float within its range"),
        ("half", 2**24 + 1, "expected float32"),
        ("ok", 1, "expected bool"),
        ("raw", "text", "expected binary"),
        ("day", datetime(2026, 1, 1, tzinfo=UTC), "expected date32, got the datetime"),
        ("day", "2026-01-01", "expected date32"),
        ("local", NOW, "remove the time zone"),
        ("stops", (1, "2"), "field 'stops.item': expected int32, got the str '2'"),
        ("stops", {1, 2}, "expected list, got the set"),
        ("stops", "12", "expected list"),
        ("place", {"zip": 1}, "field 'place.city' is required"),
        ("place", {"city": "\ud800"}, "field 'place.city': expected string"),
        ("place", {"city": "x", "street": "y"}, "field 'place' has ['street']"),
        ("place", "Köln", "expected struct"),
        ("other", 1, "the row has ['other']"),
    ],
)
def test_a_value_that_its_field_does_not_hold_exactly_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(RowError) as caught:
        row_writer(SCHEMA).copy(ROW | {name: value})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "read_as"),
    [
        ("small", np.int64(5), 5),
        ("kind", Color.RED, "red"),
        ("place", {"city": Color.RED}, {"city": "red", "zip": None}),
        ("ratio", 3, 3.0),
        ("ratio", np.float32(0.1), float(np.float32(0.1))),
        ("half", 0.1, float(np.float32(0.1))),
        ("half", float("inf"), float("inf")),
        ("price", 12, Decimal("12.00")),
        ("price", Decimal("1.5000"), Decimal("1.50")),
        ("price", Decimal("-0"), Decimal("0.00")),
        ("raw", bytearray(b"ab"), b"ab"),
        ("stops", (1, 2), [1, 2]),
        ("at", datetime(2026, 11, 30, 13, tzinfo=timezone(timedelta(hours=1))), NOW),
        ("ok", np.bool_(False), False),
    ],
)
def test_other_forms_of_an_exact_value_are_taken(name: str, value: Any, read_as: Any) -> None:
    (row,) = read(stored(SCHEMA, [ROW | {name: value}]), SCHEMA)
    assert row is not None
    assert (row[name], type(row[name])) == (read_as, type(read_as))
