"""Large JSON bodies: limits are checked before parsing, and parsing yields to the event loop.

A body of records is first scanned for its structure (`json_structure`): the number of records, and of values in each. A
body that exceeds a limit is refused before any object is made of it. Then its records are parsed in parts that take a
few milliseconds, between which other requests run, until `ERRORS_SHOWN_MAX` faults are found. A body of at most
`AT_ONCE_BYTES` is parsed at once, without a scan.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tidelog_gateway.callers.turns import Pace
from tidelog_gateway.problems import ERRORS_SHOWN_MAX, Problem, invalid, pointer
from tidelog_gateway.records.json_decoding import Records, parse_body
from tidelog_gateway.requests.json_structure import CLOSE, COMMA, marks
from tidelog_proto.limits import KIB

VALUES_MAX: Final = 64_000
"""Maximum number of JSON values that are parsed at once: in one record, one WebSocket message, or the body of another
request. Parsing them takes some 15 ms; a larger document can be sent as a string (`value_encoding` utf8)."""
AT_ONCE_BYTES: Final = 16 * KIB
"""Maximum size of a body that is parsed at once; it has at most about 8,000 values."""
MEMBERS_MAX: Final = 100
"""Maximum number of members of a validated object. No model has as many, and each unknown member would be reported."""
PART_BYTES: Final = 256 * KIB
PART_VALUES: Final = 5_000
PART_RECORDS: Final = 500

_BEGIN: Final = re.compile(rb'\s*\{\s*"records"\s*:\s*\[')
_END: Final = re.compile(rb"\s*\}\s*\Z")


class ListPart(NamedTuple):
    """Consecutive elements of a JSON list.

    Attributes:
        first: the number of the first element.
        text: text of the elements, with the commas between them.
        members: number of members in the text, including repeated ones; an empty object counts as one.
    """

    first: int
    text: bytes
    members: int


class _PartBounds(NamedTuple):
    first: int
    start: int
    stop: int
    members: int


async def records_in(body: bytes, *, records_max: int, now_us: int, pace: Pace) -> Records:
    """Read a JSON body of at most `records_max` records into lists.

    Raises:
        Problem: 422 with a pointer for each of the first faults; also those that `pace` raises.
    """
    if len(body) <= AT_ONCE_BYTES:
        return parse_body(body, records_max=records_max, now_us=now_us)
    begin = _BEGIN.match(body)
    if begin is None:
        raise invalid([{"pointer": "", "detail": 'the body must be JSON that begins with {"records": ['}])
    parsed: list[Records] = []
    faults: list[Mapping[str, str]] = []
    parts = list_parts(body, start=begin.end(), end=_END, records_max=records_max, pace=pace)
    async for part in parts:
        text = b'{"records":[%b]}' % part.text
        try:
            parsed.append(parse_body(text, records_max=records_max, now_us=now_us, members=part.members))
        except Problem as problem:
            faults += _shifted(problem, part.first)
            if len(faults) >= ERRORS_SHOWN_MAX:
                break
    if faults:
        raise invalid(faults)
    return joined(parsed, now_us)


async def list_parts(
    body: bytes,
    *,
    start: int,
    end: re.Pattern[bytes],
    records_max: int,
    pace: Pace,
    path: Sequence[str] = ("records",),
) -> AsyncIterator[ListPart]:
    """Yield the elements of a JSON list in parts.

    Args:
        start: position in the body after the opening bracket of the list.
        end: matches the text after the list's closing bracket.
        pace: see `Pace`.
        path: path of the list in the body, for the pointers of errors.

    Raises:
        Problem: 422; also those that `pace` raises.
    """
    elements = await _elements(body, start, end, records_max, pace, path)
    for part in _part_bounds(elements, start):
        await pace()
        yield ListPart(part.first, body[part.start : part.stop], part.members)


async def check_values(text: bytes, pace: Pace) -> None:
    """Refuse a JSON text with more values than are parsed at once.

    Raises:
        Problem: 422; also those that `pace` raises.
    """
    count = 0
    for stretch in marks(text):
        count += int(np.count_nonzero(stretch.kinds != CLOSE))
        if count > VALUES_MAX:
            raise invalid(
                [
                    {
                        "pointer": "",
                        "detail": f"the body has more than {VALUES_MAX} JSON values; send fewer records per request",
                    }
                ]
            )
        await pace()


class _Elements(NamedTuple):
    """The ends of all elements of a list, and running sums up to each of them.

    Attributes:
        ends: position of the comma or bracket after each element.
        values: number of brackets and commas in the list before each end, which bounds the number of values.
        commas: number of commas between members of elements before each end.
    """

    ends: Any
    values: Any
    commas: Any


def _check_each(counts: Any, most: int, detail: str, path: Sequence[str]) -> None:
    """Refuse a list with an element that exceeds a limit, given the running sums.

    Raises:
        Problem: 422.
    """
    each = np.diff(counts, prepend=0)
    if each.max() > most:
        raise invalid([{"pointer": pointer([*path, int(each.argmax())]), "detail": detail}])


async def _elements(  # noqa: PLR0917 - see `list_parts`
    body: bytes, start: int, end: re.Pattern[bytes], records_max: int, pace: Pace, path: Sequence[str]
) -> _Elements:
    """Find the elements of the list that begins at `start`, and check the limits that need no parsing."""
    ends: list[Any] = []
    values: list[Any] = []
    members: list[Any] = []
    count = scanned_bytes = member_count = 0
    for stretch in marks(body, start):
        await pace()
        closing = np.flatnonzero(stretch.depths < 0)
        stop = int(closing[0]) + 1 if len(closing) else len(stretch.kinds)
        kinds, depths = stretch.kinds[:stop], stretch.depths[:stop]
        divides = np.flatnonzero(((kinds == COMMA) & (depths == 0)) | (depths < 0))
        ends.append(stretch.places[divides])
        values.append(scanned_bytes + divides)
        scanned_bytes += stop
        sums = member_count + np.cumsum((kinds == COMMA) & (depths == 1))
        members.append(sums[divides])
        member_count = int(sums[-1]) if len(sums) else member_count
        count += len(divides)
        if count > records_max:
            # The message does not state the exact number, because that needs a scan of the rest of the body.
            raise invalid(
                [
                    {
                        "pointer": pointer(path),
                        "detail": f"the body has more than {records_max} records; send fewer records per request",
                    }
                ]
            )
        if len(closing):
            if end.match(body, int(stretch.places[stop - 1]) + 1) is None:
                raise invalid(
                    [{"pointer": "", "detail": "the body has other members or text after its list; leave them out"}]
                )
            break
    else:
        raise invalid([{"pointer": "", "detail": "the body is not JSON: its list of records has no closing bracket"}])
    elements = _Elements(np.concatenate(ends), np.concatenate(values), np.concatenate(members))
    many = f"a record has more than {VALUES_MAX} JSON values; send a larger document as a string"
    _check_each(elements.values, VALUES_MAX, many, path)
    # An object has one comma less than members.
    _check_each(elements.commas, MEMBERS_MAX - 1, f"a record has more than {MEMBERS_MAX} members; leave some out", path)
    return elements


def _part_bounds(elements: _Elements, start: int) -> Iterator[_PartBounds]:
    """Divide the elements into parts of at least one element."""
    at, count = 0, len(elements.ends)
    values_before = commas_before = 0
    while at < count:
        last = min(
            at + PART_RECORDS,
            int(np.searchsorted(elements.ends, start + PART_BYTES, side="right")),
            int(np.searchsorted(elements.values, values_before + PART_VALUES, side="right")),
        )
        last = max(at, last - 1)
        commas = int(elements.commas[last])
        yield _PartBounds(at, start, int(elements.ends[last]), commas - commas_before + last + 1 - at)
        commas_before = commas
        start, values_before = int(elements.ends[last]) + 1, int(elements.values[last])
        at = last + 1


def _shifted(problem: Problem, first: int) -> list[Mapping[str, str]]:
    """Return the faults of a part whose first record has the number `first` in the body."""

    def moved(where: str) -> str:
        _, *path = where.split("/")
        if path[1:2] and path[1].isdigit():
            path[1] = str(int(path[1]) + first)
            return "/" + "/".join(path)
        return pointer(["records", first])

    errors = problem.extra.get("errors", [])
    return [each | {"pointer": moved(each.get("pointer", ""))} for each in errors]


def joined(parts: list[Records], now_us: int) -> Records:
    """Join the records of all parts; a column that is missing in some parts is filled with its default there."""
    if len(parts) == 1:
        return parts[0]
    records = Records([value for part in parts for value in part.values])

    def column(name: str, missing: Callable[[], Any]) -> Any:
        if all(getattr(part, name) is None for part in parts):
            return None
        return [item for part in parts for item in (getattr(part, name) or [missing() for _ in range(len(part))])]

    records.keys = column("keys", lambda: None)
    records.headers = column("headers", list)
    records.tags = column("tags", lambda: None)
    records.partitions = column("partitions", lambda: None)
    records.timestamps_us = column("timestamps_us", lambda: now_us)
    return records
