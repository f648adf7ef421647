"""Fan-out of one encoded entry to all followers of a feed that receive the same bytes.

If a follower's transport buffer is empty, the entry is written to the transport directly, without a switch to the tasks
that serve the connection. Otherwise the entry is appended to the connection's pending output, within the connection's
share of the budget (`ConnectionOutput.push`). Followers that cannot take the entry are returned; they fall behind.

Sent records and bytes are counted once for all followers (ADR 0169), because counting them for each connection takes
a considerable part of the time of the write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tidelog_gateway.feed.ring import EntryEncoder, Follower, RingEntry
from tidelog_gateway.protocol.resume_tokens import ResumeTokens
from tidelog_proto.process.hot_path_metrics import Tally

NEVER: Final = -1
ALWAYS: Final = 2**64
"""Values of `FanOut.credit_end`. `NEVER`: each push checks the credit of each follower. `ALWAYS`: no follower can run
out of credit."""


class EntryTokens:
    """The resume token after the newest entry of a feed.

    Attributes:
        usual: the token to put into the newest batch message; None if it is too long to be sent with each message.
    """

    def __init__(self, tokens: ResumeTokens) -> None:
        self.usual: str | None = None
        self._tokens = tokens

    def always(self) -> str:
        """Return the token, regardless of its length."""
        return self._tokens.token() if self.usual is None else self.usual


class FanOut:
    """Writes entries in one encoding to followers, and counts what it has sent instead of charging each of them.

    A follower in step (see `ring`) has received every entry since it joined, so its debt is the difference between the
    counts of the fan-out now and then (`Follower.records_at`, `bytes_at`). The debt is settled when the follower is no
    longer in step. As clients can only add credit, no follower runs out of it before the fan-out has sent `credit_end`
    records; until then a push does not look at credit.

    Args:
        encoder: encoder of entries.
        tokens: the feed's resume tokens.
        records_out: counts sent records.
        is_exact: whether each push checks and charges each follower: for those with credit in bytes or a watch.

    Attributes:
        sent_records: records of all entries so far.
        credit_end: lower bound of the `sent_records` after which a follower in step has no credit.
        pushed_at: the loop's time of the last push.
    """

    __slots__ = (
        *("__weakref__", "credit_end", "pushed_at", "sent_records", "_checks", "_encoder", "_is_exact"),
        *("_message_bytes_min", "_newest_bytes", "_newest_records", "_records_out", "_sent_bytes", "_time", "_tokens"),
    )

    def __init__(
        self, encoder: EntryEncoder, tokens: EntryTokens, records_out: Tally, *, is_exact: bool = False
    ) -> None:
        self.sent_records = 0
        self.credit_end = NEVER if is_exact else ALWAYS
        self.pushed_at = 0.0
        self._encoder = encoder
        self._tokens = tokens
        self._records_out = records_out
        self._time = asyncio.get_running_loop().time
        self._is_exact = is_exact
        self._checks = is_exact
        """Whether the newest entry must be checked against the credit and the limit of each follower."""
        self._sent_bytes = 0
        self._newest_records = self._newest_bytes = 0
        self._message_bytes_min = ALWAYS
        """Lower bound of the followers' `message_bytes_max`."""

    def joined(self, follower: Follower) -> None:
        """Start to count sent entries for a follower that is in step."""
        credit = follower.credit
        follower.records_at, follower.bytes_at = self.sent_records, self._sent_bytes
        self.credit_end = min(self.credit_end, self.sent_records + credit.credit_records)
        if credit.message_bytes_max is not None:
            self._message_bytes_min = min(self._message_bytes_min, credit.message_bytes_max)
        follower.outlet.sources.append(self)

    def left(self, follower: Follower) -> None:
        """Charge a follower that is no longer in step for what it was sent."""
        self._settle(follower)
        follower.outlet.sources.remove(self)

    def not_sent(self, follower: Follower) -> None:
        """Exclude the newest entry from what a follower is charged for."""
        follower.records_at += self._newest_records
        follower.bytes_at += self._newest_bytes

    def wants(self, follower: Follower) -> bool:
        """Return whether a follower in step has credit."""
        credit = follower.credit
        if follower.records_at + credit.credit_records <= self.sent_records:
            return False
        return credit.credit_bytes is None or credit.credit_bytes > 0

    def begin(self, entry: RingEntry) -> None:
        """Count an entry that several calls of `push` will send, before the first of them."""
        encoder, tokens = self._encoder, self._tokens
        data = encoder.encode(entry, tokens.always() if encoder.always_token else tokens.usual)
        self._begin(entry.records, len(data))

    def push(self, entry: RingEntry, followers: Sequence[Follower], *, has_begun: bool = False) -> list[Follower]:
        """Write the newest entry to the followers whose credit and connection allow it; return the others.

        Args:
            entry: the entry.
            followers: followers in step that were not pushed to yet.
            has_begun: whether `begin` was called for the entry.
        """
        encoder, tokens = self._encoder, self._tokens
        data = encoder.encode(entry, tokens.always() if encoder.always_token else tokens.usual)
        size_bytes, records = len(data), entry.records
        if not has_begun:
            self._begin(records, size_bytes)
        self.pushed_at = self._time()
        checks, is_exact = self._checks, self._is_exact
        refused: list[Follower] = []
        for follower in followers:
            outlet = follower.outlet
            transport = outlet.direct
            if (
                transport is None
                or transport.is_closing()
                or (checks and not self._covers(follower, entry, size_bytes))
            ):
                refused.append(follower)
                continue
            try:
                if not transport.get_write_buffer_size():
                    transport.write(data)
                    if transport.get_write_buffer_size():
                        outlet.overflowed(size_bytes)
                elif not outlet.push(data):
                    refused.append(follower)
                    continue
            except (OSError, RuntimeError):  # The transport was closed meanwhile: only this follower is affected.
                refused.append(follower)
                continue
            if is_exact:
                self._charge(follower, entry)
        for follower in refused:
            self.not_sent(follower)
        self._records_out.value += records * (len(followers) - len(refused))
        return refused

    def _begin(self, records: int, size_bytes: int) -> None:
        """Count the newest entry, and decide whether followers have to be checked one by one."""
        self._newest_records, self._newest_bytes = records, size_bytes
        self.sent_records += records
        self._sent_bytes += size_bytes
        if self._is_exact:
            return
        self._checks = records == 1 and size_bytes > self._message_bytes_min
        if self.sent_records > self.credit_end:
            self._checks = True
            self.credit_end = ALWAYS  # `_covers` lowers it to the credit of the followers.

    def _covers(self, follower: Follower, entry: RingEntry, size_bytes: int) -> bool:
        """Return whether a follower's credit, limit and watch allow the newest entry, which `sent_records` includes."""
        credit, records = follower.credit, entry.records
        credit_end = follower.records_at + credit.credit_records
        if records and credit_end < self.sent_records:
            return False
        self.credit_end = min(self.credit_end, credit_end)
        if credit.credit_bytes is not None and records and entry.payload_bytes > credit.credit_bytes:
            return False
        if records == 1 and credit.message_bytes_max is not None and size_bytes > credit.message_bytes_max:
            return False
        return follower.watch is None or follower.watch.may_push()

    def _charge(self, follower: Follower, entry: RingEntry) -> None:
        """Charge a follower for the newest entry at once."""
        self._settle(follower)
        if follower.credit.credit_bytes is not None:
            follower.credit.credit_bytes -= entry.payload_bytes
        if follower.watch is not None:
            follower.watch.pushed()

    def _settle(self, follower: Follower) -> None:
        """Charge a follower for all entries that it was sent since it joined or was charged last."""
        size_bytes = self._sent_bytes - follower.bytes_at
        if not size_bytes:
            return
        follower.credit.credit_records -= self.sent_records - follower.records_at
        follower.records_at, follower.bytes_at = self.sent_records, self._sent_bytes
        outlet = follower.outlet
        outlet.pushed_bytes += size_bytes
        outlet.settled_at = max(outlet.settled_at, self.pushed_at)
