from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from tidelog_gateway.auth.credentials import (
    CHALLENGE,
    TOKEN_CHARS_MAX,
    UserPassword,
    credentials_in,
    identity_bytes,
    refuse_secrets_in,
    user_password,
)
from tidelog_gateway.problems import Problem
from tidelog_proto import broker_pb2 as pb

KEY = "tlk_abcdefghij234567_" + "s" * 43


def headers(*shown: str) -> Headers:
    return Headers(raw=[(b"authorization", value.encode("latin-1")) for value in shown])


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_basic_credentials_are_parsed() -> None:
    for text, user, password in (
        ("ann:secret words", "ann", "secret words"),
        ("ann:a:b c", "ann", "a:b c"),
        ("é:ü", "é", "ü"),
    ):
        shown = credentials_in(headers(basic(text)))
        assert isinstance(shown, UserPassword)
        assert (shown.user, shown.password) == (user, password)
        assert password not in repr(shown) or password == "ü"
    marks = {identity_bytes(user_password(*pair)) for pair in (("ann", "b:c"), ("ann:b", "c"), ("ann", "B:c"))}
    assert len(marks) == 3


def test_authorization_headers_are_parsed() -> None:
    assert CHALLENGE.startswith("Bearer"), "with Basic, browsers would send the password with every request"
    for form in (f"Bearer {KEY}", f"bearer   {KEY} ", f"BEARER {KEY}"):
        shown = credentials_in(headers(form))
        assert isinstance(shown, pb.Credentials)
        assert shown.api_key == KEY
    assert credentials_in(headers()) is None
    of_issuer = credentials_in(headers("Bearer eyJh.eyJz.c2ln"))
    assert isinstance(of_issuer, pb.Credentials)
    assert of_issuer.token == "eyJh.eyJz.c2ln"


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "Bearer",
        "Bearer ",
        KEY,
        f"Basic {KEY}",
        "Basic ",
        basic("ann"),
        basic("ann:"),
        basic(":secret words"),
        basic("a\tn:secret words"),
        "Basic /w==",
        basic("ann:secret words").replace("w==", "x=="),
        "Basic " + "x" * 4096,
        "Bearer a b",
        "Bearer \xff",
        "Bearer a,b",
        "Bearer x\x0by",
        "Bearer " + "x" * (TOKEN_CHARS_MAX + 1),
    ],
    ids=lambda shown: shown[:20],
)
def test_malformed_tokens_are_refused(shown: str) -> None:
    with pytest.raises(Problem) as refused:
        credentials_in(headers(shown))
    assert refused.value.status == 401
    assert "WWW-Authenticate" in refused.value.headers
    assert KEY not in refused.value.detail, "messages do not contain credentials"


def test_repeated_authorization_headers_are_refused() -> None:
    with pytest.raises(Problem, match="the request has 2 Authorization headers"):
        credentials_in(headers(f"Bearer {KEY}", f"Bearer {KEY}"))


@pytest.mark.parametrize("query", [b"", b"key=k&offset=3", b"key=tlk_", b"from=earliest", b"x=%ff&y=%zz", b"tokens=1"])
def test_urls_without_secrets_are_accepted(query: bytes) -> None:
    refuse_secrets_in(query)


@pytest.mark.parametrize(
    "query",
    [
        b"token=x",
        b"a=1&TOKEN=",
        b"access%5Ftoken=x",
        b"api_key=1",
        b"password=x",
        b"Authorization=Bearer",
        f"key={KEY}".encode(),
        f"k={KEY}x".encode(),
        b"x=" + KEY.replace("_", "%5f").encode(),
    ],
)
def test_urls_with_secrets_are_refused(query: bytes) -> None:
    with pytest.raises(Problem) as refused:
        refuse_secrets_in(query)
    assert (refused.value.status, refused.value.code) == (400, "credentials_in_url")


def test_a_query_with_too_many_fields_is_refused() -> None:
    with pytest.raises(Problem) as refused:
        refuse_secrets_in(b"&".join([b"a=1"] * 2000))
    assert refused.value.status == 400


def status_of(tried: Callable[[], object]) -> int:
    try:
        tried()
    except Problem as problem:
        return problem.status
    return 0


@given(shown=st.lists(st.binary(max_size=60), max_size=3), query=st.binary(max_size=200))
def test_any_header_and_query_is_parsed_or_refused(shown: list[bytes], query: bytes) -> None:
    schemes = (b"", b"Bearer ", b"Basic ", b"Basic ")
    raw = [(b"authorization", schemes[len(value) % 4] + value) for value in shown]
    assert status_of(lambda: credentials_in(Headers(raw=raw))) in {0, 401}
    assert status_of(lambda: refuse_secrets_in(query)) in {0, 400}


def test_empty_bearer_token_is_called_empty() -> None:
    with pytest.raises(Problem, match="the bearer token is empty; send Authorization: Bearer KEY"):
        credentials_in(Headers({"Authorization": "Bearer "}))
