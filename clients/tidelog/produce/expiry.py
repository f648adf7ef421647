"""Errors of records that expired or could not be encoded; many records share one error."""

from __future__ import annotations

import math

from tidelog.errors import DeliveryTimeoutError, OverloadedError, TidelogError, error_of_local
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def expiry_error(
    cause: TidelogError | None, partition: int, *, definite: bool, queued: bool = False, held_s: float = 0.0
) -> DeliveryTimeoutError:
    """Return the error of a batch that was not, or certainly will not be, delivered within the delivery timeout.

    Args:
        cause: the last error of an attempt; None if no attempt has failed.
        partition: the partition of the batch.
        definite: whether the batch was certainly not stored.
        queued: whether the batch was never sent.
        held_s: remaining time for which a quota delays the batch, in seconds; 0 or less if no quota delays it.
    """
    known = "are not stored" if definite else "may be stored"
    what = f"the records for partition {partition} were not delivered within the delivery timeout and {known}"
    if held_s > 0 and definite and isinstance(cause, OverloadedError):
        error = DeliveryTimeoutError(
            f"{what}: {cause}; publishing is allowed again in {max(held_s, 0.1):.1f} s",
            code=pb.OVERLOADED,
            definite=True,
            retry_after_ms=math.ceil(held_s * 1000),
        )
    else:
        reason = (
            f"they were never sent{f': {cause}' if cause else ''}"
            if queued
            else f"the last attempt failed with: {cause}"
        )
        error = DeliveryTimeoutError(f"{what}; {reason}" if queued or cause else what, definite=definite)
    error.__cause__ = cause
    return error


def encoding_error(cause: Exception) -> TidelogError:
    """Return the error of a batch that could not be encoded, for lack of memory for instance; it was never sent."""
    error = TidelogError(
        f"these records could not be encoded as a batch, and were not sent: {cause!r}", retriable=False, definite=True
    )
    error.__cause__ = cause
    return error


def local_error(error: Exception) -> TidelogError:
    """Return the error of a batch that this client could not encode."""
    if isinstance(error, TidelogError):
        return error
    return error_of_local(error) if isinstance(error, ProtocolError) else encoding_error(error)


def copy_of_error(error: TidelogError) -> TidelogError:
    """Return a copy of an error that several callers raise, without the traceback that each of them adds.

    Many records share one error. If the same object were raised for each of them, its traceback would grow with every
    raise, keep the objects of those frames alive, and show unrelated frames.
    """
    fresh = type(error).__new__(type(error), *error.args)
    fresh.__dict__.update(error.__dict__)
    if hasattr(error, "__notes__"):
        fresh.__notes__ = list(error.__notes__)
    fresh.__cause__, fresh.__suppress_context__ = error.__cause__, error.__suppress_context__
    return fresh
