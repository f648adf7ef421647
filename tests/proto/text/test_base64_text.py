from __future__ import annotations

import base64
import itertools
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_proto.text.base64_text import from_base64, from_url_base64


@given(st.binary())
def test_any_bytes_return_from_their_base64(data: bytes) -> None:
    assert from_base64(base64.b64encode(data).decode()) == data
    assert from_url_base64(base64.b64encode(data).decode()) == data
    assert from_url_base64(base64.urlsafe_b64encode(data).decode()) == data


def test_only_one_text_is_decoded_to_a_byte_or_two() -> None:
    letters = f"{string.ascii_letters}{string.digits}+/"
    pairs = itertools.product(letters, repeat=2)
    texts = [f"{first}{second}{end}" for first, second in pairs for end in ("==", "A=", "B=", "E=", "g=", "8=")]
    accepted = [text for text in texts if _is_accepted(text)]
    assert accepted == [text for text in texts if base64.b64encode(base64.b64decode(text)).decode() == text]
    assert len(accepted) == 256 + 4 * 64**2


@given(st.text("YQEx+/=-_ \n", max_size=9))
def test_a_text_is_decoded_only_if_its_bytes_have_it_as_base64(text: str) -> None:
    assert not _is_accepted(text) or base64.b64encode(from_base64(text)).decode() == text


def _is_accepted(text: str) -> bool:
    try:
        from_base64(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("YR==", "is not canonical base64: it ends with YR==, whose unused bits are not zero; end it with YQ=="),
        ("YWEYWF=", "is not base64: 6 characters are followed by 1 of padding; end the text with 2 characters ="),
        ("YWExYWF=", "is not canonical base64: it ends with YWF=, whose unused bits are not zero; end it with YWE="),
        ("YQ", "is not base64: 2 characters are followed by 0 of padding; end the text with 2 characters ="),
        ("YWEx=", "is not base64: 4 characters are followed by 1 of padding; end the text with 0 characters ="),
        ("YWEx====", "is not base64: 4 characters are followed by 4 of padding; end the text with 0 characters ="),
        ("=", "is not base64: 0 characters are followed by 1 of padding; end the text with 0 characters ="),
        ("YWExY", "is not base64: 5 characters before the padding end inside a byte; send all of the text"),
        ("_w==", "is not base64: '_' at character 1 is of the URL-safe alphabet; send + and / for - and _"),
        ("YWEx\nYQ==", "is not base64: '\\n' at character 5 is white space; send the text without spaces and line"),
        ("YQ==\n", "is not base64: '\\n' at character 5 is white space; send the text without spaces and line breaks"),
        ("YQ==YQ==", "is not base64: '=' at character 3 is padding inside the text; encode all bytes together"),
        ("Yü==", "is not base64: 'ü' at character 2 is not of its alphabet; send A-Z, a-z, 0-9, + and /, and = only"),
    ],
)
def test_other_texts_are_refused_with_the_cause_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        from_base64(text)


@pytest.mark.parametrize("text", ["_x==", "_w", "_w= ", "%"])
def test_base64_of_a_url_is_canonical_too(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not .*base64"):
        from_url_base64(text)


def test_a_space_in_a_url_is_a_plus_sign_that_was_not_encoded() -> None:
    with pytest.raises(ValueError, match=r"' ' at character 1 .*; a \+ in a query means a space: send -"):
        from_url_base64(" w==")
