from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.proto.schemas import schema_of
from tests.proto.typed_batches import encoded, parsed

from tidelog.errors import InvalidRequestError
from tidelog.model import ConsumedBatch
from tidelog.subscriptions.row_view import RowView
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.data_types import INT8
from tidelog_proto.schema.fields import Field

SCHEMA = schema_of(Field(0, "n", INT8))


def view(**options: Any) -> RowView:
    return RowView.of(**{"columns": None, "values": "rows", "rows": None, **options})


def batch_of(*numbers: int) -> ConsumedBatch:
    layout = row_layout(SCHEMA)
    rows = pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=layout.row_schema)
    return ConsumedBatch("t", 2, parsed(encoded(layout, rows, base=10), {1: layout}), SCHEMA)


def test_the_records_that_match_are_kept_with_their_offsets() -> None:
    batch = batch_of(1, 2, 3)
    assert view().kept(batch) is batch
    kept = view(where="n > 1").kept(batch)
    assert (list(kept.batch.offset_list()), view().values_of(kept)) == ([11, 12], [{"n": 2}, {"n": 3}])
    assert len(view(where="_partition = 3").kept(batch)) == 0
    assert view(where="n > 1").kept(kept).batch is kept.batch


def test_filters_need_a_typed_topic_and_its_fields() -> None:
    untyped = RecordBatch.parse(encode_batch(columns_of([b"x"]), now_us=1).to_bytes())
    with pytest.raises(InvalidRequestError, match=r"'t' is not typed: .* and where= out"):
        view(where="n > 1").kept(ConsumedBatch("t", 0, untyped))
    with pytest.raises(InvalidRequestError, match="where: no field is named 'm'"):
        view(where="m > 1").kept(batch_of(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "n >"}, "where: the filter has the end at character 4"),
        ({"where": 5}, "where must be a text or a pyarrow.compute expression, got int: 5"),
        ({"columns": "n"}, "columns must be a list"),
        ({"columns": ["n", "n"]}, "columns must be a list of different names"),
        ({"values": "text"}, "values must be one of"),
        ({"values": "json", "rows": dict}, "rows= and values='json' exclude each other"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        view(**options)
