from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.resume_tokens import TOKEN_CHARS_MAX, ResumeTokens, Scope, positions_in
from tidelog_proto.batch.header import OFFSET_MAX
from tidelog_proto.limits import PARTITIONS_MAX

SCOPE = Scope("visits", bytes(range(16)))
POSITIONS = st.dictionaries(st.integers(0, 300), st.integers(0, OFFSET_MAX), max_size=40)


def code_of(token: str, scope: Scope = SCOPE) -> tuple[int, str]:
    with pytest.raises(Problem) as caught:
        positions_in(token, scope)
    return caught.value.status, caught.value.code


def sealed(data: bytes) -> str:
    """Return a token of some bytes, with a valid checksum."""
    whole = data + zlib.crc32(data).to_bytes(4, "big")
    return base64.urlsafe_b64encode(whole).decode().rstrip("=")


@given(POSITIONS, POSITIONS)
def test_a_token_holds_the_newest_position_of_each_partition(first: dict[int, int], then: dict[int, int]) -> None:
    tokens = ResumeTokens(SCOPE, first)
    for partition, next_offset in then.items():
        tokens.move(partition, next_offset)
    assert positions_in(tokens.token(), SCOPE) == {**first, **then}


@given(
    st.dictionaries(st.integers(0, 20), st.integers(0, OFFSET_MAX), max_size=5),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, OFFSET_MAX)), min_size=1, max_size=5),
)
def test_a_token_after_a_move_is_that_of_two_calls(first: dict[int, int], then: list[tuple[int, int]]) -> None:
    once, twice = ResumeTokens(SCOPE, first), ResumeTokens(SCOPE, first)
    for partition, next_offset in then:
        twice.move(partition, next_offset)
        assert once.after(partition, next_offset) == twice.token()


def test_a_token_is_url_safe_and_short() -> None:
    token = ResumeTokens(SCOPE, dict.fromkeys(range(100), 10**9)).token()
    assert token.replace("-", "").replace("_", "").isalnum()
    assert len(token) < 800


def test_the_longest_token_is_within_its_limit() -> None:
    token = ResumeTokens(SCOPE, dict.fromkeys(range(PARTITIONS_MAX), OFFSET_MAX)).token()
    assert len(token) <= TOKEN_CHARS_MAX
    assert len(positions_in(token, SCOPE)) == PARTITIONS_MAX


@given(st.text(max_size=200))
def test_text_that_is_not_a_token_is_refused(text: str) -> None:
    assert code_of(text) == (422, "invalid_resume_token")


@given(st.integers(0, 200), st.sampled_from("AB_-9z"))
def test_a_token_with_a_changed_character_is_refused(at: int, character: str) -> None:
    token = ResumeTokens(SCOPE, {0: 5, 3: 10**12}).token()
    at %= len(token)
    changed = token[:at] + character + token[at + 1 :]
    if changed != token:
        assert code_of(changed) == (422, "invalid_resume_token")


@pytest.mark.parametrize(
    "tail",
    [
        b"\x02\x01",
        b"\x01\x80",
        b"\x01" + b"\xff" * 30 + b"\x01",
        b"\x01" + b"\xff" * 9 + b"\x01",
        b"\xa1\x8d\x06" + b"\x01" * 100_001,
        b"",
    ],
    ids=["too few", "cut", "endless", "offset too large", "too many partitions", "nothing"],
)
def test_positions_that_no_gateway_makes_are_refused(tail: bytes) -> None:
    assert code_of(sealed(SCOPE.head() + tail)) == (422, "invalid_resume_token")


def test_a_token_of_another_version_names_both() -> None:
    with pytest.raises(Problem, match="version is 9, and this gateway supports version 1"):
        positions_in(sealed(b"\x09" + SCOPE.head()[1:] + b"\x00"), SCOPE)


def test_a_token_of_another_topic_is_refused() -> None:
    token = ResumeTokens(SCOPE, {0: 5}).token()
    assert code_of(token, Scope("orders", bytes(16))) == (422, "invalid_resume_token")


def test_a_token_of_a_topic_that_was_recreated_is_refused() -> None:
    token = ResumeTokens(SCOPE, {0: 5}).token()
    assert code_of(token, Scope("visits", bytes(16))) == (410, "topic_recreated")


@pytest.mark.parametrize(
    ("key", "tag"), [(None, "b"), (b"a", None), (b"b", "a"), (None, None), (b"", None), (b"ab", None)]
)
def test_a_token_of_another_filter_is_refused(key: bytes | None, tag: str | None) -> None:
    token = ResumeTokens(SCOPE._replace(key=b"a", tag="b"), {0: 5}).token()
    assert code_of(token, SCOPE._replace(key=key, tag=tag)) == (422, "invalid_resume_token")
