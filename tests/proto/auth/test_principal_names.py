from __future__ import annotations

import re

import pytest

from tidelog_proto.auth.principal_names import principal_name_fault
from tidelog_proto.limits import PRINCIPAL_CHARS_MAX


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "ann@example.com",
        "CN=ann smith,O=x",
        "https://issuer.example/users/7",
        "x" * PRINCIPAL_CHARS_MAX,
        "J\u00fcrgen",
        "\u0410\u043d\u043d\u0430-1",  # Cyrillic
        "\u039c\u03b1\u03c1\u03af\u03b1",  # Greek
        "\u5c71\u7530 Taro\u30fc",  # Han, Latin, a prolonged sound mark
        "\U0001f680 launcher",
    ],
)
def test_a_name_with_one_spelling_is_accepted(name: str) -> None:
    assert principal_name_fault(name) is None


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "1 to 255 printable"),
        ("x" * (PRINCIPAL_CHARS_MAX + 1), "1 to 255 printable"),
        ("a\nb", "printable"),
        ("a\u200bb", "printable"),
        ("a\u00a0b", "printable"),
        ("a\ud800", "printable"),
        ("*", "is reserved"),
        ("role:etl", "is reserved"),
        ("role:\u0435tl", "'role:\\\\u0435tl' is reserved"),
        ("admin ", r"begins or ends with a space: give 'admin'"),
        (" admin", "begins or ends with a space"),
        ("\uff41\uff44\uff4d\uff49\uff4e", "NFKC.*give 'admin'"),
        ("\u2168", "NFKC"),
        ("ju\u0308rgen", "NFKC"),
        ("\u0430dmin", "'\\\\u0430dmin' mixes letters of Cyrillic and Latin"),
        ("adm\u03b9n", "mixes letters of Greek and Latin"),
        ("\u0430dm\u03b9n", "Cyrillic and Greek and Latin"),
        ("adm\u0131n\u13aa", "Cherokee and Latin"),
        ("a\ufffdb", "could not be decoded"),
    ],
)
def test_a_name_that_looks_like_another_is_refused(name: str, fault: str) -> None:
    found = principal_name_fault(name)
    assert found is not None
    assert found.isprintable()
    assert re.search(fault, found)
