"""The WebSocket conversation without I/O: messages in, actions out, and the credit of each subscription.

The shell calls `receive` with every message it gets and does what the returned action says; when a subscription
has something to send it asks `allowance` how much, and reports what left with `delivered`. Everything a client
may and may not do is decided here, so all of it can be tested without a socket or a log.

Theory of operation. A subscription is *opening* from its `sub` until the shell has resolved where each
partition begins (`opened`), then *open* until `ended` (by the client, the log, or the connection). Credit may
arrive in both states. Credit in records is exact: a batch message never has more records than were allowed.
Credit in bytes counts payload (key, value, tag, headers) and may be overdrawn by one record, because a record
larger than all credit could never be sent otherwise; nothing more leaves until it is above zero again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from tidelog_gateway.problems import Problem, invalid, pointer
from tidelog_gateway.records_in import Records
from tidelog_gateway.resume_tokens import ResumeTokens
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.websocket.codecs import Codec, MessageError, Parsed
from tidelog_gateway.websocket.json_codec import JSON
from tidelog_gateway.websocket.messages import INTEGER_MAX, AskCommitted, Commit, Pub, Sub
from tidelog_proto.limits import MIB

SHORT_TOKEN_CHARS: Final = 1024
"""Up to this length a resume token goes with every batch message; about 150 partitions have room in it."""
TOKEN_SHARE: Final = 16
"""A longer token comes after this many times its length of records."""
TOKEN_GROWTH_CHARS: Final = 32
"""How much longer than the last one a token may be, for one partition that is new or has a longer offset."""
BATCH_MEMBERS_BYTES: Final = 160
"""Of a batch message without its records and its token, at most: names and numbers."""

MESSAGE_BYTES_MAX: Final = 1 * MIB
"""The longest message of a subscription that does not say what its client takes: the limit that is common."""

CLOSE_UNSUPPORTED_DATA: Final = 1003
CLOSE_INTERNAL: Final = 1011
CLOSE_AGAIN: Final = 1013
CLOSE_UNAUTHENTICATED: Final = 4401
CLOSE_SLOW: Final = 4408
CLOSE_TOO_MANY: Final = 4429


@dataclass(slots=True)
class Reply:
    """Send this message."""

    message: dict[str, Any]


@dataclass(slots=True)
class OpenSubscription:
    """Resolve where each partition begins, call `opened`, answer, and deliver."""

    id: int
    sub: Sub


@dataclass(slots=True)
class EndSubscription:
    """Stop delivering; the subscription is gone already. Then answer."""

    id: int
    sid: int


@dataclass(slots=True)
class CreditAdded:
    """Wake the delivery of this subscription."""

    sid: int


@dataclass(slots=True)
class CommitOffsets:
    """Commit for a group, then answer."""

    id: int
    sid: int
    topic: str
    group: str
    offsets: Mapping[int, int]
    note: str


@dataclass(slots=True)
class TellCommitted:
    """Read back what a group has committed, then answer."""

    id: int
    asked: AskCommitted


@dataclass(slots=True)
class Publish:
    """Publish, then answer."""

    id: int
    topic: str
    records: Records


@dataclass(slots=True)
class Close:
    """Close the connection with this code."""

    code: int
    reason: str


Action: TypeAlias = (
    Reply | OpenSubscription | EndSubscription | CreditAdded | CommitOffsets | TellCommitted | Publish | Close
)


class Allowance(NamedTuple):
    """How much of a subscription may be sent now; zero records means pause."""

    records: int
    bytes: int


@dataclass(slots=True)
class Subscription:
    """What the protocol knows of one subscription.

    Attributes:
        positions: the next offset of each partition; empty while opening, and what a member has by now.
        stopped: partitions that a member gives up: they are committed still, and nothing more is sent of them.
        terms: how often a member got each partition: what it had at hand when one went is not what it gets anew.
        credit_bytes: None when the client counts records only.
        tokens: makes resume tokens; None while opening, and for a member, which resumes where its group has committed.
        token_chars: length of the newest token.
        since_token_bytes: records sent since the newest token, as JSON.
        message_bytes_max: the longest message that the client takes; None: there is no limit.
    """

    sid: int
    topic: str
    group: str | None
    credit_records: int
    credit_bytes: int | None
    is_member: bool = False
    positions: dict[int, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    terms: dict[int, int] = field(default_factory=dict)
    tokens: ResumeTokens | None = None
    token_chars: int = 0
    since_token_bytes: int = 0
    message_bytes_max: int | None = None

    def fits(self, records: int, payload_bytes: int) -> bool:
        """Whether credit allows a batch message as a whole; one without records needs none."""
        if not records:
            return True
        credit_bytes = self.credit_bytes
        return records <= self.credit_records and (credit_bytes is None or payload_bytes <= credit_bytes)

    def takes(self, records: int, records_bytes: int) -> bool:
        """Whether a batch message with encoded records of this length is short enough for the client.

        Several records are cut to be; one that alone is longer cannot be.
        """
        if records != 1 or self.message_bytes_max is None:
            return True
        return records_bytes + BATCH_MEMBERS_BYTES + self.token_chars + TOKEN_GROWTH_CHARS <= self.message_bytes_max

    def spend(self, records: int, payload_bytes: int) -> None:
        """Spend credit for a batch message that fits."""
        self.credit_records -= records
        if self.credit_bytes is not None:
            self.credit_bytes -= payload_bytes


class WsProtocol:
    """One connection's conversation.

    Args:
        settings: its bounds.
        always_token: whether each batch has a resume token, however long that is.
        codec: how its messages look.
    """

    def __init__(self, settings: GatewaySettings, *, always_token: bool = False, codec: Codec = JSON) -> None:
        self._settings = settings
        self._codec = codec
        self._always_token = always_token
        self.subscriptions: dict[int, Subscription] = {}

    def receive(self, payload: str | bytes, *, now_us: int) -> Action:
        """Take one message and say what follows. Faults of the client become a `Reply` with an error."""
        try:
            parsed = self._codec.parse(payload, now_us=now_us)
        except MessageError as error:
            return Reply(error_message(error.request_id, error.problem))
        try:
            return self._act(parsed)
        except Problem as problem:
            return Reply(error_message(parsed.message.id, problem))

    def receive_other(self) -> Close:
        """Take a message of a kind that this subprotocol does not have: text or binary."""
        return Close(CLOSE_UNSUPPORTED_DATA, f"messages of {self._codec.subprotocol} are {self._codec.kind}")

    def _act(self, parsed: Parsed) -> Action:
        message = parsed.message
        if message.credit is not None:
            credit = message.credit
            self._add_credit(self._known(credit.sid), credit.records, credit.bytes)
            return CreditAdded(credit.sid)
        assert message.id is not None, "the message model demands an id for everything but credit"
        if message.auth is not None:
            if self._settings.auth == "callers":  # who this is was found out before the conversation began
                raise Problem(409, "authenticated", "this WebSocket has its caller: open another one for another")
            return Reply(ok_message(message.id, {}))
        if message.sub is not None:
            return self._subscribe(message.id, message.sub)
        if message.commit is not None:
            return self._commit(message.id, message.commit)
        if message.committed is not None:
            return TellCommitted(message.id, message.committed)
        if message.pub is not None:
            return self._publish(message.id, message.pub, parsed.records)
        assert message.unsub is not None, "the message model demands exactly one request"
        sid = self._known(message.unsub.sid).sid
        self.ended(sid)
        return EndSubscription(message.id, sid)

    def _known(self, sid: int) -> Subscription:
        found = self.subscriptions.get(sid)
        if found is None:
            raise Problem(404, "unknown_subscription", f"this connection has no subscription {sid}")
        return found

    def _subscribe(self, request_id: int, sub: Sub) -> Action:
        if sub.sid in self.subscriptions:
            raise Problem(409, "subscription_exists", f"subscription {sub.sid} is open on this connection already")
        limit = self._settings.ws_subscriptions_max
        if len(self.subscriptions) >= limit:
            raise Problem(429, "too_many_subscriptions", f"a connection has at most {limit} subscriptions")
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
        subscription = self._known(commit.sid)
        if subscription.group is None:
            raise Problem(422, "invalid_request", f"subscription {commit.sid} has no group to commit for")
        for partition, next_offset in commit.offsets.items():
            position = subscription.positions.get(partition)
            where = pointer(["commit", "offsets", partition])
            if position is None:
                raise invalid([{"pointer": where, "detail": "the subscription has no such partition"}])
            if next_offset > position:
                raise invalid([{"pointer": where, "detail": f"only what is before {position} has been delivered"}])
        return CommitOffsets(
            request_id, subscription.sid, subscription.topic, subscription.group, commit.offsets, commit.note
        )

    def _publish(self, request_id: int, pub: Pub, records: Callable[[], Records]) -> Action:
        limit = self._settings.records_per_request_max
        if len(pub.records) > limit:
            detail = f"at most {limit} records in one message, got {len(pub.records)}"
            raise invalid([{"pointer": "/pub/records", "detail": detail}])
        return Publish(request_id, pub.topic, records())

    def opened(self, sid: int, positions: Mapping[int, int], tokens: ResumeTokens | None = None) -> None:
        """Say where the partitions of an opening subscription begin; `tokens` makes its resume tokens, if any."""
        subscription = self.subscriptions[sid]
        assert not subscription.positions, "a subscription opens once"
        subscription.positions = dict(positions)
        subscription.tokens = tokens

    def resume_token(self, sid: int) -> str | None:
        """Return the token of all positions as they are now; None for a subscription that has none."""
        subscription = self.subscriptions[sid]
        if subscription.tokens is None:
            return None
        token = subscription.tokens.token()
        subscription.token_chars, subscription.since_token_bytes = len(token), 0
        return token

    def batch_token(self, sid: int, size_bytes: int = 0) -> str | None:
        """Return the token for the next batch message; None if this message is to have none.

        A short token goes with every message. A long one follows messages that are `TOKEN_SHARE` times as long in all,
        so that it never dominates what is sent, and only where it leaves room for records.

        Args:
            sid: the subscription.
            size_bytes: of the message's records as JSON.
        """
        if self._always_token:
            return self.resume_token(sid)
        subscription = self.subscriptions[sid]
        chars_max = subscription.token_chars + TOKEN_GROWTH_CHARS
        if subscription.tokens is None or not self._is_token_due(subscription):
            subscription.since_token_bytes += size_bytes
            return None
        token = subscription.tokens.token()
        subscription.token_chars, subscription.since_token_bytes = len(token), 0
        if len(token) <= chars_max:
            return token
        subscription.since_token_bytes = TOKEN_SHARE * len(token)  # many partitions are new: the next message has room
        return None

    def token_chars(self, sid: int) -> int:
        """Return the length of the newest resume token; 0 for a subscription that has none."""
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
        """Return how many bytes the records of the next batch message may have as JSON, beside what it has else."""
        subscription = self.subscriptions[sid]
        token_bytes = subscription.token_chars + TOKEN_GROWTH_CHARS if self._is_token_due(subscription) else 0
        bytes_max = min(self._settings.ws_batch_bytes_max, subscription.message_bytes_max or INTEGER_MAX)
        return max(1, bytes_max - BATCH_MEMBERS_BYTES - token_bytes)

    def assigned(self, sid: int, positions: Mapping[int, int]) -> None:
        """Say which partitions a member gets, and where they begin."""
        subscription = self.subscriptions[sid]
        subscription.positions.update(positions)
        subscription.stopped.difference_update(positions)
        for number in positions:
            subscription.terms[number] = subscription.terms.get(number, 0) + 1

    def stopped(self, sid: int, partitions: Iterable[int]) -> None:
        """Say which partitions a member gives up: it may commit them until `revoked`."""
        self.subscriptions[sid].stopped.update(partitions)

    def revoked(self, sid: int, partitions: Iterable[int]) -> None:
        """Say which partitions a member has no longer."""
        subscription = self.subscriptions[sid]
        for number in partitions:
            subscription.positions.pop(number, None)
            subscription.stopped.discard(number)

    def term(self, sid: int, partition: int) -> int:
        """Return in which term records of a partition arrive now; see `may_send`."""
        return self.subscriptions[sid].terms.get(partition, 0)

    def may_send(self, sid: int, partition: int, term: int) -> bool:
        """Whether records of a partition that arrived in a term may be sent: a member has some, all others have all."""
        subscription = self.subscriptions[sid]
        return not subscription.is_member or (
            partition in subscription.positions
            and partition not in subscription.stopped
            and term == subscription.terms[partition]
        )

    def ended(self, sid: int) -> None:
        """Forget a subscription."""
        del self.subscriptions[sid]

    def allowance(self, sid: int) -> Allowance:
        """Return how much may be sent now, bounded by what one batch message may hold."""
        subscription = self.subscriptions[sid]
        size_bytes = self._settings.ws_batch_bytes_max
        if subscription.credit_bytes is not None:
            size_bytes = min(size_bytes, subscription.credit_bytes)
        if subscription.credit_records <= 0 or size_bytes <= 0:
            return Allowance(0, 0)
        return Allowance(min(subscription.credit_records, self._settings.ws_batch_records_max), size_bytes)

    def credit(self, sid: int) -> Allowance:
        """Return all that may be sent before more credit comes."""
        subscription = self.subscriptions[sid]
        size_bytes = INTEGER_MAX if subscription.credit_bytes is None else subscription.credit_bytes
        return Allowance(subscription.credit_records, size_bytes)

    def delivered(self, sid: int, partition: int, *, records: int, payload_bytes: int, next_offset: int) -> None:
        """Spend credit for a batch message that is about to be sent and move the partition's position.

        A partition that was added to the topic since the subscription was opened has one from its first batch on.
        """
        subscription = self.subscriptions[sid]
        assert 0 < records <= subscription.credit_records, "records never exceed what was allowed"
        subscription.credit_records -= records
        if subscription.credit_bytes is not None:
            assert subscription.credit_bytes > 0, "nothing is sent without credit"
            subscription.credit_bytes -= payload_bytes
        self.passed(sid, partition, next_offset=next_offset)

    def passed(self, sid: int, partition: int, *, next_offset: int) -> None:
        """Move a partition's position, also where nothing is left up to there: that costs no credit."""
        subscription = self.subscriptions[sid]
        positions = subscription.positions
        assert next_offset > positions.get(partition, -1), "positions only move forward"
        positions[partition] = next_offset
        if subscription.tokens is not None:
            subscription.tokens.move(partition, next_offset)


def ok_message(request_id: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request that worked."""
    return {"id": request_id, "ok": dict(body)}


def error_message(request_id: int | None, problem: Problem) -> dict[str, Any]:
    """Return the answer to a request that failed; without an id when the message had none that could be read."""
    answer: dict[str, Any] = {} if request_id is None else {"id": request_id}
    return {**answer, "error": problem.brief()}


def batch_message(
    sid: int, partition: int, records: Any, next_offset: int, resume_token: str | None = None
) -> dict[str, Any]:
    """Return a batch of records.

    Args:
        sid: the subscription.
        partition: of the records.
        records: a list, or a fragment of JSON.
        next_offset: what to commit when the records are processed.
        resume_token: what to resume from then; None if this message has none.
    """
    batch = {"sid": sid, "partition": partition, "records": records, "next_offset": next_offset}
    if resume_token is not None:
        batch["resume_token"] = resume_token
    return {"batch": batch}


def batch_frame(sid: int, partition: int, records: bytes, next_offset: int, resume_token: str | None) -> bytes:
    """Return the frame of `batch_message`, as bytes; `records` are a JSON array."""
    begin = b'{"batch":{"sid":%d,"partition":%d,"records":' % (sid, partition)
    token = b"" if resume_token is None else b',"resume_token":"%b"' % resume_token.encode()
    end = b',"next_offset":%d%b}}' % (next_offset, token)
    size_bytes = len(begin) + len(records) + len(end)
    if size_bytes < _LENGTH_16:
        head = b"\x81%c" % size_bytes
    elif size_bytes < 1 << 16:
        head = b"\x81\x7e" + size_bytes.to_bytes(2, "big")
    else:
        head = b"\x81\x7f" + size_bytes.to_bytes(8, "big")
    return b"".join((head, begin, records, end))


_LENGTH_16: Final = 126
"""In a frame's head: the length of its payload is in the next 2 bytes; 127: in the next 8 (RFC 6455, 5.2)."""


def gap_message(
    sid: int, partition: int, from_offset: int, next_offset: int, resume_token: str | None
) -> dict[str, Any]:
    """Return the news that a subscription is not sent the records of a partition from an offset up to another."""
    gap: dict[str, Any] = {"sid": sid, "partition": partition, "from_offset": from_offset, "next_offset": next_offset}
    if resume_token is not None:
        gap["resume_token"] = resume_token
    return {"gap": gap}


def too_large(subscription: Subscription, partition: int, offset: int, records_bytes: int) -> Problem:
    """Return the error for a record that alone makes a message which is too long for the client."""
    bytes_max = subscription.message_bytes_max
    detail = (
        f"partition {partition}: the record at offset {offset} is {records_bytes} bytes long as it would be sent, and "
        f"messages of this subscription have at most {bytes_max} bytes; let the client take longer messages and say "
        f'so with max_message_bytes, or continue after the record with "resume":{{"{partition}":{offset + 1}}}'
    )
    extra = {"partition": partition, "offset": offset, "size_bytes": records_bytes, "max_message_bytes": bytes_max}
    return Problem(413, "message_too_large", detail, extra=extra)


def assigned_message(sid: int, offsets: Mapping[int, int]) -> dict[str, Any]:
    """Return the news that a member gets partitions, with the next offset of each."""
    return {"assigned": {"sid": sid, "offsets": {str(number): offset for number, offset in offsets.items()}}}


def revoked_message(sid: int, partitions: list[int], *, lost: bool) -> dict[str, Any]:
    """Return the news that a member has no partitions any more; those that are lost others may have already."""
    return {"revoked": {"sid": sid, "partitions": partitions, "lost": lost}}


def end_message(sid: int, problem: Problem) -> dict[str, Any]:
    """Return the news that the log ended a subscription."""
    return {"end": {"sid": sid, "error": problem.brief()}}
