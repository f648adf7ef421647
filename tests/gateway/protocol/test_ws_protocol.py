from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.json_texts import NOT_JSON, values

from tidelog_gateway.protocol import ws_protocol
from tidelog_gateway.protocol.messages import AtTime, Sub
from tidelog_gateway.protocol.resume_tokens import ResumeTokens, Scope, positions_in
from tidelog_gateway.protocol.ws_protocol import (
    Allowance,
    Close,
    CommitOffsets,
    CreditAdded,
    EndSubscription,
    OpenSubscription,
    Publish,
    Reply,
    WsProtocol,
)
from tidelog_gateway.settings import GatewaySettings

SUB = {"sid": 7, "topic": "t", "credit": {"records": 10, "bytes": 100}}


def protocol(**settings: Any) -> WsProtocol:
    return WsProtocol(GatewaySettings(**settings))


def receive(on: WsProtocol, message: Any) -> Any:
    return on.receive(json.dumps(message), now_us=0)


def open_one(on: WsProtocol, positions: dict[int, int] | None = None, **changes: Any) -> None:
    action = receive(on, {"id": 1, "sub": {**SUB, **changes}})
    assert isinstance(action, OpenSubscription), action
    on.opened(7, positions or {0: 0, 1: 5})


def error_of(action: Any) -> dict[str, Any]:
    assert isinstance(action, Reply), action
    error: dict[str, Any] = action.message["error"]
    return error


@given(st.lists(values.filter(lambda text: text != "null"), min_size=1, max_size=3))
def test_json_is_kept_as_it_was_sent(texts: list[str]) -> None:
    records = ",".join(f'{{"value": {text} ,"value_encoding":"json"}}' for text in texts)
    action = protocol().receive(f'{{"pub":{{"topic":"t","records":[{records}]}},"id":1}}', now_us=0)
    assert isinstance(action, Publish)
    assert action.records.values == [text.encode() for text in texts]


@pytest.mark.parametrize("content", [each for each in NOT_JSON if b"\xff" not in each and b"\xed" not in each])
def test_json_is_validated_by_the_common_definition(content: bytes) -> None:
    record = f'{{"value_encoding":"json","value":{content.decode()}}}'
    action = protocol().receive(f'{{"id":1,"pub":{{"topic":"t","records":[{record}]}}}}', now_us=0)
    assert error_of(action)["status"] == 422


def test_auth_is_answered() -> None:
    assert receive(protocol(), {"id": 1, "auth": {"token": "x"}}) == Reply({"id": 1, "ok": {}})


def test_a_subscription_opens_with_all_its_options() -> None:
    action = receive(
        protocol(),
        {"id": 2, "sub": {**SUB, "group": "g", "from": {"timestamp_ms": 5}, "resume": {"0": 42, "3": 1}}},
    )
    assert isinstance(action, OpenSubscription)
    assert action.id == 2
    assert (action.sub.group, action.sub.start, action.sub.resume) == ("g", AtTime(timestamp_ms=5), {0: 42, 3: 1})


def test_from_is_latest_by_default() -> None:
    assert Sub.model_validate(SUB).start == "latest"


def test_credit_is_exact_in_records_and_overdrawn_by_at_most_one_record_in_bytes() -> None:
    on = protocol(ws_batch_records_max=4, ws_batch_bytes_max=1024)
    open_one(on)
    assert on.allowance(7) == Allowance(4, 100)
    on.delivered(7, 0, records=4, payload_bytes=60, next_offset=4)
    assert on.allowance(7) == Allowance(4, 40)
    on.delivered(7, 0, records=1, payload_bytes=500, next_offset=5)
    assert on.allowance(7) == Allowance(0, 0), "overdrawn: pause"
    assert receive(on, {"credit": {"sid": 7, "bytes": 460}}) == CreditAdded(7)
    assert on.allowance(7) == Allowance(0, 0), "still not above zero"
    receive(on, {"credit": {"sid": 7, "bytes": 1}})
    assert on.allowance(7) == Allowance(4, 1)
    on.delivered(7, 1, records=4, payload_bytes=0, next_offset=9)
    on.delivered(7, 1, records=1, payload_bytes=0, next_offset=10)
    assert on.allowance(7) == Allowance(0, 0), "no records left"
    receive(on, {"credit": {"sid": 7, "records": 2}})
    assert on.allowance(7) == Allowance(2, 1)


def test_zero_credit_pauses_from_the_start() -> None:
    on = protocol()
    open_one(on, credit={"records": 0})
    assert on.allowance(7) == Allowance(0, 0)


def test_without_bytes_only_records_are_counted() -> None:
    on = protocol(ws_batch_bytes_max=2048)
    open_one(on, credit={"records": 3})
    on.delivered(7, 0, records=1, payload_bytes=10**9, next_offset=1)
    assert on.allowance(7) == Allowance(2, 2048)


def test_sending_more_than_was_allowed_is_a_bug() -> None:
    on = protocol()
    open_one(on)
    with pytest.raises(AssertionError):
        on.delivered(7, 0, records=11, payload_bytes=1, next_offset=11)
    with pytest.raises(AssertionError):
        on.delivered(7, 1, records=1, payload_bytes=1, next_offset=5)


def test_commits_reach_only_as_far_as_delivery() -> None:
    on = protocol()
    open_one(on, group="g")
    on.delivered(7, 0, records=3, payload_bytes=1, next_offset=3)
    assert receive(on, {"id": 3, "commit": {"sid": 7, "offsets": {"0": 3, "1": 5}, "note": "n"}}) == CommitOffsets(
        3, 7, "t", "g", {0: 3, 1: 5}, "n"
    )
    assert error_of(receive(on, {"id": 4, "commit": {"sid": 7, "offsets": {"0": 4}}}))["status"] == 422
    error = error_of(receive(on, {"id": 4, "commit": {"sid": 7, "offsets": {"9": 0}}}))
    assert error["errors"][0]["pointer"] == "/commit/offsets/9"


def test_a_subscription_without_a_group_cannot_commit() -> None:
    on = protocol()
    open_one(on)
    assert error_of(receive(on, {"id": 3, "commit": {"sid": 7, "offsets": {"0": 0}}}))["status"] == 422


def test_publishing_carries_columns() -> None:
    action = receive(protocol(), {"id": 4, "pub": {"topic": "t", "records": [{"key": "k", "value": "v"}]}})
    assert isinstance(action, Publish)
    assert action.records.columns().to_pylist() == [{"key": b"k", "value": b"v"}]


def test_the_error_of_a_bad_record_has_its_position() -> None:
    error = error_of(receive(protocol(), {"id": 4, "pub": {"topic": "t", "records": [{"value": 1}]}}))
    assert error["errors"][0]["pointer"] == "/pub/records/0/value"
    records = [{"value": "a"}] * 3
    error = error_of(receive(protocol(records_per_request_max=2), {"id": 4, "pub": {"topic": "t", "records": records}}))
    assert error["errors"][0]["pointer"] == "/pub/records"


def test_unsub_frees_the_sid() -> None:
    on = protocol()
    open_one(on)
    assert receive(on, {"id": 5, "unsub": {"sid": 7}}) == EndSubscription(5, 7)
    assert error_of(receive(on, {"id": 6, "unsub": {"sid": 7}}))["code"] == "unknown_subscription"
    open_one(on)


@pytest.mark.parametrize("name", ["credit", "commit", "unsub"])
def test_an_unknown_sid_is_an_error_with_the_id(name: str) -> None:
    body = {"sid": 9, "offsets": {"0": 0}} if name == "commit" else {"sid": 9}
    action = receive(protocol(), {"id": 3, name: body})
    assert action.message["id"] == 3
    assert error_of(action)["code"] == "unknown_subscription"


def test_a_sid_is_used_once_and_their_number_is_bounded() -> None:
    on = protocol(ws_subscriptions_max=2)
    open_one(on)
    assert error_of(receive(on, {"id": 2, "sub": SUB}))["code"] == "subscription_exists"
    assert isinstance(receive(on, {"id": 2, "sub": {**SUB, "sid": 8}}), OpenSubscription)
    error = error_of(receive(on, {"id": 3, "sub": {**SUB, "sid": 9}}))
    assert (error["code"], error["status"]) == ("too_many_subscriptions", 429)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"id": 1},
        {"id": 1, "nonsense": {}},
        {"id": 1, "auth": {"token": "x"}, "unsub": {"sid": 1}},
        {"auth": {"token": "x"}},
        {"id": -1, "auth": {"token": "x"}},
        {"id": "1", "auth": {"token": "x"}},
        {"id": 1.5, "auth": {"token": "x"}},
        {"id": 2**53, "auth": {"token": "x"}},
        {"id": 1, "auth": {}},
        {"id": 1, "sub": {"sid": 1, "topic": "t"}},
        {"id": 1, "sub": {**SUB, "credit": {"records": -1}}},
        {"id": 1, "sub": {**SUB, "credit": {"records": 1, "bytes": -1}}},
        {"id": 1, "sub": {**SUB, "from": "yesterday"}},
        {"id": 1, "sub": {**SUB, "resume": {"x": 1}}},
        {"id": 1, "sub": {**SUB, "resume": {"0": -1}}},
        {"id": 1, "sub": {**SUB, "resume": {"-1": 0}}},
        {"id": 1, "sub": {**SUB, "resume": [1]}},
        {"id": 1, "sub": {**SUB, "topic": ""}},
        {"credit": {"sid": 7, "records": -1}},
        {"credit": {"sid": 7, "bytes": -1}},
        {"credit": {"sid": 7, "records": 2**53}},
        {"id": 1, "commit": {"sid": 7, "offsets": {}}},
        {"id": 1, "commit": {"sid": 7, "offsets": {"0": "5"}}},
        {"id": 1, "committed": {"group": "g"}},
        {"id": 1, "committed": {"topic": "t"}},
        {"committed": {"group": "g", "topic": "t"}},
        {"id": 1, "committed": {"group": "", "topic": "t"}},
        {"id": 1, "committed": {"group": "g" * 256, "topic": "t"}},
        {"id": 1, "committed": {"group": "g", "topic": "t", "partitions": []}},
        {"id": 1, "committed": {"group": "g", "topic": "t", "partitions": [-1]}},
        {"id": 1, "committed": {"group": "g", "topic": "t", "partitions": [0] * 16_385}},
        {"id": 1, "committed": {"group": "g", "topic": "t", "from_partition": 100_000}},
        {"id": 1, "committed": {"group": "g", "topic": "t", "sid": 7}},
        {"id": 1, "pub": {"topic": "t", "records": []}},
        {"id": 1, "pub": {"topic": "t"}},
        [],
        "text",
        None,
        5,
    ],
)
def test_messages_that_are_not_valid_are_answered_and_change_nothing(message: Any) -> None:
    on = protocol()
    open_one(on)
    before = on.allowance(7)
    action = receive(on, message)
    assert error_of(action)["code"] == "invalid_request"
    assert on.allowance(7) == before
    assert list(on.subscriptions) == [7]
    valid_id = isinstance(message, dict) and message.get("id") == 1
    assert action.message.get("id") == (1 if valid_id else None)


@given(st.text(max_size=100))
@settings(max_examples=200)
def test_any_text_is_answered(text: str) -> None:
    assert isinstance(protocol().receive(text, now_us=0), Reply)


def test_deeply_nested_text_is_answered() -> None:
    assert error_of(protocol().receive("[" * 100_000, now_us=0))


def test_binary_closes_with_unsupported_data() -> None:
    assert isinstance(protocol().receive_other(), Close)
    assert protocol().receive_other().code == 1003


def test_a_member_gets_its_partitions_and_may_commit_revoked_ones() -> None:
    on = protocol()
    sub = {"sid": 7, "topic": "t", "group": "g", "member": True, "credit": {"records": 10}}
    assert isinstance(receive(on, {"id": 1, "sub": sub}), OpenSubscription)
    on.opened(7, {})
    assert not on.may_send(7, 0, on.assignment(7, 0))
    on.assigned(7, {0: 5, 1: 0})
    on.delivered(7, 0, records=2, payload_bytes=1, next_offset=7)
    on.stopped(7, [0])
    assert [on.may_send(7, number, on.assignment(7, number)) for number in (0, 1, 2)] == [False, True, False]
    assert isinstance(receive(on, {"id": 2, "commit": {"sid": 7, "offsets": {"0": 7}}}), CommitOffsets)
    on.revoked(7, [0])
    assert error_of(receive(on, {"id": 3, "commit": {"sid": 7, "offsets": {"0": 7}}}))["status"] == 422
    on.assigned(7, {0: 9})
    assert on.may_send(7, 0, on.assignment(7, 0))
    assert not on.may_send(7, 0, on.assignment(7, 0) - 1), "records of an earlier assignment"


def tokens_of(on: WsProtocol, partitions: int) -> int:
    """Open subscription 1 with so many partitions and return the length of its first token."""
    on.receive(json.dumps({"id": 1, "sub": SUB | {"sid": 1}}), now_us=0)
    positions = dict.fromkeys(range(partitions), 10**9)
    on.opened(1, positions, ResumeTokens(Scope("t", bytes(16)), positions))
    return len(on.resume_token(1) or "")


def test_a_short_token_is_in_every_batch() -> None:
    on = protocol()
    assert tokens_of(on, 100) <= ws_protocol.SHORT_TOKEN_CHARS
    for at in range(1, 5):
        on.passed(1, 0, next_offset=10**9 + at)
        token = on.batch_token(1, size_bytes=1)
        assert token is not None
        assert positions_in(token, Scope("t", bytes(16)))[0] == 10**9 + at


def test_a_long_token_is_a_small_share_of_the_sent_bytes() -> None:
    on = protocol()
    chars = tokens_of(on, 5000)
    sent = [len(on.batch_token(1, size_bytes=chars) or "") for _ in range(100)]
    assert 5 <= sum(map(bool, sent)) <= 100 / ws_protocol.TOKEN_SHARE


def test_a_token_that_leaves_no_room_for_records_is_not_in_batches() -> None:
    on = protocol(ws_batch_bytes_max=1024)
    chars = tokens_of(on, 5000)
    assert not any(on.batch_token(1, size_bytes=chars) for _ in range(100))


def test_a_token_that_grows_by_many_partitions_waits_for_a_message_with_room() -> None:
    on = protocol()
    tokens_of(on, 3)
    on.passed(1, 200, next_offset=1)
    assert on.batch_token(1) is None
    before = on.records_bytes_max(1)
    token = on.batch_token(1)
    assert token is not None
    assert len(token) + before <= 1_000_000
