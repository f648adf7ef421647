"""What is told of records that were given up, not delivered in time or impossible to send: many have one error."""

from __future__ import annotations

import math

from tidelog.errors import DeliveryTimeoutError, OverloadedError, TidelogError
from tidelog_proto import broker_pb2 as pb


def expiry_error(
    cause: TidelogError | None, *, definite: bool, queued: bool = False, held_s: float = 0.0
) -> DeliveryTimeoutError:
    """Return the error of a batch that was not delivered in time, or will not be.

    Args:
        cause: what was in the way last.
        definite: it was not stored.
        queued: it was never sent.
        held_s: for how long a quota still holds it back, in seconds; not above zero: none does.
    """
    known = "it was not stored" if definite else "whether it was stored is unknown"
    what = f"not delivered within the delivery timeout, {known}"
    if held_s > 0 and definite and isinstance(cause, OverloadedError):
        error = DeliveryTimeoutError(
            f"{what}: {cause}; that lasts for another {held_s:.1f} s",
            code=pb.OVERLOADED,
            definite=True,
            retry_after_ms=math.ceil(held_s * 1000),
        )
    else:
        met = f"it never left the queue{f': {cause}' if cause else ''}" if queued else f"the last try met: {cause}"
        error = DeliveryTimeoutError(f"{what}; {met}" if queued or cause else what, definite=definite)
    error.__cause__ = cause
    return error


def encoding_error(cause: Exception) -> TidelogError:
    """Return the error of a batch that could not be made, as where there was no memory for it: it was never sent."""
    error = TidelogError(f"no batch could be made of these records: {cause!r}", retriable=False, definite=True)
    error.__cause__ = cause
    return error


def copy_of_error(error: TidelogError) -> TidelogError:
    """Return an error to raise that others raise, too: alike, without the notes and tracebacks that those add to it.

    Many records have one error. Raised itself for each of them, it would grow by a frame or more each time, keep what
    those hold, and tell in the log of one record of all that came before it.
    """
    fresh = type(error).__new__(type(error), *error.args)
    fresh.__dict__.update(error.__dict__)
    if hasattr(error, "__notes__"):
        fresh.__notes__ = list(error.__notes__)
    fresh.__cause__, fresh.__suppress_context__ = error.__cause__, error.__suppress_context__
    return fresh
