from __future__ import annotations

import pytest

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError, code_name


@pytest.mark.parametrize("code", pb.ErrorCode.values())
def test_an_error_travels_with_all_it_says(code: pb.ErrorCode) -> None:
    error = ProtocolError(code, "told", retry_after_ms=5, log_start_offset=6, high_watermark=7, epoch=8)
    message = pb.Error.FromString(error.to_message().SerializeToString())
    assert (message.code, message.message) == (code, "told")
    assert (message.retriable, message.definite) == NATURE[code] == (error.retriable, error.definite)
    assert (message.retry_after_ms, message.log_start_offset, message.high_watermark, message.epoch) == (5, 6, 7, 8)
    assert str(error) == f"{pb.ErrorCode.Name(code)}: told"


def test_faults_of_the_request_are_final_and_definite() -> None:
    for code in pb.ErrorCode.values():
        if 0 < code < 48:
            assert NATURE[code] == (False, True), code_name(code)


def test_unknown_outcomes_are_exactly_these() -> None:
    indefinite = {code_name(code) for code, nature in NATURE.items() if not nature.definite}
    assert indefinite == {
        "ERROR_CODE_UNSPECIFIED",
        "DUPLICATE_OUT_OF_WINDOW",
        "STORED_ON_QUORUM",
        "STORAGE_FAILED",
        "TIMED_OUT",
        "INTERNAL",
    }


def test_codes_of_a_newer_peer_get_their_number() -> None:
    assert code_name(pb.OVERLOADED) == "OVERLOADED"
    assert code_name(9999) == "ERROR_9999"
