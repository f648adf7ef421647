from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from tidelog_gateway.credentials import TOKEN_CHARS_MAX, credentials_in, refuse_secrets_in
from tidelog_gateway.problems import Problem

KEY = "tlk_abcdefghij234567_" + "s" * 43


def headers(*shown: str) -> Headers:
    return Headers(raw=[(b"authorization", value.encode("latin-1")) for value in shown])


def test_what_is_shown() -> None:
    for form in (f"Bearer {KEY}", f"bearer   {KEY} ", f"BEARER {KEY}"):
        shown = credentials_in(headers(form))
        assert shown is not None
        assert shown.api_key == KEY
    assert credentials_in(headers()) is None
    of_issuer = credentials_in(headers("Bearer eyJh.eyJz.c2ln"))
    assert of_issuer is not None
    assert of_issuer.token == "eyJh.eyJz.c2ln"


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "Bearer",
        "Bearer ",
        KEY,
        f"Basic {KEY}",
        "Bearer a b",
        "Bearer \xff",
        "Bearer a,b",
        "Bearer x\x0by",
        "Bearer " + "x" * (TOKEN_CHARS_MAX + 1),
    ],
    ids=lambda shown: shown[:20],
)
def test_what_is_no_token(shown: str) -> None:
    with pytest.raises(Problem) as refused:
        credentials_in(headers(shown))
    assert refused.value.status == 401
    assert "WWW-Authenticate" in refused.value.headers
    assert KEY not in refused.value.detail, "what was shown is told to nobody"


def test_two_headers_are_none() -> None:
    with pytest.raises(Problem, match="several"):
        credentials_in(headers(f"Bearer {KEY}", f"Bearer {KEY}"))


@pytest.mark.parametrize("query", [b"", b"key=k&offset=3", b"key=tlk_", b"from=earliest", b"x=%ff&y=%zz", b"tokens=1"])
def test_addresses_without_secrets(query: bytes) -> None:
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
def test_addresses_with_secrets(query: bytes) -> None:
    with pytest.raises(Problem) as refused:
        refuse_secrets_in(query)
    assert (refused.value.status, refused.value.code) == (400, "credentials_in_url")


def test_a_query_of_very_many_fields_is_not_looked_through() -> None:
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
def test_whatever_comes_is_credentials_or_refused(shown: list[bytes], query: bytes) -> None:
    raw = [(b"authorization", b"Bearer " + value if len(value) % 2 else value) for value in shown]
    assert status_of(lambda: credentials_in(Headers(raw=raw))) in {0, 401}
    assert status_of(lambda: refuse_secrets_in(query)) in {0, 400}
