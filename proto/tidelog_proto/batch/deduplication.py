"""Batches from which the owner dropped duplicate records before it assigned offsets (ADR 0087).

Unlike a derived batch (`derived_batch.py`), such a batch has no offset gaps: the remaining records are numbered
consecutively. The batch keeps its producer id, and counts as many sequence numbers as the original had records:
`sequence_span` in the header. If no record remains, a control batch with one hidden record preserves the sequence
numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch

THINNED_EXTRA_BYTES = 1024
"""Maximum number of bytes by which a batch grows when duplicates are dropped: it may become a control batch, which has
a minimum size, or have more padding."""


def without_dropped(batch: RecordBatch, keep: npt.NDArray[np.bool_]) -> bytearray:
    """Return header and body of a producer's batch without dropped records; the owner's fields are not set.

    Args:
        batch: a whole batch, neither derived nor a control batch.
        keep: for each record whether it is kept; at least one entry is False.

    Raises:
        ProtocolError: CORRUPT_BATCH if the body does not decode; BATCH_TOO_LARGE if the producer compressed it better
            than is done here, and it no longer fits a batch.
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
        layout=batch.layout if some_left else None,
    )
    spanned = unpack_header(encoded.header, typed=True)._replace(sequence_span=header.record_count)
    return bytearray(b"".join((spanned.pack(), encoded.body)))
