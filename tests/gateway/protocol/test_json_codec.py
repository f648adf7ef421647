from __future__ import annotations

import json

import pytest

from tidelog_gateway.protocol.codecs import MessageError
from tidelog_gateway.protocol.json_codec import JSON, id_at_the_begin


def test_values_of_records_are_the_bytes_that_were_sent() -> None:
    text = '{"id":1,"pub":{"topic":"t","records":[{"value":1.10,"value_encoding":"json"},{"value":"\\u0061"}]}}'
    parsed = JSON.parse(text, now_us=0)
    assert parsed.records().values == [b"1.10", b"a"]


@pytest.mark.parametrize(
    ("text", "request_id"),
    [('{"id":3,"sub":{}}', 3), ('{"id":true,"unsub":1}', None), ("[]", None), ("{", None), ('{"id":-1}', None)],
)
def test_an_error_has_the_id_of_the_request_if_it_can_be_read(text: str, request_id: int | None) -> None:
    with pytest.raises(MessageError) as caught:
        JSON.parse(text, now_us=0)
    assert caught.value.request_id == request_id


def test_the_id_is_found_without_parsing_the_message() -> None:
    assert id_at_the_begin(' { "id" : 12 , "pub":') == 12
    assert id_at_the_begin('{"pub":{"id":1') is None


def test_messages_are_json_with_records_copied_as_encoded() -> None:
    message = {"batch": {"records": JSON.records_member(b'[{"offset":1}]')}}
    assert json.loads(JSON.encode(message)) == {"batch": {"records": [{"offset": 1}]}}
    assert JSON.payload({"text": "{}"}) == "{}"
    assert JSON.payload({"bytes": b"{}"}) is None


@pytest.mark.parametrize("name", ["00", "+0", "0.0", "1_0", " 0", "-0"])
def test_a_partition_has_one_name_as_a_member(name: str) -> None:
    with pytest.raises(MessageError, match="decimal digits"):
        JSON.parse(f'{{"id":3,"commit":{{"sid":1,"offsets":{{"0":5,"{name}":6}}}}}}', now_us=0)


def test_partitions_are_members_in_decimal_digits() -> None:
    commit = JSON.parse('{"id":3,"commit":{"sid":1,"offsets":{"0":5,"10":6}}}', now_us=0).message.commit
    assert commit is not None
    assert commit.offsets == {0: 5, 10: 6}
