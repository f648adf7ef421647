"""Arrow streams as bodies, and what reading them returns."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from tidelog_gateway.bodies.arrow_body import ArrowRecords, arrow_records
from tidelog_gateway.problems import Problem

MIB = 1 << 20


async def pace() -> None:
    pass


def stream(*batches: Any, compression: Any = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=False)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


async def read(body: bytes | memoryview, **changes: Any) -> ArrowRecords:
    given: dict[str, Any] = {"records_max": 10_000, "decoded_bytes_max": 8 * MIB, "hold": lambda _: None, "pace": pace}
    return await arrow_records(body, **(given | changes))


async def fault(body: bytes, status: int = 422, **changes: Any) -> str:
    with pytest.raises(Problem) as caught:
        await read(body, **changes)
    assert caught.value.status == status
    return caught.value.detail
