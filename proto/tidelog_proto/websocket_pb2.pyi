from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientMessage(_message.Message):
    __slots__ = ("id", "auth", "sub", "credit", "commit", "committed", "pub", "unsub")
    ID_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    SUB_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PUB_FIELD_NUMBER: _ClassVar[int]
    UNSUB_FIELD_NUMBER: _ClassVar[int]
    id: int
    auth: Auth
    sub: Sub
    credit: Credit
    commit: Commit
    committed: AskCommitted
    pub: Pub
    unsub: Unsub
    def __init__(self, id: _Optional[int] = ..., auth: _Optional[_Union[Auth, _Mapping]] = ..., sub: _Optional[_Union[Sub, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., committed: _Optional[_Union[AskCommitted, _Mapping]] = ..., pub: _Optional[_Union[Pub, _Mapping]] = ..., unsub: _Optional[_Union[Unsub, _Mapping]] = ...) -> None: ...

class Auth(_message.Message):
    __slots__ = ("token", "user", "password")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    token: str
    user: str
    password: str
    def __init__(self, token: _Optional[str] = ..., user: _Optional[str] = ..., password: _Optional[str] = ...) -> None: ...

class Sub(_message.Message):
    __slots__ = ("sid", "topic", "group", "member", "from_timestamp_ms", "from_timestamp", "resume_token", "resume", "key", "tag", "credit", "on_lag", "max_lag_records", "max_message_bytes", "columns")
    class ResumeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    SID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    FROM_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    FROM_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ON_LAG_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    sid: int
    topic: str
    group: str
    member: bool
    from_timestamp_ms: int
    from_timestamp: str
    resume_token: str
    resume: _containers.ScalarMap[int, int]
    key: bytes
    tag: str
    credit: InitialCredit
    on_lag: str
    max_lag_records: int
    max_message_bytes: int
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sid: _Optional[int] = ..., topic: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[bool] = ..., from_timestamp_ms: _Optional[int] = ..., from_timestamp: _Optional[str] = ..., resume_token: _Optional[str] = ..., resume: _Optional[_Mapping[int, int]] = ..., key: _Optional[bytes] = ..., tag: _Optional[str] = ..., credit: _Optional[_Union[InitialCredit, _Mapping]] = ..., on_lag: _Optional[str] = ..., max_lag_records: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., columns: _Optional[_Iterable[str]] = ..., **kwargs) -> None: ...

class InitialCredit(_message.Message):
    __slots__ = ("records", "bytes")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    records: int
    bytes: int
    def __init__(self, records: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("sid", "records", "bytes")
    SID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    sid: int
    records: int
    bytes: int
    def __init__(self, sid: _Optional[int] = ..., records: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("sid", "offsets", "note")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    SID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    sid: int
    offsets: _containers.ScalarMap[int, int]
    note: str
    def __init__(self, sid: _Optional[int] = ..., offsets: _Optional[_Mapping[int, int]] = ..., note: _Optional[str] = ...) -> None: ...

class AskCommitted(_message.Message):
    __slots__ = ("group", "topic", "partitions", "from_partition")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FROM_PARTITION_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    from_partition: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., from_partition: _Optional[int] = ...) -> None: ...

class Pub(_message.Message):
    __slots__ = ("topic", "records")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    records: _containers.RepeatedCompositeFieldContainer[PubRecord]
    def __init__(self, topic: _Optional[str] = ..., records: _Optional[_Iterable[_Union[PubRecord, _Mapping]]] = ...) -> None: ...

class PubRecord(_message.Message):
    __slots__ = ("value", "key", "headers", "tag", "partition", "timestamp_ms")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    tag: str
    partition: int
    timestamp_ms: int
    def __init__(self, value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., tag: _Optional[str] = ..., partition: _Optional[int] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Unsub(_message.Message):
    __slots__ = ("sid",)
    SID_FIELD_NUMBER: _ClassVar[int]
    sid: int
    def __init__(self, sid: _Optional[int] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("id", "ok", "error", "batch", "assigned", "revoked", "end", "gap")
    ID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    id: int
    ok: Ok
    error: Error
    batch: Batch
    assigned: Assigned
    revoked: Revoked
    end: End
    gap: Gap
    def __init__(self, id: _Optional[int] = ..., ok: _Optional[_Union[Ok, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., assigned: _Optional[_Union[Assigned, _Mapping]] = ..., revoked: _Optional[_Union[Revoked, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ...) -> None: ...

class Ok(_message.Message):
    __slots__ = ("sid", "offsets", "resume_token", "principal", "results", "duplicates", "group", "committed", "from_partition")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    SID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FROM_PARTITION_FIELD_NUMBER: _ClassVar[int]
    sid: int
    offsets: _containers.ScalarMap[int, int]
    resume_token: str
    principal: str
    results: _containers.RepeatedCompositeFieldContainer[PubResult]
    duplicates: int
    group: str
    committed: _containers.RepeatedCompositeFieldContainer[Committed]
    from_partition: int
    def __init__(self, sid: _Optional[int] = ..., offsets: _Optional[_Mapping[int, int]] = ..., resume_token: _Optional[str] = ..., principal: _Optional[str] = ..., results: _Optional[_Iterable[_Union[PubResult, _Mapping]]] = ..., duplicates: _Optional[int] = ..., group: _Optional[str] = ..., committed: _Optional[_Iterable[_Union[Committed, _Mapping]]] = ..., from_partition: _Optional[int] = ...) -> None: ...

class PubResult(_message.Message):
    __slots__ = ("partition", "offset", "error", "duplicate")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    error: Error
    duplicate: bool
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("topic", "partition", "next_offset", "note", "commit_timestamp_ms", "epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    next_offset: int
    note: str
    commit_timestamp_ms: int
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., note: _Optional[str] = ..., commit_timestamp_ms: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "status", "detail", "retryable", "members_json")
    CODE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_JSON_FIELD_NUMBER: _ClassVar[int]
    code: str
    status: int
    detail: str
    retryable: bool
    members_json: str
    def __init__(self, code: _Optional[str] = ..., status: _Optional[int] = ..., detail: _Optional[str] = ..., retryable: _Optional[bool] = ..., members_json: _Optional[str] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("sid", "partition", "next_offset", "resume_token", "records")
    SID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    sid: int
    partition: int
    next_offset: int
    resume_token: str
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, sid: _Optional[int] = ..., partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., resume_token: _Optional[str] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("offset", "timestamp_ms", "key", "value", "tag", "headers")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes
    tag: str
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., tag: _Optional[str] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...

class Assigned(_message.Message):
    __slots__ = ("sid", "offsets")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    SID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    sid: int
    offsets: _containers.ScalarMap[int, int]
    def __init__(self, sid: _Optional[int] = ..., offsets: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Revoked(_message.Message):
    __slots__ = ("sid", "partitions", "lost")
    SID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    sid: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    lost: bool
    def __init__(self, sid: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., lost: _Optional[bool] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("sid", "error")
    SID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    sid: int
    error: Error
    def __init__(self, sid: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("sid", "partition", "from_offset", "next_offset", "resume_token")
    SID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sid: int
    partition: int
    from_offset: int
    next_offset: int
    resume_token: str
    def __init__(self, sid: _Optional[int] = ..., partition: _Optional[int] = ..., from_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., resume_token: _Optional[str] = ...) -> None: ...
