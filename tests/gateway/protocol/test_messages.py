from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from tidelog_gateway.protocol.messages import REQUESTS, AtTime, ClientMessage


def test_the_documented_examples_are_valid() -> None:
    for text in (
        '{"id":1,"auth":{"token":"secret"}}',
        '{"id":2,"sub":{"sid":7,"topic":"t","group":"g","from":"latest","resume":{"0":42},"credit":{"records":500}}}',
        '{"credit":{"sid":7,"records":100,"bytes":65536}}',
        '{"id":3,"commit":{"sid":7,"offsets":{"0":50}}}',
        '{"id":4,"pub":{"topic":"t","records":[{"key":"k","value":"v"}]}}',
        '{"id":5,"committed":{"group":"g","topic":"t","partitions":[0]}}',
        '{"id":6,"unsub":{"sid":7}}',
    ):
        message = ClientMessage.model_validate_json(text)
        assert sum(getattr(message, name) is not None for name in REQUESTS) == 1


def test_keys_of_offsets_are_partition_numbers() -> None:
    message = ClientMessage.model_validate_json('{"id":3,"commit":{"sid":7,"offsets":{"0":50,"12":1}}}')
    assert message.commit is not None
    assert message.commit.offsets == {0: 50, 12: 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id":1}', "exactly one of auth, sub, credit, commit, committed, pub, unsub"),
        ('{"id":1,"auth":{"token":"x"},"unsub":{"sid":1}}', "exactly one of .*, got auth, unsub"),
        ('{"unsub":{"sid":1}}', "unsub requires an id"),
    ],
)
def test_a_message_is_one_request_with_an_id(text: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ClientMessage.model_validate_json(text)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "requires a group"),
        (',"group":"g","resume":{"0":1}', "leave resume and resume_token out"),
        (',"group":"g","resume_token":"AQ"', "leave resume and resume_token out"),
    ],
)
def test_a_member_requires_a_group_and_begins_at_its_commit(more: str, said: str) -> None:
    text = '{"id":1,"sub":{"sid":1,"topic":"t","member":true,"credit":{"records":1}' + more + "}}"
    with pytest.raises(ValidationError, match=said):
        ClientMessage.model_validate_json(text)


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        ({"timestamp_ms": 253402300799999}, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        ({"timestamp": "1970-01-20T00:00:00.000001Z"}, datetime(1970, 1, 20, 0, 0, 0, 1, UTC)),
    ],
)
def test_a_start_by_time_is_exact(given: dict[str, int | str], moment: datetime) -> None:
    assert AtTime.model_validate(given).moment == moment


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "exactly one of timestamp_ms and timestamp"),
        ({"timestamp_ms": 1, "timestamp": "1970-01-01T00:00:00Z"}, "exactly one of timestamp_ms and timestamp"),
        ({"timestamp_ms": 1795964400}, "pass 1795964400000, or timestamp with 1970-01-21T18:52:44.400000Z"),
        ({"timestamp": "1970-01-20"}, "ISO 8601 with a time zone"),
        ({"timestamp": "1969-12-31T23:59:59Z"}, "not before 1970"),
        ({"timestamp": "1795964400000"}, "ISO 8601 with a time zone"),
    ],
)
def test_an_unclear_start_by_time_is_refused(given: dict[str, int | str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        AtTime.model_validate(given)
