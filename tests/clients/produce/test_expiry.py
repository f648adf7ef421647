from __future__ import annotations

import pytest

from tidelog.errors import NodeUnreachableError, OffsetOutOfRangeError, OverloadedError, RecordError, error_of
from tidelog.produce.expiry import copy_of_error, encoding_error, expiry_error
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def test_error_of_quota_has_remaining_delay() -> None:
    cause = OverloadedError("the quota of 'ann' is used up")
    error = expiry_error(cause, 3, definite=True, queued=True, held_s=69.25)
    assert (error.code, error.retry_after_ms, error.definite, error.retriable) == (pb.OVERLOADED, 69_250, True, True)
    assert str(error) == (
        "the records for partition 3 were not delivered within the delivery timeout and are not stored: the quota of "
        "'ann' is used up; publishing is allowed again in 69.2 s"
    )


@pytest.mark.parametrize(
    ("cause", "definite", "held_s"),
    [
        (OverloadedError("full"), False, 5.0),  # a record that may be stored has no retry hint
        (OverloadedError("full"), True, -1.0),
        (NodeUnreachableError("away"), True, 5.0),
        (None, True, 5.0),
    ],
)
def test_other_causes_have_no_retry_hint(cause: OverloadedError | None, definite: bool, held_s: float) -> None:
    error = expiry_error(cause, 3, definite=definite, held_s=held_s)
    assert (error.code, error.retry_after_ms, error.definite) == (pb.TIMED_OUT, 0, definite)


def test_unsent_record_is_definitely_not_stored() -> None:
    error = encoding_error(MemoryError("no room"))
    assert (error.definite, error.retriable, str(error.__cause__)) == (True, False, "no room")
    assert "MemoryError('no room')" in str(error)


def test_copied_error_is_equal_and_independent() -> None:
    error = error_of(ProtocolError(pb.OFFSET_OUT_OF_RANGE, "gone", log_start_offset=3, high_watermark=9).to_message())
    error.__cause__ = OSError("disk")
    error.add_note("first")
    fresh = copy_of_error(error)
    assert isinstance(fresh, OffsetOutOfRangeError)
    assert (str(fresh), vars(fresh), fresh.__cause__) == (str(error), vars(error), error.__cause__)
    fresh.add_note("second")
    assert error.__notes__ == ["first"]
    bare = copy_of_error(NodeUnreachableError("x"))
    assert bare.__cause__ is None
    assert not bare.__suppress_context__
    assert (bare.definite, bare.retriable, bare.args) == (True, True, ("x",))
    own = copy_of_error(RecordError("odd", topic="t", partition=1, offset=2))
    assert isinstance(own, RecordError)
    assert (own.topic, own.partition, own.offset) == ("t", 1, 2)
