"""Fan-out of one encoded piece to all followers of a feed that receive the same bytes.

If a follower's transport buffer is empty, the piece is written to the transport directly, without a switch to the tasks
that serve the connection. Otherwise the piece is appended to the connection's pending output, within the connection's
share of the budget (`ConnectionOutput.push`). Followers that cannot take the piece are returned; they fall behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tidelog_gateway.feed.ring import Follower, Piece, PieceEncoder
from tidelog_gateway.metrics.integer_counter import Series
from tidelog_gateway.protocol.resume_tokens import ResumeTokens


class PieceTokens:
    """The resume token after the newest piece of a feed.

    Attributes:
        usual: the token to put into a batch message; None if this message has none because the token is long.
    """

    def __init__(self, tokens: ResumeTokens) -> None:
        self.usual: str | None = None
        self._tokens = tokens

    def always(self) -> str:
        """Return the token, regardless of its length."""
        return self._tokens.token() if self.usual is None else self.usual


class FanOut:
    """Writes pieces in one encoding to followers.

    Args:
        encoder: encoder of pieces.
        tokens: the feed's resume tokens.
        records_out: counts sent records.
    """

    __slots__ = ("__weakref__", "_encoder", "_records_out", "_tokens")

    def __init__(self, encoder: PieceEncoder, tokens: PieceTokens, records_out: Series) -> None:
        self._encoder = encoder
        self._tokens = tokens
        self._records_out = records_out

    def push(self, piece: Piece, followers: Iterable[Follower]) -> list[Follower]:
        """Write the newest piece to the followers that have credit and room for it; return the others."""
        encoder = self._encoder
        data = encoder.encode(piece, self._tokens.always() if encoder.always_token else self._tokens.usual)
        size_bytes, records = len(data), piece.records
        now = asyncio.get_running_loop().time()
        refused: list[Follower] = []
        written = 0
        for follower in followers:
            credit, outlet = follower.credit, follower.outlet
            transport, watch = outlet.direct, follower.watch
            if transport is None or transport.is_closing() or records > credit.credit_records:
                refused.append(follower)
                continue
            if credit.credit_bytes is not None and records and piece.payload_bytes > credit.credit_bytes:
                refused.append(follower)
                continue
            if records == 1 and credit.message_bytes_max is not None and size_bytes > credit.message_bytes_max:
                refused.append(follower)
                continue
            if watch is not None and not watch.may_push():
                refused.append(follower)
                continue
            if not transport.get_write_buffer_size():
                transport.write(data)
                if transport.get_write_buffer_size():
                    outlet.overflowed(size_bytes)
            elif not outlet.push(data):
                refused.append(follower)
                continue
            outlet.pushed_at = now
            outlet.pushed_bytes += size_bytes
            written += 1
            credit.credit_records -= records
            if credit.credit_bytes is not None:
                credit.credit_bytes -= piece.payload_bytes
            if watch is not None:
                watch.pushed()
        if written and records:
            self._records_out.value += records * written
        return refused
