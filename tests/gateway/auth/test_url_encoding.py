from __future__ import annotations

import pytest

from tidelog_gateway.auth.url_encoding import check_url_encoding
from tidelog_gateway.problems import Problem


def test_percent_encoded_utf_8_is_accepted() -> None:
    for path, query in (
        (b"/v1/topics/t/keys/%C3%A9%0A%00%2f", b"key=%EF%BF%BD&tag=+%2B"),
        (b"/v1/topics/100%25", b"key=%25"),
        (b"", b""),
    ):
        check_url_encoding({"type": "http", "raw_path": path, "query_string": query})
    check_url_encoding({"type": "websocket", "query_string": b""})


@pytest.mark.parametrize("text", [b"%ff", b"a%C3", b"%C3b%A9", b"%ED%A0%80", b"100%", b"%4", b"%zz", b"%u00e9"])
def test_other_urls_are_refused(text: bytes) -> None:
    for path, query in ((b"/v1/topics/t/keys/" + text, b""), (b"/v1/ws", b"key=" + text)):
        with pytest.raises(Problem) as raised:
            check_url_encoding({"type": "http", "raw_path": path, "query_string": query})
        assert (raised.value.status, raised.value.code) == (400, "malformed_request")
