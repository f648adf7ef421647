from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.json_texts import EXAMPLES, NOT_JSON, objects, strings, values

from tidelog_proto.text.json_text import JsonNumber, checked_json, exact_json, json_text, member_text, members


@pytest.mark.parametrize("text", EXAMPLES)
def test_numbers_and_texts_of_any_form_are_json(text: str) -> None:
    assert json_text(text.encode()) == text
    exact_json(text)


@pytest.mark.parametrize("content", NOT_JSON, ids=lambda content: repr(content[:12]))
def test_ambiguous_json_is_refused(content: bytes) -> None:
    for read in (json_text, exact_json, checked_json):
        with pytest.raises(ValueError, match=r"."):
            read(content)


@given(values)
def test_any_json_text_is_taken(text: str) -> None:
    assert json_text(text.encode()) == text


@given(st.text())
def test_accepted_json_is_valid_for_python(text: str) -> None:
    try:
        json_text(text)
    except ValueError:
        return
    json.loads(text)


def test_numbers_are_kept_as_they_were_written() -> None:
    document = exact_json(b'{"a":[1.10,-0,1e999,"1.10"]}')
    assert list(map(repr, document["a"])) == ["1.10", "-0", "1e999", "'1.10'"]
    assert [isinstance(part, JsonNumber) for part in document["a"]] == [True, True, True, False]


def test_levels_around_a_value_are_not_its_own() -> None:
    text = f'{{"value":{EXAMPLES[-1]}}}'
    assert checked_json(text, around=1)[0] == text
    with pytest.raises(ValueError, match="nested too deeply"):
        json_text(text)


def test_brackets_in_strings_do_not_count_as_levels() -> None:
    assert json_text(json.dumps({"a": "[" * 500}))


@given(objects)
def test_members_are_found_with_the_text_of_their_values(text: str) -> None:
    found = list(members(text))
    assert dict(found).keys() == json.loads(text).keys()
    pairs = json.loads(text, object_pairs_hook=list)
    assert [(name, json.loads(value, object_pairs_hook=list)) for name, value in found] == pairs
    assert all(value in text and value == value.strip(" \t\n\r") for _, value in found)


@given(objects, st.sampled_from(['"value"', '"val\\u0075e"']), values, strings)
def test_a_member_is_found_however_its_name_is_written(before: str, name: str, value: str, behind: str) -> None:
    text = f'{{"before":{before}, {name} : {value} ,"behind":{behind}}}'
    assert member_text(text, "value") == value


def test_of_repeated_members_the_last_counts() -> None:
    assert member_text('{"value":1.0,"value":2.0}', "value") == "2.0"
