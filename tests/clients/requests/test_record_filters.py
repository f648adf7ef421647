from __future__ import annotations

from typing import Any

import pytest

from tidelog.requests.record_filters import RecordFilter, check_key, record_filter


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("c00162", "key must be bytes, got str: 'c00162'; pass b'c00162'"),
        ("\ud800", "key must be bytes, got str"),
        (7, "key must be bytes, got int: 7; encode it"),
        (None, "key must be bytes, got NoneType"),
    ],
)
def test_key_that_is_not_bytes_is_refused_with_the_remedy(key: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_key(key)


def test_filter_takes_a_key_in_bytes_and_a_tag_in_text() -> None:
    wrong: Any = "k"
    with pytest.raises(TypeError, match="key must be bytes"):
        record_filter(wrong, None)
    wrong = b"t"
    with pytest.raises(TypeError, match="tag must be str, got bytes: b't'"):
        record_filter(None, wrong)
    assert record_filter(b"k", "t") == RecordFilter(b"k", "t")
    assert record_filter(None, None) is None
