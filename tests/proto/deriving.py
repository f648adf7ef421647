"""Cut down consecutive batches at once, as only tests do."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_proto.batch.derived_batch import Deriver
from tidelog_proto.batch.header import Buffer
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.retained_records import Keep


def derive_batches(
    batches: Iterable[Buffer], keep: Iterable[Keep | None], *, epoch: int, previous_digest: int = 0
) -> list[bytearray]:
    """Cut down consecutive batches at once: see `Deriver`, which needs less memory for many.

    Args:
        batches: header and body of each, at least one.
        keep: one for each batch.
        epoch: the epoch of the output.
        previous_digest: in front of the range that the batches cover.

    Raises:
        ValueError, ProtocolError: as `RecordBatch.parse`, `Deriver.add` and `Deriver.finish`.
    """
    parsed = [RecordBatch.parse(buffer) for buffer in batches]
    deriver = Deriver(parsed[0].base_offset, epoch=epoch, previous_digest=previous_digest)
    done = [one for batch, kept in zip(parsed, keep, strict=True) for one in deriver.add(batch, kept)]
    return done + deriver.finish()
