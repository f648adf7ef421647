from __future__ import annotations

import pickle

import pytest

from tidelog.errors import (
    CLASS_OF_CODE,
    ConnectionLostError,
    NodeUnreachableError,
    NotOwnerError,
    OffsetOutOfRangeError,
    RecordError,
    TidelogError,
    error_of,
    error_of_local,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError


@pytest.mark.parametrize("code", sorted(set(NATURE) - {0}))
def test_every_code_has_a_class_and_keeps_its_nature(code: pb.ErrorCode) -> None:
    error = error_of(ProtocolError(code, "the remedy", retry_after_ms=7).to_message())
    assert type(error) is CLASS_OF_CODE[code]
    assert (error.code, error.retriable, error.definite) == (code, *NATURE[code])
    assert (str(error), error.retry_after_ms) == ("the remedy", 7)
    assert error.code_name == pb.ErrorCode.Name(code)


def test_unknown_code_uses_the_messages_flags() -> None:
    message = pb.Error(message="new", retriable=True, definite=True)
    message.MergeFromString(b"\x08\xe7\x07")  # code 999
    error = error_of(message)
    assert type(error) is TidelogError
    assert (error.code, error.retriable, error.definite, error.code_name) == (999, True, True, "ERROR_999")


def test_bounds_and_epochs_are_attributes() -> None:
    gone = error_of(ProtocolError(pb.OFFSET_OUT_OF_RANGE, "gone", log_start_offset=3, high_watermark=9).to_message())
    assert isinstance(gone, OffsetOutOfRangeError)
    assert (gone.log_start_offset, gone.high_watermark) == (3, 9)
    moved = error_of_local(ProtocolError(pb.NOT_OWNER, "moved", epoch=4))
    assert isinstance(moved, NotOwnerError)
    assert moved.epoch == 4


def test_client_errors_have_no_code() -> None:
    assert NodeUnreachableError("x").definite
    assert not ConnectionLostError("x").definite
    assert ConnectionLostError("x", definite=True).definite
    assert ConnectionLostError("x").code_name == "CLIENT"


def test_empty_message_becomes_the_code_name() -> None:
    assert str(error_of(pb.Error(code=pb.LIMBO))) == "LIMBO"


def test_docstring_lists_every_class() -> None:
    import tidelog.errors as module  # noqa: PLC0415 - the test reads its docstring

    names = [name for name, value in vars(module).items() if isinstance(value, type) and name.endswith("Error")]
    assert [name for name in names if name not in (module.__doc__ or "") and name != "ProtocolError"] == []


@pytest.mark.parametrize(
    "error",
    [
        error_of(pb.Error(code=pb.NOT_OWNER, message="moved", epoch=4, retry_after_ms=5)),
        RecordError("odd", topic="t", partition=1, offset=2),
    ],
)
def test_errors_can_be_pickled(error: TidelogError) -> None:
    error.add_note("a note")
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))
