"""Invalid heads and framings, and unusual valid ones."""

from __future__ import annotations

from typing import Final

from tests.gateway.bad.case import HOST, TOPIC, Case, head, with_body

_LIVE: Final = b"GET /livez HTTP/1.1\r\n"
_MALFORMED: Final = "malformed_request"
_POST: Final = f"POST /v1/topics/{TOPIC}/records HTTP/1.1\r\n".encode() + HOST + b"Content-Type: application/json\r\n"
_PUBLISH: Final = ("post", "/v1/topics/{topic}/records")
_BODY: Final = b'{"records":[{"value":"smuggled","partition":9}]}'
_CHUNKS: Final = b"30\r\n" + _BODY + b"\r\n0\r\n\r\n"


def _refused(data: bytes, *says: str) -> Case:
    return Case(data, 400, says, None, _MALFORMED)


HEADS: Final[dict[str, Case]] = {
    "HTTP/0.9": _refused(b"GET /livez\r\n\r\n", "request line"),
    "HTTP/2.0 in a line": _refused(b"GET /livez HTTP/2.0\r\n" + HOST + b"\r\n"),
    "HTTP/1.2": _refused(b"GET /livez HTTP/1.2\r\n" + HOST + b"\r\n"),
    "HTTP/11.1": _refused(b"GET /livez HTTP/11.1\r\n" + HOST + b"\r\n"),
    "http in lower case": _refused(b"GET /livez http/1.1\r\n" + HOST + b"\r\n"),
    "the preface of HTTP/2": _refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9),
    "TLS to a plain port": _refused(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 40, "http://"),
    "an SSH client": _refused(b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n"),
    "Redis": _refused(b"*1\r\n$4\r\nPING\r\n\r\n"),
    "zero bytes": _refused(b"\0" * 64),
    "an empty line first": _refused(b"\r\n" + _LIVE + HOST + b"\r\n"),
    "a space first": _refused(b" " + _LIVE + HOST + b"\r\n"),
    "two spaces": _refused(b"GET  /livez HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a tab between": _refused(b"GET\t/livez HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a space in the target": _refused(b"GET /live z HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a space after the version": _refused(b"GET /livez HTTP/1.1 \r\n" + HOST + b"\r\n"),
    "no target": _refused(b"GET HTTP/1.1\r\n" + HOST + b"\r\n"),
    "no method": _refused(b"/livez HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a method with a comma": _refused(b"GE,T /livez HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a zero byte in the target": _refused(b"GET /li\0vez HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a raw UTF-8 target": _refused("GET /livé HTTP/1.1\r\n".encode() + HOST + b"\r\n"),
    "a delete character in the target": _refused(b"GET /li\x7fvez HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a target of 90,000 characters": _refused(b"GET /" + b"x" * 90_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", "81920"),
    "a field of 90,000 characters": _refused(_LIVE + HOST + b"X: " + b"x" * 90_000 + b"\r\n\r\n", "81920"),
    "257 fields": _refused(_LIVE + HOST + b"X: y\r\n" * 256 + b"\r\n", "257 header fields", "256"),
    "10,000 empty fields": _refused(_LIVE + HOST + b"X:\r\n" * 10_000 + b"\r\n", "256"),
    "a field without a name": _refused(_LIVE + HOST + b": x\r\n\r\n"),
    "a field without a colon": _refused(_LIVE + HOST + b"nothing\r\n\r\n"),
    "a space before the colon": _refused(_LIVE + b"Host : 127.0.0.1\r\n\r\n"),
    "a folded field": _refused(_LIVE + HOST + b"X: a\r\n b\r\n\r\n", "folded"),
    "a field's name in UTF-8": _refused(_LIVE + HOST + "X-é: y\r\n\r\n".encode()),
    "a field's name with a bracket": _refused(_LIVE + HOST + b"X[0]: y\r\n\r\n"),
    "a zero byte in a field": _refused(_LIVE + HOST + b"X: a\0b\r\n\r\n"),
    "a bell in a field": _refused(_LIVE + HOST + b"X: a\ab\r\n\r\n"),
    "a bare CR": _refused(_LIVE + HOST + b"X: a\rY: b\r\n\r\n"),
    "a bare LF": _refused(_LIVE + HOST + b"X: a\nY: b\r\n\r\n", "CR LF"),
    "LF alone everywhere": _refused((_LIVE + HOST + b"\r\n").replace(b"\r", b""), "CR LF"),
    "no Host": _refused(_LIVE + b"\r\n", "Host"),
    "two Hosts": _refused(_LIVE + HOST + HOST + b"\r\n", "Host"),
    "a Host of another": Case(
        _LIVE.replace(b"livez", b"metrics") + b"Host: evil.example\r\n\r\n", 421, ("evil.example",)
    ),
    "an empty Host": Case(_LIVE.replace(b"livez", b"metrics") + b"Host:\r\n\r\n", 421),
    "a Host with a user": Case(_LIVE.replace(b"livez", b"metrics") + b"Host: a@127.0.0.1\r\n\r\n", 421),
    "the authority form": Case(head("CONNECT 127.0.0.1:80"), 404),
    "the absolute form": Case(head("GET http://127.0.0.1/livez"), 404),
    "the asterisk form": Case(head("OPTIONS *"), 404),
    "an unknown method": Case(head("BREW /livez"), 405, ("BREW",)),
    "a method in lower case": Case(head("get /livez"), 405, ("get",)),
    "a method of 5,000 characters": Case(head("X" * 5_000 + " /livez"), 405),
    "TRACE": Case(head("TRACE /v1/topics"), 405),
    "a percent sign alone": Case(head("GET /v1/topics/%"), 400, ("percent",), None, _MALFORMED),
    "a percent sign and one digit": Case(head("GET /v1/topics/a%4"), 400, ("%4",), None, _MALFORMED),
    "a percent sign and letters": Case(head("GET /v1/topics/%zz"), 400, ("%zz",), None, _MALFORMED),
    "a percent sign in a query": Case(head("GET /v1/topics?cursor=100%"), 400, ("percent",), None, _MALFORMED),
    "%u of old browsers": Case(head("GET /v1/topics/%u00e9"), 400, ("%u0",), None, _MALFORMED),
    "a lone continuation byte": Case(head("GET /v1/topics/%80"), 400, ("UTF-8",), None, _MALFORMED),
    "an overlong slash": Case(head("GET /v1/topics/..%c0%af"), 400, ("UTF-8",), None, _MALFORMED),
    "an overlong zero byte": Case(head("GET /v1/topics/%c0%80"), 400, ("UTF-8",), None, _MALFORMED),
    "an overlong dot of three bytes": Case(head("GET /v1/topics/%e0%80%ae"), 400, ("UTF-8",), None, _MALFORMED),
    "a surrogate": Case(head("GET /v1/topics/%ed%a0%80"), 400, ("UTF-8",), None, _MALFORMED),
    "beyond Unicode": Case(head("GET /v1/topics/%f5%80%80%80"), 400, ("UTF-8",), None, _MALFORMED),
    "ISO 8859-1 in a query": Case(head("GET /v1/topics?cursor=%e9"), 400, ("UTF-8",), None, _MALFORMED),
    "a fragment": Case(head("GET /v1/topics/a#b"), 422, ("a#b",)),
    "a backslash": Case(head("GET /v1\\topics"), 404),
    "two dots": Case(head("GET /v1/../livez"), 404),
    "encoded dots": Case(head("GET /v1/%2e%2e/livez"), 404),
    "an encoded slash": Case(head("GET /v1%2flivez"), 404),
    "two slashes": Case(head("GET //v1/topics"), 404),
    "a slash at the end": Case(head("GET /v1/topics/"), 404),
    "an encoded zero byte": Case(head("GET /v1/topics/a%00b"), 422, ("a\\\\x00b",)),
    "an encoded line end": Case(head("GET /v1/topics/a%0d%0aX:%20y"), 422),
    "a key in the address": Case(
        head("GET /v1/topics?api_key=tlk_x"), 400, ("Authorization",), None, "credentials_in_url"
    ),
}
FRAMINGS: Final[dict[str, Case]] = {
    "length and chunks": _refused(
        _POST + b"Content-Length: 49\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKS, "both"
    ),
    "chunks and length": _refused(_POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + _CHUNKS, "both"),
    "two lengths": _refused(_POST + b"Content-Length: 48\r\nContent-Length: 49\r\n\r\n" + _BODY, "twice"),
    "one length twice": _refused(_POST + b"Content-Length: 48\r\nContent-Length: 48\r\n\r\n" + _BODY, "twice"),
    "a list of lengths": _refused(_POST + b"Content-Length: 48, 48\r\n\r\n" + _BODY),
    "a length with a sign": _refused(_POST + b"Content-Length: +48\r\n\r\n" + _BODY, "+48"),
    "a length below zero": _refused(_POST + b"Content-Length: -1\r\n\r\n" + _BODY, "-1"),
    "a length in hexadecimal": _refused(_POST + b"Content-Length: 0x30\r\n\r\n" + _BODY, "0x30"),
    "a length with a fraction": _refused(_POST + b"Content-Length: 48.0\r\n\r\n" + _BODY, "48.0"),
    "a length of nothing": _refused(_POST + b"Content-Length:\r\n\r\n" + _BODY),
    "a length of 40 digits": _refused(_POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", "999"),
    "a length in Arabic digits": _refused(_POST + "Content-Length: \u0664\r\n\r\n".encode() + _BODY),
    "a terabyte": Case(_POST + b"Content-Length: 1099511627776\r\n\r\n", 413, ("8388608",), _PUBLISH),
    "gzip and chunks": _refused(_POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + _CHUNKS, "gzip, chunked"),
    "identity": _refused(_POST + b"Transfer-Encoding: identity\r\n\r\n" + _BODY, "identity"),
    "chunked twice": _refused(_POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKS),
    "chunked in quotes": _refused(_POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + _CHUNKS),
    "chunked with a vertical tab": _refused(_POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + _CHUNKS),
    "chunks in HTTP/1.0": _refused(_POST.replace(b"/1.1", b"/1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNKS),
    "a chunk's size below zero": _refused(_POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + _BODY, "-1"),
    "a chunk's size with a prefix": _refused(_POST + b"Transfer-Encoding: chunked\r\n\r\n0x30\r\n" + _BODY, "0x30"),
    "a chunk's size of 17 digits": _refused(_POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n", "fff"),
    "no chunk's size": _refused(_POST + b"Transfer-Encoding: chunked\r\n\r\n\r\n" + _BODY),
    "a chunk longer than its size line": _refused(
        _POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\n" + _BODY + b"\r\n0\r\n\r\n"
    ),
    "a chunk's line that ends in LF": _refused(_POST + b"Transfer-Encoding: chunked\r\n\r\n30\n" + _BODY, "LF"),
    "a zero byte in an extension": _refused(_POST + b"Transfer-Encoding: chunked\r\n\r\n30;\0\r\n" + _BODY),
    "an endless extension": _refused(_POST + b"Transfer-Encoding: chunked\r\n\r\n30;" + b"x" * 5_000 + b"\r\n"),
    "endless trailers": _refused(_POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 4_000, "trailers"),
    "a bad trailer": _refused(_POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX y\r\n\r\n"),
    "a body of GET": Case(with_body("GET /livez", b"{}"), 200),
    "an unknown expectation": Case(with_body("GET /livez", b"", "Expect: 200-ok"), 200),
    "100-continue without a body": Case(head("GET /livez", "Expect: 100-continue"), 200),
    "100-continue for too much": Case(
        _POST + b"Expect: 100-continue\r\nContent-Length: 9999999\r\n\r\n", 413, ("8388608",), _PUBLISH
    ),
    "an upgrade to h2c": Case(head("GET /livez", "Connection: Upgrade", "Upgrade: h2c"), 200),
    "a WebSocket by POST": _refused(head("POST /v1/ws", "Connection: Upgrade", "Upgrade: websocket"), "GET"),
    "a WebSocket with a body": _refused(
        head("GET /v1/ws", "Connection: Upgrade", "Upgrade: websocket", "Content-Length: 1") + b"x", "must have no body"
    ),
    "a range": Case(head("GET /livez", "Range: bytes=0-1"), 200),
    "an impossible range": Case(head("GET /v1/topics", "Range: bytes=9-1,-,x"), 200),
    "If-Match of a list": Case(head("GET /v1/topics", 'If-Match: "x"'), 200),
    "If-None-Match without quotes": Case(head("GET /ui/", "If-None-Match: ,,,x,"), 200),
    "If-Modified-Since of no time": Case(head("GET /v1/topics", "If-Modified-Since: yesterday"), 200),
    "a Connection of many tokens": Case(head("GET /livez", "Connection: ,, ,x,keep-alive,Host"), 200),
}
