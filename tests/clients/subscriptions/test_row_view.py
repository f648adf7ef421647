"""The options of a consumer for typed topics are checked at the call and for each topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tidelog import ConsumedBatch
from tidelog.errors import InvalidRequestError
from tidelog.subscriptions.row_view import RowView
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch


@dataclass
class Row:
    """A class of rows."""

    a: int


def view(**options: Any) -> RowView:
    return RowView.of(**({"columns": None, "values": "rows", "rows": None} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"values": "xml"}, "values must be one of"),
        ({"values": "json", "rows": Row}, "exclude each other"),
        ({"columns": "a"}, "columns must be a list"),
        ({"columns": []}, "columns must be a list"),
        ({"columns": ["a", "a"]}, "columns must be a list"),
        ({"columns": [1]}, "columns must be a list"),
        ({"where": 5}, "where must be a text or a pyarrow.compute expression"),
        ({"where": "a >"}, "where: "),
    ],
)
def test_invalid_options_are_refused_at_the_call(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        view(**options)


@pytest.mark.parametrize("options", [{"columns": ["a"]}, {"rows": Row}, {"where": "a > 1"}])
def test_options_for_rows_need_a_typed_topic(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="topic 't' is not typed"):
        view(**options).check_untyped("t")
    view().check_untyped("t")


def test_a_filter_refuses_a_batch_of_values_that_are_bytes() -> None:
    batch = RecordBatch.parse(encode_batch(columns_of([b"x"]), now_us=0).to_bytes())
    consumed = ConsumedBatch("t", 0, batch)
    assert view().kept(consumed) is consumed
    with pytest.raises(InvalidRequestError, match="is not typed"):
        view(where="a > 1").kept(consumed)
