"""Objects with a repeated member are refused wherever the gateway interprets them, and JSON values are kept."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.fake_log import FakeLog

from tidelog_gateway.bodies.cloudevents import event_batch, structured_event
from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES, records_in
from tidelog_gateway.bodies.json_lines import Line, parse_lines
from tidelog_gateway.bodies.plain_records import plain_records
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.codecs import MessageError
from tidelog_gateway.protocol.json_codec import JSON
from tidelog_gateway.records.json_decoding import Records, parse_body
from tidelog_gateway.requests.repeated_members import VALUES_OF_RECORDS, refuse_repeats

NOW_US = 1_700_000_000_000_000
HEAD = {"Content-Type": "application/json"}
TWICE = "is given 2 times in one object; send it once"
EVENT = '"specversion":"1.0","id":"1","source":"/s","type":"t"'


def braced(members: str) -> str:
    return f"{{{members}}}"


async def pace() -> None:
    """Grant each turn at once."""


async def refused(work: Awaitable[object]) -> list[dict[str, str]]:
    with pytest.raises(Problem) as caught:
        await work
    assert caught.value.status == 422
    errors: list[dict[str, str]] = caught.value.extra["errors"]
    return errors


def read(body: str) -> Awaitable[Records]:
    return records_in(body.encode(), records_max=1_000, now_us=NOW_US, pace=pace)


LARGE = f'{{"value":"{"x" * AT_ONCE_BYTES}"}}'


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ('{"records":[{"value":"a"}],"records":[{"value":"b"}]}', "/records"),
        ('{"records":[{"value":"a","value":"b"}]}', "/records/0/value"),
        ('{"records":[{"value":"a"},{"value":"b","key":"k","key":null}]}', "/records/1/key"),
        ('{"records":[{"value":"a","key":"k","key":"l"},{"value":"b"}]}', "/records/0/key"),
        ('{"records":[{"value":"a","v\\u0061lue":"b"}]}', "/records/0/value"),
        ('{"records":[{"value" : "a" , "\\u0076\\u0061\\u006C\\u0075\\u0065" : "b"}]}', "/records/0/value"),
        ('{"records":[{"value":"a"}],"\\u0072ecords":[{"value":"b"}]}', "/records"),
        ('{"records":[{"value":{"value":1},"value_encoding":"json","value":{"value":2}}]}', "/records/0/value"),
        ('{"records":[{"value":NaN,"value":"x"}]}', "/records/0/value"),
        ('{"records":[{"value":"a","headers":[["h","1"]],"headers":[["h","2"]]}]}', "/records/0/headers"),
        ('{"records":[{"value":"a","tag":"t","tag":"t"}]}', "/records/0/tag"),
        ('{"records":[{"value":"a","value":"\\u0022\\u0022"}]}', "/records/0/value"),
        ('{"records":5,"records":[{"value":1,"value_encoding":"json"}]}', "/records"),
        (f'{{"records":[{LARGE},{{"value":"a","value":"b"}}]}}', "/records/1/value"),
        (f'{{"records":[{LARGE},{{"value":"a","val\\u0075e":"b"}}]}}', "/records/1/value"),
    ],
)
async def test_a_repeated_member_of_a_body_is_refused_and_named(body: str, where: str) -> None:
    assert await refused(read(body)) == [{"pointer": where, "detail": TWICE}]
    assert plain_records(body.encode(), records_max=10, now_us=lambda: NOW_US) is None


async def test_each_repeated_member_is_reported_with_its_count() -> None:
    errors = await refused(read('{"records":[{"value":"a","value":"b","value":"c","key":"k","key":"k"}]}'))
    assert errors == [
        {"pointer": "/records/0/value", "detail": "is given 3 times in one object; send it once"},
        {"pointer": "/records/0/key", "detail": TWICE},
    ]


@pytest.mark.parametrize("padding", ["", "," + LARGE])
async def test_repeats_within_a_json_value_are_stored_as_they_were_sent(padding: str) -> None:
    value = '{"value":1,"value":2,"key":{"key":1,"k\\u0065y":2},"records":[{"a":1,"a":2}]}'
    records = await read(f'{{"records":[{{"value":{value},"value_encoding":"json"}}{padding}]}}')
    assert records.values[0] == value.encode()


@pytest.mark.parametrize("record", [{"value": "value", "key": "key", "tag": "tag"}, {"value": None, "key": None}])
async def test_strings_that_equal_a_name_and_nulls_are_accepted(record: dict[str, Any]) -> None:
    records = await read(json.dumps({"records": [record, {"value": "records", "headers": [["value", "key"]]}]}))
    assert len(records) == 2


async def test_a_repeated_member_of_a_line_is_an_error_of_that_line_only() -> None:
    texts = ['{"value":"a"}', '{"value":"a","value":"b"}', f'{{"value":"a","key":"k","key":"{"x" * AT_ONCE_BYTES}"}}']
    lines = [Line(number, text.encode()) for number, text in enumerate(texts, 1)]
    parsed = await parse_lines(lines, now_us=lambda: NOW_US, pace=pace)
    assert parsed.records is not None
    assert parsed.records.values == [b"a"]
    errors = {number: problem.extra["errors"] for number, problem in parsed.faults.items()}
    assert errors == {2: [{"pointer": "/value", "detail": TWICE}], 3: [{"pointer": "/key", "detail": TWICE}]}


async def test_a_repeat_within_the_json_value_of_a_line_is_kept() -> None:
    text = b'{"value":{"value":1,"value":2},"value_encoding":"json"}'
    parsed = await parse_lines([Line(1, text)], now_us=lambda: NOW_US, pace=pace)
    assert parsed.records is not None
    assert parsed.records.values == [b'{"value":1,"value":2}']


@pytest.mark.parametrize("name", ["id", "data", "datacontenttype", "partitionkey", "extension1"])
async def test_a_repeated_attribute_of_a_cloudevent_is_refused(name: str) -> None:
    value = '"a/b"'
    event = f'{{{EVENT},"{name}":{value},"{name[:-1]}\\u00{ord(name[-1]):02x}":{value}}}'
    count = 3 if name == "id" else 2
    detail = f"is given {count} times in one object; send it once"
    assert await refused(structured_event(event.encode(), pace=pace)) == [{"pointer": f"/{name}", "detail": detail}]
    batch = f"[{{{EVENT}}},{event}]".encode()
    assert await refused(event_batch(batch, records_max=10, pace=pace)) == [{"pointer": f"/1/{name}", "detail": detail}]


async def test_repeats_within_the_data_of_a_cloudevent_are_kept() -> None:
    data = '{"id":1,"id":2}'
    records = await structured_event(f'{{{EVENT},"data":{data}}}'.encode(), pace=pace)
    assert records.values == [data.encode()]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"id":1,"id":2,"unsub":{"sid":1}}', "/id"),
        ('{"id":1,"unsub":{"sid":1,"sid":2}}', "/unsub/sid"),
        ('{"id":1,"commit":{"sid":1,"offsets":{"0":5,"0":6}}}', "/commit/offsets/0"),
        ('{"credit":{"sid":1,"records":5},"credit":{"sid":1,"records":6}}', "/credit"),
        ('{"id":1,"sub":{"sid":1,"topic":"t","credit":{"records":1,"records":2}}}', "/sub/credit/records"),
        ('{"id":1,"auth":{"token":"a","token":"b"}}', "/auth/token"),
        ('{"id":1,"sub":{"sid":1},"sub":null,"pub":{"topic":"t","records":[{"value":"a"}]}}', "/sub"),
        ('{"id":1,"pub":{"topic":"t","topic":"u","records":[{"value":"a"}]}}', "/pub/topic"),
        (
            '{"id":1,"pub":{"topic":"t","records":[{"value":"a"}]},"pub":{"topic":"t","records":[{"value":"b"}]}}',
            "/pub",
        ),
        ('{"id":1,"pub":{"topic":"t","records":[{"value":"a","value":"b"}]}}', "/pub/records/0/value"),
        ('{"id":1,"\\u0069d":2,"pub":{"topic":"t","records":[{"value":"a"}]}}', "/id"),
    ],
)
def test_a_repeated_member_of_a_websocket_message_is_refused(text: str, where: str) -> None:
    with pytest.raises(MessageError) as caught:
        JSON.parse(text, now_us=NOW_US)
    problem = caught.value.problem
    assert (problem.status, problem.extra["errors"]) == (422, [{"pointer": where, "detail": TWICE}])


def test_repeats_within_a_json_value_of_a_websocket_message_are_kept() -> None:
    value = '{"id":1,"id":2,"value":"pub"}'
    text = f'{{"id":1,"pub":{{"topic":"t","records":[{{"value":{value},"value_encoding":"json"}}]}}}}'
    assert JSON.parse(text, now_us=NOW_US).records().values == [value.encode()]


@pytest.mark.parametrize(
    ("method", "path", "body", "where"),
    [
        ("POST", "/v1/topics", '{"name":"new","partitions":1,"partitions":8}', "/partitions"),
        ("POST", "/v1/topics", '\ufeff{"name":"new","name":"newer"}', "/name"),
        ("PUT", "/v1/groups/g/offsets", '{"offsets":[],"offsets":[]}', "/offsets"),
        (
            "PUT",
            "/v1/groups/g/offsets",
            '{"offsets":[{"topic":"orders","partition":0,"next_offset":1,"next_offset":2}]}',
            "/offsets/0/next_offset",
        ),
        (
            "PUT",
            "/v1/groups/g/offsets",
            '{"offsets":[{"topic":"orders","partition":0,"next_offset":1,"note":"","note":""}]}',
            "/offsets/0/note",
        ),
        ("POST", "/v1/topics", '{"\\ud800":1,"\\ud800":2}', "/\\ud800"),
    ],
)
async def test_a_repeated_member_in_the_body_of_another_route_is_refused(
    api: httpx.AsyncClient, method: str, path: str, body: str, where: str
) -> None:
    answer = await api.request(method, path, content=body.encode(), headers=HEAD)
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"pointer": where, "detail": TWICE}]


async def test_a_body_with_a_repeated_member_stores_nothing(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    body = '{"records":[{"value":"a"}],"records":[{"value":"b"}]}'
    answer = await api.post("/v1/topics/t/records", content=body, headers=HEAD)
    assert answer.status_code == 422
    assert answer.json()["detail"] == f"/records: {TWICE}"
    assert log.logs["t"] == [[], []]


class Written(NamedTuple):
    """A part of a body as text, and whether the gateway has to refuse it."""

    text: str
    repeats: bool


SPACE = st.sampled_from(["", " ", "\n\t "])
WORDS = st.sampled_from(["value", "key", "tag", "records", "utf8", 'a"value":', "\\", "\u00e9", ""])
VALUES = st.recursive(
    WORDS.map(json.dumps) | st.sampled_from(["1.10", "null", "true", "1e400"]),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda parts: f"[{','.join(parts)}]")
        | st.lists(st.tuples(WORDS, inner), max_size=3).map(
            lambda pairs: braced(",".join(f"{json.dumps(name)}: {text}" for name, text in pairs))
        )
    ),
    max_leaves=5,
)


@st.composite
def name(draw: st.DrawFn, text: str) -> str:
    """Write a name, perhaps with a character as an escape, and with space around it."""
    at = draw(st.integers(-3 * len(text), len(text) - 1))
    written = text if at < 0 else f"{text[:at]}\\u{ord(text[at]):04x}{text[at + 1 :]}"
    return f'{draw(SPACE)}"{written}"{draw(SPACE)}:'


@st.composite
def record(draw: st.DrawFn) -> Written:
    is_json = draw(st.booleans())
    members: list[tuple[str, str]] = [("value", draw(VALUES) if is_json else json.dumps(draw(WORDS)))]
    if is_json:
        members.append(("value_encoding", '"json"'))
    texts = st.sampled_from(["null", '"key"', '"x"'])
    headers = st.sampled_from(["[]", '[["value","key"]]'])
    others = draw(st.fixed_dictionaries({}, optional={"key": texts, "tag": texts, "headers": headers}))
    members += others.items()
    given = len(members)
    if draw(st.integers(0, 4)) == 0:
        members.append(draw(st.sampled_from(members)))
    members = draw(st.permutations(members))
    text = ",".join(draw(name(each)) + draw(SPACE) + item for each, item in members)
    return Written(braced(text), len(members) > given)


@st.composite
def body(draw: st.DrawFn) -> Written:
    records = draw(st.lists(record(), min_size=1, max_size=4))
    inside = f"[{','.join(each.text for each in records)}]"
    repeats = any(each.repeats for each in records)
    if draw(st.integers(0, 5)) == 0:
        return Written(braced(f'"records":[{{"value":"x"}}],"records":{inside}'), repeats=True)
    return Written(braced(f'"records":{inside}'), repeats)


def _is_refused(parse: Callable[[], Records | None]) -> bool:
    try:
        return parse() is None
    except (Problem, MessageError) as error:
        problem = error.problem if isinstance(error, MessageError) else error
        details = [each["detail"] for each in problem.extra["errors"]]
    assert all(detail.startswith("is given") for detail in details), details
    return True


@given(written=body())
def test_bodies_are_refused_if_and_only_if_a_member_is_repeated(written: Written) -> None:
    text = written.text.encode()
    assert _is_refused(lambda: parse_body(text, records_max=10, now_us=NOW_US)) == written.repeats
    plain = plain_records(text, records_max=10, now_us=lambda: NOW_US)
    assert plain is None or not written.repeats


@given(written=st.lists(record(), min_size=1, max_size=4))
async def test_pieces_are_refused_if_and_only_if_a_member_is_repeated(written: list[Written]) -> None:
    text = braced(f'"records":[{LARGE},{",".join(each.text for each in written)}]')
    wanted = {str(number) for number, each in enumerate(written, 1) if each.repeats}
    try:
        await read(text)
        found: set[str] = set()
    except Problem as problem:
        found = {error["pointer"].split("/")[2] for error in problem.extra["errors"]}
    assert found == wanted


@given(written=st.lists(record(), min_size=1, max_size=4))
async def test_lines_are_refused_if_and_only_if_a_member_is_repeated(written: list[Written]) -> None:
    lines = [Line(number, each.text.replace("\n", " ").encode()) for number, each in enumerate(written)]
    parsed = await parse_lines(lines, now_us=lambda: NOW_US, pace=pace)
    assert set(parsed.faults) == {number for number, each in enumerate(written) if each.repeats}


@given(written=body())
def test_websocket_messages_are_refused_if_and_only_if_a_member_is_repeated(written: Written) -> None:
    text = braced(f'"id":1,"pub":{{"topic":"t",{written.text[1:]}')
    assert _is_refused(lambda: JSON.parse(text, now_us=NOW_US).records()) == written.repeats


def _has_repeat(node: Any, path: tuple[str | int, ...]) -> bool:
    """Whether an object of a document of lists and `dict`-less pairs has a repeat where it is interpreted."""

    def parts() -> Iterator[tuple[str | int, Any]]:
        yield from node if isinstance(node, tuple) else enumerate(node)

    if not isinstance(node, tuple | list) or (len(path) == 3 and path[0] == "records" and path[2] == "value"):
        return False
    names = [each[0] for each in node] if isinstance(node, tuple) else []
    return len(set(names)) < len(names) or any(_has_repeat(item, (*path, part)) for part, item in parts())


NODES = st.recursive(
    st.integers(0, 1),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(st.sampled_from(["records", "value", "a", "b"]), inner), max_size=3).map(tuple)
    ),
    max_leaves=12,
)


def _written(node: Any) -> str:
    if isinstance(node, tuple):
        return braced(",".join(f"{json.dumps(each)}:{_written(item)}" for each, item in node))
    return f"[{','.join(map(_written, node))}]" if isinstance(node, list) else str(node)


@given(node=NODES)
def test_any_document_is_refused_if_and_only_if_an_interpreted_object_has_a_repeat(node: Any) -> None:
    def check() -> Records:
        refuse_repeats(_written(node).encode(), opaque=VALUES_OF_RECORDS)
        return Records([])

    assert _is_refused(check) == _has_repeat(node, ())
