"""Errors of batches that a node refuses for their sequence numbers or their schema, or that may be stored already."""

from __future__ import annotations

from typing import Final

from tidelog.errors import (
    OutcomeUnknownError,
    ProducerFencedError,
    ProducerIdSharedError,
    SchemaMismatchError,
    TidelogError,
    UnknownSchemaError,
)
from tidelog.produce.batches import OutgoingBatch

SCHEMA_ERRORS: Final = (SchemaMismatchError, UnknownSchemaError)
"""Refusals after which records are encoded under the newest schema of the topic."""


def instance_over_error(why: str, cause: TidelogError | None) -> ProducerFencedError:
    """Return the error of a named producer that can no longer determine whether it is the newest instance."""
    error = ProducerFencedError(
        f"this named producer cannot continue: {why}; create a new producer with the same name",
        definite=True,
    )
    error.__cause__ = cause
    return error


def foreign_duplicate_error(cause: TidelogError | None = None) -> ProducerIdSharedError:
    """Return the error of a batch that a node reports as a duplicate although no earlier attempt has stored it."""
    error = ProducerIdSharedError(
        "two producers use the same producer id: the node had the sequence numbers of these records before they "
        "were sent; the records are not stored, send them again",
        definite=True,
    )
    error.__cause__ = cause
    return error


def foreign_epoch_error(cause: ProducerFencedError) -> ProducerIdSharedError:
    """Return the error of a batch that a node refuses for a newer epoch, although this queue has not begun one."""
    error = ProducerIdSharedError(
        "two producers use the same producer id: the other producer has begun a new epoch; the records are not "
        "stored, send them again",
        definite=True,
    )
    error.__cause__ = cause
    return error


def overtaken_error() -> ProducerIdSharedError:
    """Return the error of a batch that must not be stored, because a later batch is stored already."""
    return ProducerIdSharedError(
        "two producers use the same producer id: later records are stored already, so these records are not stored, "
        "to keep the order; send them again",
        definite=True,
    )


def unknown_outcome_error(batch: OutgoingBatch) -> OutcomeUnknownError:
    """Return the error of a batch that must not get new sequence numbers."""
    error = OutcomeUnknownError(
        f"an attempt had an unknown outcome ({batch.last_error}), and the producer has begun a new epoch: the records "
        "may be stored; sending them again could store them twice"
    )
    error.__cause__ = batch.last_error
    return error
