"""JSON lines with one record each: splits a body into lines as it arrives, and parses several lines at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from pydantic import TypeAdapter, ValidationError

from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES, joined, records_in
from tidelog_gateway.bodies.plain_records import plain_lines
from tidelog_gateway.problems import Problem, body_faults, invalid
from tidelog_gateway.records.json_decoding import JsonRecord, RawRecord, Records, records_of
from tidelog_gateway.requests.repeated_members import VALUE_OF_RECORD, refuse_repeats_in
from tidelog_proto.limits import KIB

GROUP_LINES: Final = 250
GROUP_BYTES: Final = 64 * KIB
LOOKED_AT_ONCE: Final = 40 * GROUP_LINES
"""Number of lines, most of them blank, after which `LineBuffer.feed` yields control to its caller: 0.6 ms of work."""
SLICE_LINES: Final = 50
"""Number of lines that pydantic parses between two calls of `pace`; each takes 20 to 50 us, an invalid one the most."""
_RAW_LINE: Final = msgspec.json.Decoder(RawRecord)


class Line(NamedTuple):
    """A line that is not blank, without its line end; the first one of a body has the number 1."""

    number: int
    text: bytes


class LineBuffer:
    """Splits a body into lines as it arrives; buffers the beginning of an incomplete line.

    Attributes:
        number: number of the line that is being received; the first line is 1.
        held_bytes: size of the received part of that line.
    """

    def __init__(self) -> None:
        self.number = 1
        self.held_bytes = 0
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[list[Line]]:
        """Yield the lines that end in `data` in several lists, without blank lines; a list may be empty."""
        last = data.rfind(b"\n")
        if last < 0:
            self._keep(data)
            return
        whole = b"".join([*self._parts, data[:last]])
        self._parts.clear()
        self.held_bytes = 0
        yield from self._groups(whole)
        self._keep(data[last + 1 :])

    def end(self) -> list[Line]:
        """Return the text after the last line end as a line; an empty list if it is blank."""
        text = b"".join(self._parts).strip()
        self._parts.clear()
        self.held_bytes = 0
        return [Line(self.number, text)] if text else []

    def _keep(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self.held_bytes += len(data)

    def _groups(self, whole: bytes) -> Iterator[list[Line]]:
        at = 0
        while at <= len(whole):
            # Every byte may end a line, so only a bounded number of bytes is split at a time.
            end = whole.find(b"\n", min(at + GROUP_BYTES, len(whole)))
            stretch = whole[at:] if end < 0 else whole[at:end]
            at = len(whole) + 1 if end < 0 else end + 1
            if not stretch.strip():  # all lines are blank
                self.number += stretch.count(b"\n") + 1
                yield []
                continue
            texts = stretch.split(b"\n")
            first_number, self.number = self.number, self.number + len(texts)
            yield from _lines_of(texts, first_number)


def _lines_of(texts: Sequence[bytes], first_number: int) -> Iterator[list[Line]]:
    """Yield the lines that are not blank, in one or more lists of up to `GROUP_LINES`, of which some may be empty.

    About every `LOOKED_AT_ONCE` texts a list is yielded, also if all these texts are blank.
    """
    lines: list[Line] = []
    looked = 0
    for first in range(0, len(texts), GROUP_LINES):
        part = enumerate(texts[first : first + GROUP_LINES], first_number + first)
        lines += [Line(number, text) for number, each in part if (text := each.strip())]
        looked += GROUP_LINES
        if len(lines) >= GROUP_LINES or looked >= LOOKED_AT_ONCE:
            yield lines[:GROUP_LINES]
            lines, looked = lines[GROUP_LINES:], 0
    if lines or looked:
        yield lines


class ParsedLines(NamedTuple):
    """The records of valid lines in their order, and the faults of invalid lines.

    Attributes:
        records: records of the valid lines; None if no line is valid.
        numbers: numbers of all lines, in order.
        faults: line number -> problem of an invalid line.
    """

    records: Records | None
    numbers: list[int]
    faults: dict[int, Problem]


async def parse_lines(
    lines: Sequence[Line], *, now_us: Callable[[], int], pace: Callable[[], Awaitable[None]]
) -> ParsedLines:
    """Parse lines independently of each other.

    Raises:
        Problem: one that `pace` raises.
    """
    numbers = [line.number for line in lines]
    if all(len(line.text) <= AT_ONCE_BYTES for line in lines):
        records = plain_lines([line.text for line in lines], now_us=now_us)
        if records is not None:
            return ParsedLines(records, numbers, {})
    now = now_us()
    parts: list[Records] = []
    faults: dict[int, Problem] = {}
    for at, line in enumerate(lines, 1):
        if not at % SLICE_LINES:
            await pace()
        try:
            if len(line.text) <= AT_ONCE_BYTES:
                parts.append(_parse_line(line.text, now))
            else:
                parts.append(await _parse_large(line.text, now, pace))
        except Problem as problem:
            if problem.status != 422:
                raise
            faults[line.number] = problem.without_frames()
    return ParsedLines(joined(parts, now) if parts else None, numbers, faults)


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[JsonRecord]:
    return TypeAdapter(JsonRecord)


def _parse_line(text: bytes, now_us: int) -> Records:
    try:
        record = _adapter().validate_json(text)
    except ValidationError as error:
        raise invalid(body_faults(error)) from error
    refuse_repeats_in(text, record, opaque=VALUE_OF_RECORD)
    try:
        return records_of([record], lambda: [_RAW_LINE.decode(text)], now_us=now_us, path=())
    except Problem as problem:
        raise _without(problem, "/0") from problem


async def _parse_large(text: bytes, now_us: int, pace: Callable[[], Awaitable[None]]) -> Records:
    body = b'{"records":[%b]}' % text
    try:
        return await records_in(body, records_max=1, now_us=now_us, pace=pace)
    except Problem as problem:
        raise _without(problem, "/records/0") from problem


def _without(problem: Problem, prefix: str) -> Problem:
    """Return a problem with pointers relative to the line's record."""
    if problem.status != 422:
        return problem
    errors: list[Any] = problem.extra.get("errors", [])
    return invalid([each | {"pointer": each.get("pointer", "").removeprefix(prefix)} for each in errors])
