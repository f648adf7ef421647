"""State machine of the WebSocket protocol, without I/O: messages in, actions out, and the credit of each subscription.

The connection calls `receive` with every message and executes the returned action. A delivery calls `allowance` for the
number of records it may send, and reports sent records with `delivered`. All rules for clients are enforced here, so
they can be tested without a socket or a log.

States: a subscription is *opening* from its `sub` until its start offsets are resolved (`opened`), then *open* until
`ended` (by the client, the log, or the connection). The client may add credit in both states. Credit in records is
exact: a batch message never has more records than the credit. Credit in bytes counts payload (key, value, tag, headers)
and may be overdrawn by one record, because a record larger than the whole credit could never be sent otherwise; no more
records are sent until the credit is above zero again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from tidelog_gateway.problems import Problem, invalid, pointer
from tidelog_gateway.protocol.codecs import Codec, MessageError, Parsed
from tidelog_gateway.protocol.json_codec import JSON
from tidelog_gateway.protocol.messages import INTEGER_MAX, Commit, CommittedQuery, Pub, Sub
from tidelog_gateway.protocol.resume_tokens import ResumeTokens
from tidelog_gateway.records.json_decoding import Records
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.limits import MIB

SHORT_TOKEN_CHARS: Final = 1024
"""Maximum length of a resume token that is in every batch message, enough for about 150 partitions."""
TOKEN_SHARE: Final = 16
"""A longer token is sent only after records of this many times its length, which bounds its share of the output."""
TOKEN_GROWTH_CHARS: Final = 32
"""Maximum growth of a token by one batch: of one partition, which is new or has a longer offset."""
BATCH_MEMBERS_BYTES: Final = 160
"""Maximum length of a batch message without its records and its token."""

MESSAGE_BYTES_MAX: Final = 1 * MIB
"""Default of `max_message_bytes`: a common limit of WebSocket clients."""

CLOSE_UNSUPPORTED_DATA: Final = 1003
CLOSE_INTERNAL: Final = 1011
CLOSE_AGAIN: Final = 1013
CLOSE_UNAUTHENTICATED: Final = 4401
CLOSE_SLOW: Final = 4408
CLOSE_TOO_MANY: Final = 4429


@dataclass(slots=True)
class Reply:
    """Action: send this message to the client."""

    message: dict[str, Any]


@dataclass(slots=True)
class OpenSubscription:
    """Action: resolve the start offsets, call `WsProtocol.opened`, answer, and deliver records."""

    id: int
    sub: Sub


@dataclass(slots=True)
class EndSubscription:
    """Action: stop the delivery of a removed subscription, then answer."""

    id: int
    sid: int


@dataclass(slots=True)
class CreditAdded:
    """Action: wake the delivery of a subscription, to which the client has added credit."""

    sid: int


@dataclass(slots=True)
class CommitOffsets:
    """Action: commit offsets for the group of a subscription, then answer."""

    id: int
    sid: int
    topic: str
    group: str
    offsets: Mapping[int, int]
    note: str


@dataclass(slots=True)
class FetchCommitted:
    """Action: read a group's committed offsets, then answer."""

    id: int
    query: CommittedQuery


@dataclass(slots=True)
class Publish:
    """Action: publish records, then answer."""

    id: int
    topic: str
    records: Records


@dataclass(slots=True)
class Close:
    """Action: close the connection with this code."""

    code: int
    reason: str


Action: TypeAlias = (
    Reply | OpenSubscription | EndSubscription | CreditAdded | CommitOffsets | FetchCommitted | Publish | Close
)


class Allowance(NamedTuple):
    """Records and payload bytes that a subscription may send now; zero records: wait for credit."""

    records: int
    bytes: int


@dataclass(slots=True)
class Subscription:
    """State of one subscription.

    Attributes:
        positions: partition -> next offset; empty while opening; for a member, its assigned partitions.
        stopped: partitions that are being revoked: commits are accepted, and no records are sent.
        assignments: partition -> number of times that a member was assigned it; records that were read under an earlier
            assignment must not be sent.
        credit_bytes: credit in bytes; None if the client limits records only.
        tokens: makes resume tokens; None while opening, and for a member, which resumes at its group's offsets.
        token_chars: length of the newest token.
        since_token_bytes: length of the records sent since the newest token, as JSON.
        message_bytes_max: length of the longest message that the client accepts; None: no limit.
    """

    sid: int
    topic: str
    group: str | None
    credit_records: int
    credit_bytes: int | None
    is_member: bool = False
    positions: dict[int, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    assignments: dict[int, int] = field(default_factory=dict)
    tokens: ResumeTokens | None = None
    token_chars: int = 0
    since_token_bytes: int = 0
    message_bytes_max: int | None = None

    def fits(self, records: int, payload_bytes: int) -> bool:
        """Return whether the credit covers a whole batch message; a message without records needs no credit."""
        if not records:
            return True
        credit_bytes = self.credit_bytes
        return records <= self.credit_records and (credit_bytes is None or payload_bytes <= credit_bytes)

    def accepts(self, records: int, records_bytes: int) -> bool:
        """Return whether a batch message is short enough for the client.

        Only a message with one record can be too long: messages with several records are split.
        """
        if records != 1 or self.message_bytes_max is None:
            return True
        return records_bytes + BATCH_MEMBERS_BYTES + self.token_chars + TOKEN_GROWTH_CHARS <= self.message_bytes_max

    def spend(self, records: int, payload_bytes: int) -> None:
        """Spend credit for a batch message."""
        self.credit_records -= records
        if self.credit_bytes is not None:
            self.credit_bytes -= payload_bytes


class WsProtocol:
    """Protocol state of one connection.

    Args:
        always_token: whether each batch has a resume token, regardless of its length.
    """

    def __init__(self, settings: GatewaySettings, *, always_token: bool = False, codec: Codec = JSON) -> None:
        self._settings = settings
        self._codec = codec
        self._always_token = always_token
        self.short_token_chars = min(SHORT_TOKEN_CHARS, settings.ws_batch_bytes_max // 2)
        """Tokens of up to this length are in every batch message of a subscription without `message_bytes_max`."""
        self.subscriptions: dict[int, Subscription] = {}

    def receive(self, payload: str | bytes, *, now_us: int) -> Action:
        """Handle one message and return the action to execute; an invalid message results in a `Reply`."""
        try:
            parsed = self._codec.parse(payload, now_us=now_us)
        except MessageError as error:
            return Reply(error_message(error.request_id, error.problem))
        try:
            return self._act(parsed)
        except Problem as problem:
            return Reply(error_message(parsed.message.id, problem))

    def receive_other(self) -> Close:
        """Handle a message of the type, text or binary, that the subprotocol does not use."""
        return Close(CLOSE_UNSUPPORTED_DATA, f"{self._codec.subprotocol} accepts only {self._codec.kind} messages")

    def _act(self, parsed: Parsed) -> Action:
        message = parsed.message
        if message.credit is not None:
            credit = message.credit
            self._add_credit(self._subscription_of(credit.sid), credit.records, credit.bytes)
            return CreditAdded(credit.sid)
        assert message.id is not None, "the message model requires an id for all requests but credit"
        if message.auth is not None:
            if self._settings.auth == "callers":  # The connection is authenticated before the first `receive`.
                detail = "this WebSocket is already authenticated: open another one for another caller"
                raise Problem(409, "authenticated", detail)
            return Reply(ok_message(message.id, {}))
        if message.sub is not None:
            return self._subscribe(message.id, message.sub)
        if message.commit is not None:
            return self._commit(message.id, message.commit)
        if message.committed is not None:
            return FetchCommitted(message.id, message.committed)
        if message.pub is not None:
            return self._publish(message.id, message.pub, parsed.records)
        assert message.unsub is not None, "the message model requires exactly one request"
        sid = self._subscription_of(message.unsub.sid).sid
        self.ended(sid)
        return EndSubscription(message.id, sid)

    def _subscription_of(self, sid: int) -> Subscription:
        subscription = self.subscriptions.get(sid)
        if subscription is None:
            raise Problem(
                404, "unknown_subscription", f"this connection has no subscription {sid}; open it with sub first"
            )
        return subscription

    def _subscribe(self, request_id: int, sub: Sub) -> Action:
        if sub.sid in self.subscriptions:
            detail = f"subscription {sub.sid} is already open on this connection: use another sid"
            raise Problem(409, "subscription_exists", detail)
        limit = self._settings.ws_subscriptions_max
        if len(self.subscriptions) >= limit:
            detail = (
                f"this connection already has {limit} subscriptions, the maximum (ws_subscriptions_max): end one with "
                "unsub, or open another connection"
            )
            raise Problem(429, "too_many_subscriptions", detail)
        self.subscriptions[sub.sid] = Subscription(
            sub.sid, sub.topic, sub.group, sub.credit.records, sub.credit.bytes, is_member=sub.member
        )
        bytes_max = sub.max_message_bytes or max(MESSAGE_BYTES_MAX, self._settings.ws_batch_bytes_max)
        self.subscriptions[sub.sid].message_bytes_max = bytes_max
        return OpenSubscription(request_id, sub)

    def _add_credit(self, subscription: Subscription, records: int, size_bytes: int) -> None:
        subscription.credit_records = min(INTEGER_MAX, subscription.credit_records + records)
        if subscription.credit_bytes is not None:
            subscription.credit_bytes = min(INTEGER_MAX, subscription.credit_bytes + size_bytes)

    def _commit(self, request_id: int, commit: Commit) -> Action:
        subscription = self._subscription_of(commit.sid)
        if subscription.group is None:
            detail = f"subscription {commit.sid} has no group to commit for: set group in sub"
            raise Problem(422, "invalid_request", detail)
        for partition, next_offset in commit.offsets.items():
            position = subscription.positions.get(partition)
            where = pointer(["commit", "offsets", partition])
            if position is None:
                raise invalid([{"pointer": where, "detail": f"the subscription does not read partition {partition}"}])
            if next_offset > position:
                detail = f"must be <= {position}, the next offset to deliver, got {next_offset}"
                raise invalid([{"pointer": where, "detail": detail}])
        return CommitOffsets(
            request_id, subscription.sid, subscription.topic, subscription.group, commit.offsets, commit.note
        )

    def _publish(self, request_id: int, pub: Pub, records: Callable[[], Records]) -> Action:
        limit = self._settings.records_per_request_max
        if len(pub.records) > limit:
            detail = f"must have at most {limit} records, got {len(pub.records)}"
            raise invalid([{"pointer": "/pub/records", "detail": detail}])
        return Publish(request_id, pub.topic, records())

    def opened(self, sid: int, positions: Mapping[int, int], tokens: ResumeTokens | None = None) -> None:
        """Set the start offsets of an opening subscription.

        Args:
            sid: id of the subscription.
            positions: partition -> next offset.
            tokens: makes the resume tokens of the subscription; None: without resume tokens.
        """
        subscription = self.subscriptions[sid]
        assert not subscription.positions, "a subscription is opened once"
        subscription.positions = dict(positions)
        subscription.tokens = tokens

    def resume_token(self, sid: int) -> str | None:
        """Return the resume token of the current positions; None for a subscription without tokens."""
        subscription = self.subscriptions[sid]
        if subscription.tokens is None:
            return None
        token = subscription.tokens.token()
        subscription.token_chars, subscription.since_token_bytes = len(token), 0
        return token

    def batch_token(self, sid: int, size_bytes: int = 0) -> str | None:
        """Return the resume token for the next batch message; None if the message has none.

        A short token is in every message. A long token is sent after `TOKEN_SHARE` times its length of records, which
        limits the overhead, and only if the message can still have records.

        Args:
            size_bytes: length of the message's records as JSON.
        """
        if self._always_token:
            return self.resume_token(sid)
        subscription = self.subscriptions[sid]
        chars_max = subscription.token_chars + TOKEN_GROWTH_CHARS
        is_short = subscription.message_bytes_max is None and subscription.token_chars <= self.short_token_chars
        if subscription.tokens is None or not (is_short or self._is_token_due(subscription)):
            subscription.since_token_bytes += size_bytes
            return None
        token = subscription.tokens.token()
        subscription.token_chars, subscription.since_token_bytes = len(token), 0
        if len(token) <= chars_max:
            return token
        # With many new partitions the token can outgrow its reservation; the next message reserves the new length.
        subscription.since_token_bytes = TOKEN_SHARE * len(token)
        return None

    def token_chars(self, sid: int) -> int:
        """Return the length of the newest resume token; 0 for a subscription without tokens."""
        return self.subscriptions[sid].token_chars

    def _is_token_due(self, subscription: Subscription) -> bool:
        chars = subscription.token_chars
        if self._always_token:
            return True
        bytes_max = min(self._settings.ws_batch_bytes_max, subscription.message_bytes_max or INTEGER_MAX)
        if subscription.tokens is None or chars > bytes_max // 2:
            return False
        return chars <= SHORT_TOKEN_CHARS or subscription.since_token_bytes >= TOKEN_SHARE * chars

    def records_bytes_max(self, sid: int) -> int:
        """Return the maximum length of the records of the next batch message as JSON."""
        subscription = self.subscriptions[sid]
        token_bytes = subscription.token_chars + TOKEN_GROWTH_CHARS if self._is_token_due(subscription) else 0
        bytes_max = min(self._settings.ws_batch_bytes_max, subscription.message_bytes_max or INTEGER_MAX)
        return max(1, bytes_max - BATCH_MEMBERS_BYTES - token_bytes)

    def assigned(self, sid: int, positions: Mapping[int, int]) -> None:
        """Add assigned partitions of a member with their start offsets."""
        subscription = self.subscriptions[sid]
        subscription.positions.update(positions)
        subscription.stopped.difference_update(positions)
        for number in positions:
            subscription.assignments[number] = subscription.assignments.get(number, 0) + 1

    def stopped(self, sid: int, partitions: Iterable[int]) -> None:
        """Stop sending records of partitions that are being revoked; commits are accepted until `revoked`."""
        self.subscriptions[sid].stopped.update(partitions)

    def revoked(self, sid: int, partitions: Iterable[int]) -> None:
        """Remove revoked partitions of a member."""
        subscription = self.subscriptions[sid]
        for number in partitions:
            subscription.positions.pop(number, None)
            subscription.stopped.discard(number)

    def assignment(self, sid: int, partition: int) -> int:
        """Return the number of a partition's current assignment; see `may_send`."""
        return self.subscriptions[sid].assignments.get(partition, 0)

    def may_send(self, sid: int, partition: int, assignment: int) -> bool:
        """Return whether records may be sent: a member's records only under the assignment under which they arrived."""
        subscription = self.subscriptions[sid]
        return not subscription.is_member or (
            partition in subscription.positions
            and partition not in subscription.stopped
            and assignment == subscription.assignments[partition]
        )

    def ended(self, sid: int) -> None:
        """Remove a subscription."""
        del self.subscriptions[sid]

    def allowance(self, sid: int) -> Allowance:
        """Return the limits of the next batch message: the credit, and the limits of one message."""
        subscription = self.subscriptions[sid]
        size_bytes = self._settings.ws_batch_bytes_max
        if subscription.credit_bytes is not None:
            size_bytes = min(size_bytes, subscription.credit_bytes)
        if subscription.credit_records <= 0 or size_bytes <= 0:
            return Allowance(0, 0)
        return Allowance(min(subscription.credit_records, self._settings.ws_batch_records_max), size_bytes)

    def credit(self, sid: int) -> Allowance:
        """Return the credit of a subscription; `INTEGER_MAX` bytes if the client limits records only."""
        subscription = self.subscriptions[sid]
        size_bytes = INTEGER_MAX if subscription.credit_bytes is None else subscription.credit_bytes
        return Allowance(subscription.credit_records, size_bytes)

    def delivered(self, sid: int, partition: int, *, records: int, payload_bytes: int, next_offset: int) -> None:
        """Spend credit for a batch message that is about to be sent, and advance the partition's position.

        A partition that was added after the subscription was opened gets its position with its first batch.
        """
        subscription = self.subscriptions[sid]
        assert 0 < records <= subscription.credit_records, "a message has at most the allowed records"
        assert subscription.credit_bytes is None or subscription.credit_bytes > 0, "records are sent only with credit"
        subscription.spend(records, payload_bytes)
        self.passed(sid, partition, next_offset=next_offset)

    def passed(self, sid: int, partition: int, *, next_offset: int) -> None:
        """Advance a partition's position without spending credit, for instance over offsets without records."""
        subscription = self.subscriptions[sid]
        positions = subscription.positions
        assert next_offset > positions.get(partition, -1), "positions only move forward"
        positions[partition] = next_offset
        if subscription.tokens is not None:
            subscription.tokens.move(partition, next_offset)


def ok_message(request_id: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a successful request."""
    return {"id": request_id, "ok": dict(body)}


def error_message(request_id: int | None, problem: Problem) -> dict[str, Any]:
    """Return the answer to a failed request; it has no id if that of the message could not be read."""
    answer: dict[str, Any] = {} if request_id is None else {"id": request_id}
    return {**answer, "error": problem.brief()}


def batch_message(
    sid: int, partition: int, records: Any, next_offset: int, resume_token: str | None = None
) -> dict[str, Any]:
    """Return a batch of records.

    Args:
        records: a list, or an `orjson.Fragment`.
        next_offset: offset to commit after the records were processed.
        resume_token: token that resumes after the records; None to leave it out.
    """
    batch = {"sid": sid, "partition": partition, "records": records, "next_offset": next_offset}
    if resume_token is not None:
        batch["resume_token"] = resume_token
    return {"batch": batch}


def gap_message(
    sid: int, partition: int, from_offset: int, next_offset: int, resume_token: str | None
) -> dict[str, Any]:
    """Return the message for skipped records of a partition: offsets from `from_offset` to before `next_offset`."""
    gap: dict[str, Any] = {"sid": sid, "partition": partition, "from_offset": from_offset, "next_offset": next_offset}
    if resume_token is not None:
        gap["resume_token"] = resume_token
    return {"gap": gap}


def too_large(subscription: Subscription, partition: int, offset: int, records_bytes: int) -> Problem:
    """Return the error for a record that does not fit the longest message that the client accepts."""
    bytes_max = subscription.message_bytes_max
    detail = (
        f"partition {partition}: the record at offset {offset} has {records_bytes} bytes when encoded, but messages of "
        f"this subscription have at most {bytes_max} bytes; raise max_message_bytes and the client's limit, or skip "
        f'the record with "resume":{{"{partition}":{offset + 1}}}'
    )
    extra = {"partition": partition, "offset": offset, "size_bytes": records_bytes, "max_message_bytes": bytes_max}
    return Problem(413, "message_too_large", detail, extra=extra)


def assigned_message(sid: int, offsets: Mapping[int, int]) -> dict[str, Any]:
    """Return the message for assigned partitions, with the next offset of each."""
    return {"assigned": {"sid": sid, "offsets": {str(number): offset for number, offset in offsets.items()}}}


def revoked_message(sid: int, partitions: list[int], *, lost: bool) -> dict[str, Any]:
    """Return the message for revoked partitions; with `lost`, other members may already own them."""
    return {"revoked": {"sid": sid, "partitions": partitions, "lost": lost}}


def end_message(sid: int, problem: Problem) -> dict[str, Any]:
    """Return the message for a subscription that ended with an error."""
    return {"end": {"sid": sid, "error": problem.brief()}}
