from __future__ import annotations

import pytest

from tidelog_proto.auth.saslprep import saslprep


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("p\u00e4\u0301", "p\u00e4\u0301"),
        ("a\u0308", "\u00e4"),
        ("\u0627\u0628", "\u0627\u0628"),
        ("key \U0001f511", "key \U0001f511"),
    ],
)
def test_one_word_has_one_form(text: str, prepared: str) -> None:
    """The first five are the examples of RFC 4013."""
    assert saslprep(text) == prepared
    assert saslprep(prepared) == prepared


@pytest.mark.parametrize(
    "text", ["", "\u00ad", "\u0007", "a\nb", "a\x1b[31mb", "\u202ea", "\ud800", "\ue000", "\u0627\u0031", "a\u0627"]
)
def test_prohibited_text_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"empty|character|directions") as refused:
        saslprep(text)
    assert not text or text not in str(refused.value)
