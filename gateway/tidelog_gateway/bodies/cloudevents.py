"""CloudEvents 1.0 as records: data is the value, `partitionkey` the key, attributes are headers.

The headers are those of the Kafka protocol binding: `ce_` before the name of an attribute, and `content-type` for
`datacontenttype`, so consumers written for CloudEvents in Kafka records can read them. The value is the exact bytes of
the data: a binary event's body, a JSON value as it is in the event, the text of a string, or the decoded base64.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import date
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from tidelog_gateway.bodies.json_body import list_parts
from tidelog_gateway.problems import Problem, invalid, pointer, shown
from tidelog_gateway.records.json_decoding import Records
from tidelog_gateway.requests.repeated_members import Opaque, Path, refuse_repeats
from tidelog_proto.text.base64_text import from_base64
from tidelog_proto.text.json_text import check_limits, json_text

KEY_ATTRIBUTE: Final = "partitionkey"
CONTENT_TYPE: Final = "content-type"
PREFIX: Final = "ce_"
_HTTP_PREFIX: Final = "ce-"
_REQUIRED: Final = ("specversion", "id", "source", "type")
_VERSION: Final = "1.0"
_NAME: Final = re.compile(r"[a-z0-9]+")
_HOUR_AND_MINUTE: Final = r"(?:[01]\d|2[0-3]):[0-5]\d"
_TIME: Final = re.compile(
    rf"(\d{{4}})-(\d\d)-(\d\d)[Tt]{_HOUR_AND_MINUTE}:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-]{_HOUR_AND_MINUTE})", re.ASCII
)
_NOT_EMPTY: Final = frozenset({*_REQUIRED, KEY_ATTRIBUTE, "datacontenttype", "dataschema", "subject"})
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_JSON_TYPE: Final = re.compile(r"[^;]*[/+]json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INTEGER_MAX: Final = 2**31 - 1
_END_OF_LIST: Final = re.compile(rb"\s*\Z")
_BEGIN_OF_LIST: Final = re.compile(rb"\s*\[")
_DATA: Final[Opaque] = (None, "data")
_EVENTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class _Event(NamedTuple):
    """One event as a record."""

    value: bytes
    key: bytes | None
    headers: list[tuple[str, bytes | None]]


async def structured_event(body: bytes, *, pace: Callable[[], Awaitable[None]]) -> Records:
    """Read one event in JSON.

    Raises:
        Problem: 422; also those that `pace` raises.
    """
    if _BEGIN_OF_LIST.match(body):
        detail = "the body is one CloudEvent; send a list of them as application/cloudevents-batch+json"
        raise invalid([{"pointer": "", "detail": detail}])
    records = await _events(b"[%b]" % body, 1, records_max=1, prefix=(), pace=pace)
    if len(records) != 1:
        raise invalid([{"pointer": "", "detail": "the body is empty; send one CloudEvent as JSON"}])
    return records


async def event_batch(body: bytes, *, records_max: int, pace: Callable[[], Awaitable[None]]) -> Records:
    """Read a JSON list of events.

    Raises:
        Problem: 422; also those that `pace` raises.
    """
    begin = _BEGIN_OF_LIST.match(body)
    if begin is None:
        raise invalid([{"pointer": "", "detail": "a batch of CloudEvents must be a JSON list"}])
    records = await _events(body, begin.end(), records_max=records_max, prefix=None, pace=pace)
    if not len(records):
        raise invalid([{"pointer": "", "detail": "the batch is empty: send at least one event"}])
    return records


def binary_event(headers: Iterable[tuple[str, str]], body: bytes) -> Records:
    """Read an event whose attributes are `ce-` headers and whose data is the body.

    Raises:
        Problem: 422, which names the header.
    """
    attributes: dict[str, str] = {}
    content_type: str | None = None
    for name, value in headers:
        if name == CONTENT_TYPE:
            content_type = value
        if not name.startswith(_HTTP_PREFIX):
            continue
        attribute = name.removeprefix(_HTTP_PREFIX)
        if attribute in attributes:
            raise _wrong_header(name, "is given more than once: send it once")
        if attribute in {"datacontenttype", "data"}:
            raise _wrong_header(
                name,
                "is not allowed in binary mode: the body is the data, and Content-Type is its type; leave the header "
                "out",
            )
        attributes[attribute] = _header_text(name, value)
    for attribute, text in attributes.items():
        fault = _attribute_fault(attribute, text)
        if fault is not None:
            raise _wrong_header(_HTTP_PREFIX + attribute, fault)
    missing = [_HTTP_PREFIX + name for name in _REQUIRED if name not in attributes]
    if missing:
        raise _wrong_header(missing[0], "is missing; send it")
    if content_type is not None:
        fault = _attribute_fault("datacontenttype", content_type)
        if fault is not None:
            raise _wrong_header(CONTENT_TYPE, fault)
        attributes[CONTENT_TYPE] = content_type
    event = _event(attributes, body)
    return Records([event.value], keys=None if event.key is None else [event.key], headers=[event.headers])


def _wrong_header(name: str, detail: str) -> Problem:
    return invalid([{"parameter": name, "detail": detail}])


def _header_text(name: str, value: str) -> str:
    """Decode the value of a header (HTTP binding, 3.1.3.2)."""
    if len(value) > 1 and value.startswith('"') and value.endswith('"'):
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    if not value.isascii() or _ESCAPE.search(value):
        raise _wrong_header(
            name, "must be ASCII: encode each percent sign as %25, and other characters as percent-encoded UTF-8"
        )
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise _wrong_header(name, "is percent-encoded, but not as UTF-8: encode the text as UTF-8 first") from error


async def _events(
    body: bytes, start: int, *, records_max: int, prefix: tuple[str, ...] | None, pace: Callable[[], Awaitable[None]]
) -> Records:
    """Read the events of a list.

    Args:
        start: position in the body after the opening bracket of the list.
        prefix: path of the only event, for the pointers of errors; None: the path of each event is its number.
    """
    events: list[_Event] = []

    def place_of(number: int) -> tuple[str, ...]:
        return prefix if prefix is not None else (str(number),)

    async for first, part, member_count in list_parts(
        body, start=start, end=_END_OF_LIST, records_max=records_max, pace=pace, path=()
    ):
        try:
            decoded = _EVENTS.decode(b"[%b]" % part)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise invalid([{"pointer": pointer(place_of(first)), "detail": _why(part, error)}]) from error
        if member_count > sum(map(len, decoded)):
            refuse_repeats(b"[%b]" % part, opaque=_DATA, place=partial(_moved, first, place_of))
        for number, members in enumerate(decoded, first):
            events.append(_structured(members, place_of(number)))
    keys = [event.key for event in events]
    return Records(
        [event.value for event in events],
        keys=keys if any(key is not None for key in keys) else None,
        headers=[event.headers for event in events],
    )


def _why(text: bytes, error: Exception) -> str:
    """Return the reason why events were not decoded."""
    try:
        check_limits(text.decode())
    except UnicodeDecodeError:
        pass
    except ValueError as limit:
        return f"this event or one of the next is not JSON: {limit}"
    return f"this event or one of the next is not JSON, or not an object: {error}"


def _moved(first: int, place_of: Callable[[int], tuple[str, ...]], path: Path) -> str:
    """Return the JSON pointer for a path within a part of the list whose first event has the number `first`."""
    number, *inside = path
    assert isinstance(number, int)
    return pointer((*place_of(first + number), *inside))


def _structured(members: Mapping[str, msgspec.Raw], where: tuple[str, ...]) -> _Event:
    def fault(name: str, detail: str) -> Problem:
        return invalid([{"pointer": pointer((*where, name)), "detail": detail}])

    attributes: dict[str, str] = {}
    for name, raw in members.items():
        if name in {"data", "data_base64"}:
            continue
        try:
            text = _attribute_text(raw)
        except ValueError as error:
            raise fault(name, str(error)) from error
        if text is None:  # null counts as absent
            continue
        detail = _attribute_fault(name, text)
        if detail is not None:
            raise fault(name, detail)
        attributes[name] = text
    for name in _REQUIRED:
        if name not in attributes:
            raise fault(name, "is missing; send it")
    content_type = attributes.pop("datacontenttype", None)
    try:
        data, name = _data(members, content_type)
    except ValueError as error:
        raise fault("data_base64" if "data_base64" in members else "data", str(error)) from error
    if content_type is None and name == "data":
        content_type = "application/json"
    if content_type is not None:
        attributes[CONTENT_TYPE] = content_type
    return _event(attributes, data)


def _data(members: Mapping[str, msgspec.Raw], content_type: str | None) -> tuple[bytes, str]:
    """Return an event's data and the name of the member that contains it; both are empty if the event has no data.

    Raises:
        ValueError: the data is not valid.
    """
    if "data" in members and "data_base64" in members:
        raise ValueError("an event must not have both data and data_base64; send one of them")
    if "data_base64" in members:
        encoded = msgspec.json.decode(members["data_base64"])
        if not isinstance(encoded, str):
            raise ValueError(
                f"must be a string of base64, got {_shown(encoded)}"
            )  # a TypeError would be answered with 500
        return from_base64(encoded), "data_base64"
    if "data" not in members:
        return b"", ""
    raw = bytes(members["data"])
    text = json_text(raw)
    if content_type is None or _JSON_TYPE.fullmatch(content_type):
        return raw, "data"
    if not text.startswith('"'):
        raise ValueError(f"must be a string, as datacontenttype is {content_type}; or send it as data_base64")
    content: str = msgspec.json.decode(raw)
    return content.encode(), "data"


def _attribute_text(raw: msgspec.Raw) -> str | None:
    """Return the canonical text of an attribute's value; None for null.

    Raises:
        ValueError: the value is not a string, a boolean or an integer of 32 bits.
    """
    value: Any = msgspec.json.decode(raw)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -_INTEGER_MAX - 1 <= value <= _INTEGER_MAX:
        return str(value)
    raise ValueError(f"an attribute must be a string, a boolean or an integer of 32 bits, got {_shown(value)}")


def _shown(value: Any) -> str:
    return "an array or an object" if isinstance(value, list | dict) else shown(value)


def _attribute_fault(name: str, text: str) -> str | None:
    if not _NAME.fullmatch(name):
        return "the name of an attribute must have lower-case letters and digits only"
    if _CONTROL.search(text):
        return "has control characters; remove them"
    if name in _NOT_EMPTY and not text:
        return "is empty: send a value" if name in _REQUIRED else "is empty: send a value, or leave it out"
    if name == "specversion" and text != _VERSION:
        return f"must be {_VERSION}, got {text!r}"
    if name == "time" and not _is_time(text):
        return "must be a time as in RFC 3339, such as 2026-01-31T12:00:00Z"
    return None


def _is_time(text: str) -> bool:
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    try:
        # RFC 3339 has a year 0 and Python does not. The calendar repeats every 400 years, so another year is checked.
        date(2000 + year % 400, month, day)
    except ValueError:
        return False
    return True


def _event(attributes: Mapping[str, str], data: bytes) -> _Event:
    key = attributes.get(KEY_ATTRIBUTE)
    headers: list[tuple[str, bytes | None]] = [
        (name if name == CONTENT_TYPE else PREFIX + name, text.encode()) for name, text in attributes.items()
    ]
    return _Event(data, None if key is None else key.encode(), headers)
