"""Types of a client's WebSocket messages; each message is one request.

```
{"id":1,"auth":{"token":"..."}}
{"id":2,"sub":{"sid":7,"topic":"t","from":"latest","resume_token":"AQ...","credit":{"records":500,"bytes":1048576}}}
{"credit":{"sid":7,"records":100,"bytes":65536}}
{"id":3,"commit":{"sid":7,"offsets":{"0":50}}}
{"id":4,"pub":{"topic":"t","records":[{"key":"k","value":"v"}]}}
{"id":5,"committed":{"group":"g","topic":"t","partitions":[0]}}
{"id":6,"unsub":{"sid":7}}
```

Every request but `credit` has an id of the client's choice, which the answer repeats.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from tidelog_gateway.protocol.resume_tokens import TOKEN_CHARS_MAX
from tidelog_gateway.records.json_decoding import JsonRecord, PartitionNumber
from tidelog_gateway.requests.parameters import KEY_CHARS_MAX, KeyEncoding
from tidelog_proto.limits import (
    FIELD_NAME_BYTES_MAX,
    GROUP_NAME_BYTES_MAX,
    KIB,
    LISTED_PARTITIONS_MAX,
    NOTE_BYTES_MAX,
    PARTITIONS_MAX,
    SCHEMA_LEAVES_MAX,
    TAG_BYTES_MAX,
    TIMESTAMP_MS_MAX,
    TOPIC_NAME_CHARS_MAX,
)
from tidelog_proto.process.epoch_units import EPOCH, wrong_unit, zoned_time

INTEGER_MAX: Final = 2**53 - 1
"""The largest integer that every JSON implementation represents exactly."""

TIMESTAMP_CHARS_MAX: Final = 40
"""Maximum length of a time in ISO 8601."""

MESSAGE_BYTES_MIN: Final = 16 * KIB
"""Lower limit of `max_message_bytes`, which limits batch messages only: answers to requests may be longer."""

Id = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
Count = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
OffsetNumber = Annotated[int, Field(ge=0, lt=2**63)]
TopicName = Annotated[str, Field(min_length=1, max_length=TOPIC_NAME_CHARS_MAX)]
GroupName = Annotated[str, Field(min_length=1, max_length=GROUP_NAME_BYTES_MAX)]


_PARTITION: Final = re.compile(r"0|[1-9][0-9]*")


def _partition_of(name: object) -> object:
    """Parse the name of a JSON member as a partition number; `00` is refused, as `0` and `00` would be duplicates."""
    if not isinstance(name, str):
        return name
    if _PARTITION.fullmatch(name) is None:
        raise ValueError(f"must be a partition number in decimal digits without leading zeros, got {name[:40]!r}")
    return int(name)


Offsets = Annotated[
    dict[Annotated[PartitionNumber, BeforeValidator(_partition_of)], OffsetNumber],
    Field(max_length=LISTED_PARTITIONS_MAX),
]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Auth(_Message):
    """Credentials: a token, or a user and a password; in a message, because URLs are logged."""

    token: Annotated[str, Field(max_length=16_384)] | None = None
    user: Annotated[str, Field(max_length=1_024)] | None = None
    password: Annotated[str | None, Field(max_length=1_024, repr=False)] = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.token is None) == (self.user is None) or (self.user is None) != (self.password is None):
            raise ValueError("auth must have either a token, or a user and a password")
        return self


class AtTime(_Message):
    """A start position by time: the first record at or after it."""

    timestamp_ms: Annotated[int | None, Field(ge=0, le=TIMESTAMP_MS_MAX)] = None
    timestamp: Annotated[str | None, Field(max_length=TIMESTAMP_CHARS_MAX)] = None
    """ISO 8601 with a time zone."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.timestamp_ms is None) == (self.timestamp is None):
            raise ValueError("a start by time must have exactly one of timestamp_ms and timestamp")
        return self

    @field_validator("timestamp_ms")
    @classmethod
    def _has_unit(cls, value: int | None) -> int | None:
        if value is not None and (reason := wrong_unit(value, "milliseconds", exact="timestamp with")):
            raise ValueError(reason)
        return value

    @field_validator("timestamp")
    @classmethod
    def _is_zoned(cls, value: str | None) -> str | None:
        if value is not None and zoned_time(value) is None:
            raise ValueError(
                "must be ISO 8601 with a time zone such as 2013-01-01T00:00:00Z, and not before 1970, "
                f"got {value!r}; pass milliseconds since 1970 as timestamp_ms"
            )
        return value

    @property
    def moment(self) -> datetime:
        """The start time, of either field."""
        if self.timestamp is None:
            return EPOCH + timedelta(milliseconds=self.timestamp_ms or 0)
        return datetime.fromisoformat(self.timestamp)


class InitialCredit(_Message):
    """Credit of a new subscription; without `bytes` only records are limited."""

    records: Count
    bytes: Count | None = None


def _form_of(start: object) -> str:
    """Return the tag of the type that validates a start, so that errors are reported for that type only."""
    return "time" if isinstance(start, AtTime | dict) else "end"


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("end")] | Annotated[AtTime, Tag("time")], Discriminator(_form_of)
]


class Sub(_Message):
    """Open a subscription to all partitions of a topic, or to the records that match a key or a tag."""

    sid: Id
    topic: TopicName
    group: GroupName | None = None
    member: bool = False
    start: Annotated[Start, Field(alias="from")] = "latest"
    resume_token: Annotated[str, Field(min_length=1, max_length=TOKEN_CHARS_MAX)] | None = None
    resume: Offsets = {}
    key: Annotated[str | None, Field(max_length=KEY_CHARS_MAX)] = None
    key_encoding: KeyEncoding = "utf8"
    tag: Annotated[str | None, Field(max_length=TAG_BYTES_MAX)] = None
    columns: (
        Annotated[
            list[Annotated[str, Field(max_length=FIELD_NAME_BYTES_MAX)]],
            Field(min_length=1, max_length=SCHEMA_LEAVES_MAX, fail_fast=True),
        ]
        | None
    ) = None
    credit: InitialCredit
    on_lag: Literal["pause", "skip", "close"] = "pause"
    max_lag_records: Annotated[int, Field(ge=1, le=INTEGER_MAX)] | None = None
    max_message_bytes: Annotated[int, Field(ge=MESSAGE_BYTES_MIN, le=INTEGER_MAX)] | None = None

    @model_validator(mode="after")
    def _lag_has_a_bound(self) -> Self:
        if self.on_lag != "pause" and self.max_lag_records is None:
            raise ValueError(f'"on_lag":"{self.on_lag}" requires max_lag_records: set it')
        if self.on_lag == "pause" and self.max_lag_records is not None:
            raise ValueError('max_lag_records requires "on_lag":"skip" or "on_lag":"close": set one, or omit it')
        if self.on_lag != "pause" and self.member:
            raise ValueError("a member of a group cannot limit its lag: leave on_lag and max_lag_records out")
        return self

    @model_validator(mode="after")
    def _member_of_a_group(self) -> Self:
        if self.member and self.group is None:
            raise ValueError('"member":true requires a group: set group')
        if self.member and (self.resume or self.resume_token is not None):
            raise ValueError("a member begins at its group's committed offsets: leave resume and resume_token out")
        return self


class Credit(_Message):
    """Add credit to a subscription."""

    sid: Id
    records: Count = 0
    bytes: Count = 0


class Commit(_Message):
    """Commit offsets for the subscription's group; each is the next offset to read."""

    sid: Id
    offsets: Annotated[Offsets, Field(min_length=1)]
    note: Annotated[str, Field(max_length=NOTE_BYTES_MAX)] = ""


class CommittedQuery(_Message):
    """Read a group's committed offsets in a topic: in some partitions, or in all from `from_partition`."""

    group: GroupName
    topic: TopicName
    partitions: (
        Annotated[
            list[Annotated[int, Field(ge=0, lt=PARTITIONS_MAX)]],
            Field(min_length=1, max_length=LISTED_PARTITIONS_MAX, fail_fast=True),
        ]
        | None
    ) = None
    from_partition: Annotated[int, Field(ge=0, lt=PARTITIONS_MAX)] = 0


class Pub(_Message):
    """Publish records, which have the format of an HTTP publish."""

    topic: TopicName
    records: Annotated[list[JsonRecord], Field(min_length=1, fail_fast=True)]


class Unsub(_Message):
    """End a subscription."""

    sid: Id


class ClientMessage(_Message):
    """One message, with exactly one request."""

    id: Id | None = None
    auth: Auth | None = None
    sub: Sub | None = None
    credit: Credit | None = None
    commit: Commit | None = None
    committed: CommittedQuery | None = None
    pub: Pub | None = None
    unsub: Unsub | None = None

    @model_validator(mode="after")
    def _one_request(self) -> Self:
        requests = [name for name in REQUESTS if getattr(self, name) is not None]
        if len(requests) != 1:
            raise ValueError(
                f"a message must have exactly one of {', '.join(REQUESTS)}, got {', '.join(requests) or 'none'}"
            )
        if self.id is None and self.credit is None:
            raise ValueError(f"a message with {requests[0]} requires an id, which its answer repeats: add id")
        return self


REQUESTS: Final = ("auth", "sub", "credit", "commit", "committed", "pub", "unsub")
"""The kinds of requests; a message has exactly one."""
