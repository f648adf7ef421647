from __future__ import annotations

import numpy as np
import pytest
from tests.proto.batches import EVERYTHING, NOW_US, Given
from tests.proto.derived_batches import derived, nothing_left

from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.batch.retained_records import APPEND_QUANTUM_US, joined, survivors_of


def test_survivors_of_a_derived_batch() -> None:
    batch = RecordBatch.parse(derived(EVERYTHING, [12, 13, 17], base=10, end=20, append_timestamp_us=1))
    found = survivors_of(batch, np.array([True, False, True]))
    assert found is not None
    assert (found.count, found.offsets.tolist(), found.stamps_us.tolist()) == (2, [12, 17], [NOW_US + 5, NOW_US])
    assert found.append_us == APPEND_QUANTUM_US
    assert found.columns["key"].to_pylist() == [b"k", b""]
    # 28 each; `k`, `one`, `red` and two headers of 3 bytes in all; one header of 2 bytes.
    assert found.weights_to.tolist() == [28 + 7 + 16 + 3, 54 + 28 + 8 + 2]
    part = found.slice(1, 1)
    assert (part.offsets.tolist(), part.weights_to.tolist(), part.columns["tag"].to_pylist()) == ([17], [38], [""])


def test_every_record_gets_the_timestamp_that_it_has() -> None:
    found = survivors_of(RecordBatch.parse(encode_batch(columns_of([b"a", b"b"]), now_us=7).to_bytes()), None)
    assert found is not None
    assert (found.stamps_us.tolist(), found.offsets.tolist(), found.append_us) == ([7, 7], [0, 1], 0)


def test_nothing_is_decoded_when_nothing_survives() -> None:
    broken = RecordBatch(RecordBatch.parse(encode_batch(columns_of([b"a"]), now_us=7).to_bytes()).header, b"broken")
    assert survivors_of(broken, np.zeros(1, np.bool_)) is None
    assert survivors_of(RecordBatch.parse(nothing_left(base=0, end=9)), None) is None
    with pytest.raises(ValueError, match="one bool per record"):
        survivors_of(broken, np.zeros(2, np.bool_))


def test_columns_that_a_source_lacks() -> None:
    sources = [EVERYTHING, Given([b"plain"])]
    parsed = [RecordBatch.parse(encode_batch(one.columns(), now_us=1).to_bytes()) for one in sources]
    found = [one for one in (survivors_of(batch, None) for batch in parsed) if one is not None]
    assert joined(found, "key").to_pylist() == [b"k", None, b"", None]
    assert joined(found, "tag").to_pylist() == ["red", None, "", None]
    assert [len(each) for each in joined(found, "headers").to_pylist()] == [2, 0, 1, 0]
    assert joined(found, "value").to_pylist() == [b"one", None, b"", b"plain"]
