"""Batches of which an owner has dropped records before it gave out offsets: see ADR 0087.

Unlike a derived batch (`derived_batch.py`) a thinned one has no gaps: what is left is numbered on from the batch in
front of it. It keeps its producer, and takes as many of the producer's numbers as the original had records: the
header's `sequence_span` says so. Of a batch of which nothing is left remains a control batch, for its numbers' sake:
one record that is shown to nobody.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch

THINNED_EXTRA_BYTES = 1024
"""So much longer than the original a thinned batch may be: a control batch, or padding."""


def without_dropped(batch: RecordBatch, keep: npt.NDArray[np.bool_]) -> bytearray:
    """Return header and body of what is left of a producer's batch; the owner's fields are not set yet.

    Args:
        batch: a whole batch, neither derived nor for the broker.
        keep: one entry a record, whether it stays; not all do.

    Raises:
        ProtocolError: CORRUPT_BATCH when the body does not decode; BATCH_TOO_LARGE when it was compressed better than
            is done here, and does not fit a batch any more.
    """
    header = batch.header
    some_left = bool(keep.any())
    encoded = encode_batch(
        batch.columns().filter(pa.array(keep)) if some_left else columns_of([None]),
        now_us=header.base_timestamp_us,
        codec=header.codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        control=not some_left,
    )
    spanned = unpack_header(encoded.header)._replace(sequence_span=header.record_count)
    return bytearray(b"".join((spanned.pack(), encoded.body)))
