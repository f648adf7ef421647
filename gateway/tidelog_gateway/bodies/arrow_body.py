"""Parser of a request body with records as an Arrow IPC stream; it creates no Python object per record.

The schema may have only the columns of records, or the fields of a typed topic and some columns of its records, in
types that cannot expand. The rows and decompressed bytes that a record batch announces are checked against limits
before Arrow decodes the batch. Decoded columns are validated in full (offsets, UTF-8) before they are used.
"""

from __future__ import annotations

import difflib
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa
from starlette.types import Scope

from tidelog_gateway.bodies.arrow_layout import BatchLayout, PlainBatch
from tidelog_gateway.budget.request_budget import Body, BodyReservation
from tidelog_gateway.problems import Problem, invalid
from tidelog_proto.batch.columns import HEADERS_TYPE, TIMESTAMP_TYPE, canonical
from tidelog_proto.batch.ipc_message import PREFIX_BYTES, describe
from tidelog_proto.batch.typed_rows import DELETED
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB, SCHEMA_DEPTH_MAX
from tidelog_proto.schema.topic_schema import Schema

MESSAGES_MAX: Final = 1_000
"""Maximum number of record batches in one body, because each batch has a fixed cost."""
METADATA_BYTES_MAX: Final = 64 * KIB
"""Maximum size of a message's metadata: names and types of a schema, and what programs like pandas add."""
_CANONICAL: Final[dict[str, Any]] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "headers": HEADERS_TYPE,
    "tag": pa.string(),
    "timestamp": TIMESTAMP_TYPE,
}
_COLUMNS: Final = tuple(_CANONICAL)
_WORK_US_MAX: Final = 2_000.0
"""Maximum estimated work in µs between two yields to the event loop: about 2 MB of uncompressed columns."""
_BATCH_US: Final = 50.0
_READ_BYTES_PER_US: Final = 1_000.0
_DECOMPRESSED_BYTES_PER_US: Final = 300.0
_LENGTH: Final = struct.Struct("<q")
_MESSAGE_PREFIX: Final = struct.Struct("<Ii")
_CONTINUATION: Final = 0xFFFFFFFF

Hold = Callable[[int], None]
"""Reserves this many bytes in all for decoded columns; raises `Problem` if the budget is exhausted."""


class ArrowRecords(NamedTuple):
    """The record batches of a stream without the empty ones: in the canonical column types, or rows as they were sent.

    Attributes:
        are_rows: whether the columns are fields of a typed topic.
        size_bytes: total size of the buffers of a single batch that was sent in the canonical types; otherwise None.
    """

    batches: list[pa.RecordBatch]
    row_count: int
    size_bytes: int | None = None
    are_rows: bool = False


async def arrow_records(
    body: Body,
    *,
    records_max: int,
    decoded_bytes_max: int,
    hold: Hold,
    pace: Callable[[], Awaitable[None]],
    row_schema: Schema | None = None,
) -> ArrowRecords:
    """Read an Arrow stream of at most `records_max` rows.

    Args:
        row_schema: the newest schema of a typed topic; None: the columns are those of records.

    Raises:
        Problem: 413, the decoded stream is larger than `decoded_bytes_max`; 422, the body is not an Arrow IPC stream,
            has no rows or too many, or its columns are not those of records; also those that `hold` and `pace` raise.
    """
    plain = plain_batch(body) if row_schema is None else None
    if plain is not None:
        _check_limits(plain[1].rows, records_max, plain[1].size_bytes, decoded_bytes_max)
        if _takes_turns(plain[1]):
            await pace()
        return _plain_records(body, *plain)
    source = pa.BufferReader(body)
    messages = _Messages(source)
    schema, casts, _ = _schema(messages.next()) if row_schema is None else _rows_schema(messages.next(), row_schema)
    batches: list[pa.RecordBatch] = []
    count = decoded_bytes = copied_bytes = 0
    work_us = 0.0
    for number in range(MESSAGES_MAX + 1):
        message = messages.next()
        if message is None:
            break
        if number == MESSAGES_MAX:
            raise _fault(
                f"the stream has more than {MESSAGES_MAX} record batches: combine them, or send several requests"
            )
        where = f"record batch {number}"
        rows, size_bytes, is_compressed = _announced(message, where)
        count += rows
        decoded_bytes += size_bytes
        if is_compressed or casts:
            copied_bytes += size_bytes
        _check_limits(count, records_max, decoded_bytes, decoded_bytes_max)
        if copied_bytes:
            hold(copied_bytes)
        work_us += _BATCH_US + size_bytes / (_DECOMPRESSED_BYTES_PER_US if is_compressed else _READ_BYTES_PER_US)
        if work_us > _WORK_US_MAX:
            work_us = 0.0
            await pace()
        if rows:
            batches.append(_columns(message, schema, where, are_rows=row_schema is not None))
    if source.tell() != len(body):
        raise _fault("the body has bytes after the end of the stream; send one stream per request")
    if not count:
        raise _fault("the stream has no records; send at least one")
    return ArrowRecords(batches, count, are_rows=row_schema is not None)


def records_at_once(body: Body, *, records_max: int, decoded_bytes_max: int) -> ArrowRecords | None:
    """Read a stream that `plain_batch` recognises without yielding to the event loop.

    Return None for other streams, and for those that are too large for that.

    Raises:
        Problem: as `arrow_records`.
    """
    plain = plain_batch(body)
    if plain is None or _takes_turns(plain[1]):
        return None
    _check_limits(plain[1].rows, records_max, plain[1].size_bytes, decoded_bytes_max)
    return _plain_records(body, *plain)


def _takes_turns(batch: PlainBatch) -> bool:
    return _BATCH_US + batch.size_bytes / _READ_BYTES_PER_US > _WORK_US_MAX


def _plain_records(body: Body, schema: pa.Schema, batch: PlainBatch) -> ArrowRecords:
    message = pa.py_buffer(body)[batch.message]
    return ArrowRecords([_columns(message, schema, "record batch 0")], batch.rows, batch.size_bytes)


def _check_limits(count: int, records_max: int, decoded_bytes: int, decoded_bytes_max: int) -> None:
    """Refuse announced rows and bytes above the limits.

    Raises:
        Problem: 422, too many rows; 413, too many bytes.
    """
    if count > records_max:
        raise _fault(f"the stream has more than {records_max} records: send fewer rows per request")
    if decoded_bytes > decoded_bytes_max:
        raise Problem(
            413,
            "body_too_large",
            f"the decoded stream has more than {decoded_bytes_max} bytes: send fewer records per request",
            extra={"limit_bytes": decoded_bytes_max},
        )


def hold_room(scope: Scope, body_bytes: int, size_bytes: int) -> None:
    """Reserve memory of the request budget for decoded bytes, in addition to the request's body.

    Raises:
        Problem: 429, the budget or the caller's share of it has no room.
    """
    arrival: BodyReservation = scope["state"]["arrival"]
    if not arrival.hold(body_bytes + size_bytes):
        detail = (
            "the request budget, or this caller's share of it, has no room for the decoded body: send the request "
            "again later"
        )
        raise Problem(429, "overloaded", detail, retryable=True)


class _Messages:
    """Reads the messages of a stream without decoding their bodies."""

    def __init__(self, source: pa.BufferReader) -> None:
        try:
            self._reader = pa.ipc.MessageReader.open_stream(source)
        except (pa.ArrowException, OSError) as error:
            raise _no_stream(error) from error

    def next(self) -> Any:
        """Return the next message, None at the end.

        Raises:
            Problem: 422.
        """
        try:
            message: Any = self._reader.read_next_message()
        except StopIteration:
            return None
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _no_stream(error) from error
        if message.metadata.size > METADATA_BYTES_MAX:
            raise _fault(
                f"an Arrow message has {message.metadata.size} bytes of metadata, at most {METADATA_BYTES_MAX} are "
                "allowed: remove the metadata of the schema"
            )
        return message


class _KnownSchema(NamedTuple):
    """A schema whose columns are those of records.

    Attributes:
        casts: whether a column has another type than the canonical one.
        layout: layout of the record batches that follow; None if the schema casts, has a body or is too long to cache.
    """

    schema: pa.Schema
    casts: bool
    layout: BatchLayout | None


_SCHEMAS: Final[OrderedDict[bytes, _KnownSchema]] = OrderedDict()
"""Valid schemas by the metadata of their message, because a program sends the same schema with each request."""
_SCHEMAS_MAX: Final = 64
_CACHED_BYTES_MAX: Final = 4 * KIB


def _schema(message: Any) -> _KnownSchema:
    """Return the schema of the stream after checking that its columns are those of records.

    Raises:
        Problem: 422.
    """
    _check_is_schema(message)
    metadata = memoryview(message.metadata).tobytes()
    known = _SCHEMAS.get(metadata)
    if known is not None:
        return known
    try:
        schema = pa.ipc.read_schema(message)
        faults = _column_faults(schema)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:  # ValueError: a name is not UTF-8
        raise _no_stream(error) from error
    if faults:
        problem = invalid([{"pointer": "", "detail": fault} for fault in faults])
        raise WrongColumns(problem.status, problem.code, problem.detail, extra=problem.extra)
    casts = any(not kind.equals(_CANONICAL[name]) for name, kind in zip(schema.names, schema.types, strict=True))
    if len(metadata) > _CACHED_BYTES_MAX:
        return _KnownSchema(schema, casts, None)
    has_body = message.body is not None and message.body.size
    known = _KnownSchema(schema, casts, None if casts or has_body else BatchLayout(schema))
    _SCHEMAS[metadata] = known
    if len(_SCHEMAS) > _SCHEMAS_MAX:
        _SCHEMAS.popitem(last=False)
    return known


def _check_is_schema(message: Any) -> None:
    if message is None or message.type != "schema":
        raise _fault("the body is not an Arrow IPC stream: it does not begin with a schema")


class WrongColumns(Problem):
    """The columns of a stream are not those of records; in a typed topic they may be fields."""


def _rows_schema(message: Any, row_schema: Schema) -> _KnownSchema:
    """Return the schema of a stream of rows after checking that its columns are fields, or columns of the records.

    Raises:
        Problem: 422.
    """
    _check_is_schema(message)
    try:
        schema = pa.ipc.read_schema(message)
        names = schema.names
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:  # ValueError: a name is not UTF-8
        raise _no_stream(error) from error
    fields = [field.name for field in row_schema.fields]
    known = {*fields, *_OF_ROWS}
    if len(names) > len(known) * 2:
        raise _fault(f"the schema has {len(names)} columns; the topic has {len(fields)} fields")
    faults = [
        f"column {name!r} is duplicate; send it once"
        if name in known
        else f"column {name!r} is not a field of schema {row_schema.number}, which has {', '.join(fields)}"
        for name in dict.fromkeys(names)
        if name not in known or names.count(name) > 1
    ]
    faults += [
        f"column {name}: the type {_short(kind)} is not supported; send plain columns, lists and structs"
        for name, kind in zip(names, schema.types, strict=True)
        if not _is_plain(kind, SCHEMA_DEPTH_MAX + 1)
    ]
    if faults:
        raise invalid([{"pointer": "", "detail": fault} for fault in faults])
    return _KnownSchema(schema, casts=True, layout=None)


_OF_ROWS: Final = ("_timestamp", "_key", "_headers", "_tag", DELETED)
"""Columns of rows besides the fields."""


def _is_plain(kind: Any, depth: int) -> bool:
    """Return whether each value of a type has memory of its own, and the type has at most `depth` levels."""
    if isinstance(kind, pa.BaseExtensionType) or not depth:
        return False
    if pa.types.is_struct(kind):
        return all(_is_plain(kind.field(at).type, depth - 1) for at in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_plain(kind.value_type, depth - 1)
    if pa.types.is_map(kind):
        return _is_plain(kind.key_type, depth - 1) and _is_plain(kind.item_type, depth - 1)
    return pa.types.is_primitive(kind) or _is_bytes(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind)


def plain_batch(body: Body) -> tuple[pa.Schema, PlainBatch] | None:
    """Return the schema and the only batch of a stream whose schema is cached and whose batch has the cached layout.

    Return None for other streams.
    """
    if len(body) < PREFIX_BYTES:
        return None
    continuation, length = _MESSAGE_PREFIX.unpack_from(body)
    if continuation != _CONTINUATION or not 0 < length <= _CACHED_BYTES_MAX:
        return None
    at = PREFIX_BYTES + length
    known = _SCHEMAS.get(bytes(body[PREFIX_BYTES:at]))
    if known is None or known.layout is None:
        return None
    batch = known.layout.only_batch(body, at)
    return None if batch is None else (known.schema, batch)


def _column_faults(schema: pa.Schema) -> list[str]:
    """Return the errors in the columns of a schema.

    Raises:
        ValueError: a name, which pyarrow decodes on access, is not UTF-8.
    """
    names = schema.names
    if len(names) > len(_COLUMNS) * 2:
        return [f"the schema has {len(names)} columns; a record has {', '.join(_COLUMNS)}"]
    faults: list[str] = []
    for name in dict.fromkeys(names):
        if name not in _COLUMNS:
            near = difflib.get_close_matches(name, _COLUMNS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            if name == "partition":
                hint = "set the partition of all rows with the query parameter partition; "
            faults.append(f"column {name!r} is unknown: {hint}a record has {', '.join(_COLUMNS)}")
        elif names.count(name) > 1:
            faults.append(f"column {name} is duplicate; send it once")
        else:
            faults += _type_faults(name, schema.field(name).type)
    if "value" not in names:
        faults.append("column value is missing; add it, with null for a tombstone")
    return faults


def _type_faults(name: str, kind: Any) -> list[str]:
    """Return the errors in the type of a column.

    Types whose values share memory (dictionary, view, run-end encoding) are refused, because a few bytes of them can
    expand to any size.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return [f"column {name} has the extension type {kind.extension_name}: send it as {kind.storage_type}"]
    if name == "timestamp":
        is_fine = pa.types.is_timestamp(kind) or pa.types.is_integer(kind)
        return [] if is_fine else [f"column {name}: must be a timestamp, or milliseconds as an integer, got {kind}"]
    if name == "headers":
        parts: tuple[Any, Any] | None
        if pa.types.is_map(kind):
            parts = (kind.key_type, kind.item_type)
        elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_pair(kind.value_type):
            parts = (kind.value_type.field(0).type, kind.value_type.field(1).type)
        else:
            parts = None
        if parts is not None and _is_bytes(parts[1]) and _is_text(parts[0]):
            return []
        expected = "a list of structs of key (string) and value (binary), or a map"
        return [f"column {name}: must be {expected}, got {_short(kind)}"]
    if name == "tag":
        is_fine = _is_text(kind) or pa.types.is_null(kind)
        return [] if is_fine else [f"column {name}: must be string, got {_short(kind)}"]
    if _is_bytes(kind) or (name == "key" and pa.types.is_null(kind)):
        return []
    hint = ""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        hint = ": decode it before sending"
    return [f"column {name}: must be binary or string, got {_short(kind)}{hint}"]


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    is_fixed = pa.types.is_fixed_size_binary(kind) and kind.byte_width > 0
    return _is_text(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or is_fixed)


def _is_pair(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind)) and [field.name for field in kind] == ["key", "value"]


def _short(kind: Any) -> str:
    text = str(kind)
    return text if len(text) <= 200 else text[:200] + "…"


def _announced(message: Any, where: str) -> tuple[int, int, bool]:
    """Return the number of rows of a record batch, its decoded size in bytes, and whether it is compressed.

    Raises:
        Problem: 422.
    """
    if message.type != "record batch":
        raise _fault(
            f"{where}: expected a record batch, got a message of type {message.type}; send columns without dictionary "
            "encoding"
        )
    metadata = memoryview(message.metadata).tobytes()
    body = b"" if message.body is None else memoryview(message.body).cast("B")
    try:
        description = describe(metadata, PREFIX_BYTES + len(metadata) + len(body))
    except ProtocolError as error:
        raise _fault(f"{where}: {error.message}") from error
    if description.record_count < 0:
        raise _fault(f"{where}: the number of rows must be >= 0, got {description.record_count}")
    decoded_bytes = 0
    is_compressed = description.compression is not None
    for offset, stored_bytes in description.buffers:
        if offset < 0 or not 0 <= stored_bytes <= len(body) - offset:
            raise _fault(
                f"{where}: the body of {len(body)} bytes does not contain the buffer of {stored_bytes} bytes at offset "
                f"{offset}"
            )
        decoded_bytes += _length_of(body, offset, stored_bytes, where) if is_compressed else stored_bytes
    return description.record_count, decoded_bytes, is_compressed


def _length_of(body: bytes | memoryview, offset: int, stored_bytes: int, where: str) -> int:
    """Return the decompressed length of a buffer from its prefix; a prefix of -1 marks an uncompressed buffer."""
    if not stored_bytes:
        return 0
    if stored_bytes < _LENGTH.size:
        raise _fault(
            f"{where}: a compressed buffer has {stored_bytes} bytes, fewer than its length prefix of {_LENGTH.size}"
        )
    length: int = _LENGTH.unpack_from(body, offset)[0]
    if length < -1:
        raise _fault(f"{where}: the decompressed length of a buffer must be >= -1, got {length}")
    return stored_bytes - _LENGTH.size if length == -1 else length


def _columns(message: Any, schema: pa.Schema, where: str, *, are_rows: bool = False) -> pa.RecordBatch:
    """Decode and validate a record batch whose announced size is within the limits.

    Raises:
        Problem: 422.
    """
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        return batch if are_rows else canonical(batch)
    except (pa.ArrowException, OSError, EOFError, TypeError, ValueError) as error:
        raise _fault(f"{where}: {error}") from error


def _no_stream(error: Exception) -> Problem:
    return _fault(f"the body is not an Arrow IPC stream: {error}")


def _fault(detail: str) -> Problem:
    return invalid([{"pointer": "", "detail": detail}])
