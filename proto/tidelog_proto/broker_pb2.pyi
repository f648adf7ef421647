from tidelog_proto import filter_pb2 as _filter_pb2
from tidelog_proto import schema_pb2 as _schema_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    MALFORMED_FRAME: _ClassVar[ErrorCode]
    UNKNOWN_KIND: _ClassVar[ErrorCode]
    UNSUPPORTED_VERSION: _ClassVar[ErrorCode]
    FRAME_TOO_LARGE: _ClassVar[ErrorCode]
    HELLO_REQUIRED: _ClassVar[ErrorCode]
    INVALID_REQUEST: _ClassVar[ErrorCode]
    UNAUTHENTICATED: _ClassVar[ErrorCode]
    FORBIDDEN: _ClassVar[ErrorCode]
    CREDENTIALS_EXPIRED: _ClassVar[ErrorCode]
    CORRUPT_BATCH: _ClassVar[ErrorCode]
    BATCH_TOO_LARGE: _ClassVar[ErrorCode]
    UNSUPPORTED_BATCH: _ClassVar[ErrorCode]
    SCHEMA_MISMATCH: _ClassVar[ErrorCode]
    UNKNOWN_TOPIC: _ClassVar[ErrorCode]
    TOPIC_EXISTS: _ClassVar[ErrorCode]
    INVALID_TOPIC: _ClassVar[ErrorCode]
    UNKNOWN_PARTITION: _ClassVar[ErrorCode]
    OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    UNKNOWN_SUBSCRIPTION: _ClassVar[ErrorCode]
    UNKNOWN_SCHEMA: _ClassVar[ErrorCode]
    SEQUENCE_GAP: _ClassVar[ErrorCode]
    PRODUCER_FENCED: _ClassVar[ErrorCode]
    UNKNOWN_PRODUCER: _ClassVar[ErrorCode]
    DUPLICATE_OUT_OF_WINDOW: _ClassVar[ErrorCode]
    PRODUCER_ID_SHARED: _ClassVar[ErrorCode]
    NOT_OWNER: _ClassVar[ErrorCode]
    EPOCH_CHANGING: _ClassVar[ErrorCode]
    OVERLOADED: _ClassVar[ErrorCode]
    SHUTTING_DOWN: _ClassVar[ErrorCode]
    DISK_FULL: _ClassVar[ErrorCode]
    STORAGE_FAILED: _ClassVar[ErrorCode]
    TIMED_OUT: _ClassVar[ErrorCode]
    LIMBO: _ClassVar[ErrorCode]
    QUORUM_LOST: _ClassVar[ErrorCode]
    STORED_ON_QUORUM: _ClassVar[ErrorCode]
    MEMBER_FENCED: _ClassVar[ErrorCode]
    GROUP_NOT_EMPTY: _ClassVar[ErrorCode]
    UNKNOWN_GROUP: _ClassVar[ErrorCode]
    INTERNAL: _ClassVar[ErrorCode]
    TICKET_REFUSED: _ClassVar[ErrorCode]
    QUOTA_EXCEEDED: _ClassVar[ErrorCode]

class Flush(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLUSH_UNSPECIFIED: _ClassVar[Flush]
    ALWAYS: _ClassVar[Flush]
    INTERVAL: _ClassVar[Flush]
    NEVER: _ClassVar[Flush]
    ASYNC: _ClassVar[Flush]

class Cleanup(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLEANUP_UNSPECIFIED: _ClassVar[Cleanup]
    DELETE: _ClassVar[Cleanup]
    COMPACT: _ClassVar[Cleanup]
    COMPACT_AND_DELETE: _ClassVar[Cleanup]

class FileModel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FILE_MODEL_UNSPECIFIED: _ClassVar[FileModel]
    PER_PARTITION: _ClassVar[FileModel]
    SHARED: _ClassVar[FileModel]

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUORUM: _ClassVar[Acks]
    ONE: _ClassVar[Acks]
    ALL: _ClassVar[Acks]

class Assignor(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ASSIGNOR_UNSPECIFIED: _ClassVar[Assignor]
    STICKY: _ClassVar[Assignor]
    RANGE: _ClassVar[Assignor]
    ROUND_ROBIN: _ClassVar[Assignor]
    BY_LOAD: _ClassVar[Assignor]

class ReplicaStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HELD: _ClassVar[ReplicaStatus]
    GAP: _ClassVar[ReplicaStatus]
    FENCED: _ClassVar[ReplicaStatus]
    BEHIND: _ClassVar[ReplicaStatus]
    DECIDED: _ClassVar[ReplicaStatus]
    DIVERGED: _ClassVar[ReplicaStatus]
    IN_LIMBO: _ClassVar[ReplicaStatus]
    NOT_HELD: _ClassVar[ReplicaStatus]
    DELETED: _ClassVar[ReplicaStatus]
    FETCHING: _ClassVar[ReplicaStatus]

class NodeRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_ROLE_UNSPECIFIED: _ClassVar[NodeRole]
    INGESTION: _ClassVar[NodeRole]
    PERSISTENCE: _ClassVar[NodeRole]

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_UNSPECIFIED: _ClassVar[Operation]
    OP_PRODUCE: _ClassVar[Operation]
    OP_CONSUME: _ClassVar[Operation]
    OP_CREATE: _ClassVar[Operation]
    OP_ALTER: _ClassVar[Operation]
    OP_DELETE: _ClassVar[Operation]
    OP_DESCRIBE: _ClassVar[Operation]
    OP_GROUP: _ClassVar[Operation]
    OP_CLUSTER: _ClassVar[Operation]
    OP_ALL: _ClassVar[Operation]
    OP_IMPERSONATE: _ClassVar[Operation]

class Resource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_UNSPECIFIED: _ClassVar[Resource]
    RES_TOPIC: _ClassVar[Resource]
    RES_GROUP: _ClassVar[Resource]
    RES_CLUSTER: _ClassVar[Resource]
ERROR_CODE_UNSPECIFIED: ErrorCode
MALFORMED_FRAME: ErrorCode
UNKNOWN_KIND: ErrorCode
UNSUPPORTED_VERSION: ErrorCode
FRAME_TOO_LARGE: ErrorCode
HELLO_REQUIRED: ErrorCode
INVALID_REQUEST: ErrorCode
UNAUTHENTICATED: ErrorCode
FORBIDDEN: ErrorCode
CREDENTIALS_EXPIRED: ErrorCode
CORRUPT_BATCH: ErrorCode
BATCH_TOO_LARGE: ErrorCode
UNSUPPORTED_BATCH: ErrorCode
SCHEMA_MISMATCH: ErrorCode
UNKNOWN_TOPIC: ErrorCode
TOPIC_EXISTS: ErrorCode
INVALID_TOPIC: ErrorCode
UNKNOWN_PARTITION: ErrorCode
OFFSET_OUT_OF_RANGE: ErrorCode
UNKNOWN_SUBSCRIPTION: ErrorCode
UNKNOWN_SCHEMA: ErrorCode
SEQUENCE_GAP: ErrorCode
PRODUCER_FENCED: ErrorCode
UNKNOWN_PRODUCER: ErrorCode
DUPLICATE_OUT_OF_WINDOW: ErrorCode
PRODUCER_ID_SHARED: ErrorCode
NOT_OWNER: ErrorCode
EPOCH_CHANGING: ErrorCode
OVERLOADED: ErrorCode
SHUTTING_DOWN: ErrorCode
DISK_FULL: ErrorCode
STORAGE_FAILED: ErrorCode
TIMED_OUT: ErrorCode
LIMBO: ErrorCode
QUORUM_LOST: ErrorCode
STORED_ON_QUORUM: ErrorCode
MEMBER_FENCED: ErrorCode
GROUP_NOT_EMPTY: ErrorCode
UNKNOWN_GROUP: ErrorCode
INTERNAL: ErrorCode
TICKET_REFUSED: ErrorCode
QUOTA_EXCEEDED: ErrorCode
FLUSH_UNSPECIFIED: Flush
ALWAYS: Flush
INTERVAL: Flush
NEVER: Flush
ASYNC: Flush
CLEANUP_UNSPECIFIED: Cleanup
DELETE: Cleanup
COMPACT: Cleanup
COMPACT_AND_DELETE: Cleanup
FILE_MODEL_UNSPECIFIED: FileModel
PER_PARTITION: FileModel
SHARED: FileModel
QUORUM: Acks
ONE: Acks
ALL: Acks
ASSIGNOR_UNSPECIFIED: Assignor
STICKY: Assignor
RANGE: Assignor
ROUND_ROBIN: Assignor
BY_LOAD: Assignor
HELD: ReplicaStatus
GAP: ReplicaStatus
FENCED: ReplicaStatus
BEHIND: ReplicaStatus
DECIDED: ReplicaStatus
DIVERGED: ReplicaStatus
IN_LIMBO: ReplicaStatus
NOT_HELD: ReplicaStatus
DELETED: ReplicaStatus
FETCHING: ReplicaStatus
NODE_ROLE_UNSPECIFIED: NodeRole
INGESTION: NodeRole
PERSISTENCE: NodeRole
OPERATION_UNSPECIFIED: Operation
OP_PRODUCE: Operation
OP_CONSUME: Operation
OP_CREATE: Operation
OP_ALTER: Operation
OP_DELETE: Operation
OP_DESCRIBE: Operation
OP_GROUP: Operation
OP_CLUSTER: Operation
OP_ALL: Operation
OP_IMPERSONATE: Operation
RESOURCE_UNSPECIFIED: Resource
RES_TOPIC: Resource
RES_GROUP: Resource
RES_CLUSTER: Resource

class Envelope(_message.Message):
    __slots__ = ("correlation_id", "error", "hello", "hello_reply", "metadata", "metadata_reply", "publish", "publish_reply", "fetch", "fetch_reply", "list_offsets", "list_offsets_reply", "subscribe", "subscribe_reply", "message_event", "credit", "unsubscribe", "unsubscribe_reply", "subscription_ended", "commit", "commit_reply", "committed", "committed_reply", "topic_create", "topic_describe", "topic_list", "topic_alter", "topic_delete", "topic_reply", "cluster_status", "cluster_status_reply", "cluster_change", "cluster_change_reply", "delete_records", "delete_records_reply", "compact", "compact_reply", "producer_begin", "producer_begin_reply", "peer_hello", "peer_hello_reply", "peer_proof", "peer_welcome", "append_batch", "replication_ack", "pre_vote", "pre_vote_reply", "seal", "seal_reply", "open_epoch", "open_epoch_reply", "metadata_update", "epoch_status", "backfill", "backfill_reply", "chain_digests", "node_announce", "node_announce_reply", "incarnations", "incarnations_reply", "group_heartbeat", "group_heartbeat_reply", "group_describe", "group_describe_reply", "group_list", "group_list_reply", "group_delete", "group_delete_reply", "security_change", "security_change_reply", "security_list", "security_list_reply", "access_test", "access_test_reply", "schema_change", "schema_change_reply", "schemas", "schemas_reply", "hello_challenge", "identify", "identify_reply", "caller", "on_behalf", "throttle_ms", "caller_throttle_ms", "trace_contexts")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HELLO_REPLY_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    METADATA_REPLY_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_REPLY_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    FETCH_REPLY_FIELD_NUMBER: _ClassVar[int]
    LIST_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LIST_OFFSETS_REPLY_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_REPLY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_EVENT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_REPLY_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_ENDED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_REPLY_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_REPLY_FIELD_NUMBER: _ClassVar[int]
    TOPIC_CREATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_LIST_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ALTER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_DELETE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_REPLY_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_STATUS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_STATUS_REPLY_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_CHANGE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_CHANGE_REPLY_FIELD_NUMBER: _ClassVar[int]
    DELETE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    DELETE_RECORDS_REPLY_FIELD_NUMBER: _ClassVar[int]
    COMPACT_FIELD_NUMBER: _ClassVar[int]
    COMPACT_REPLY_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_BEGIN_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_BEGIN_REPLY_FIELD_NUMBER: _ClassVar[int]
    PEER_HELLO_FIELD_NUMBER: _ClassVar[int]
    PEER_HELLO_REPLY_FIELD_NUMBER: _ClassVar[int]
    PEER_PROOF_FIELD_NUMBER: _ClassVar[int]
    PEER_WELCOME_FIELD_NUMBER: _ClassVar[int]
    APPEND_BATCH_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_ACK_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_REPLY_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    SEAL_REPLY_FIELD_NUMBER: _ClassVar[int]
    OPEN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPEN_EPOCH_REPLY_FIELD_NUMBER: _ClassVar[int]
    METADATA_UPDATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_STATUS_FIELD_NUMBER: _ClassVar[int]
    BACKFILL_FIELD_NUMBER: _ClassVar[int]
    BACKFILL_REPLY_FIELD_NUMBER: _ClassVar[int]
    CHAIN_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    NODE_ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    NODE_ANNOUNCE_REPLY_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_REPLY_FIELD_NUMBER: _ClassVar[int]
    GROUP_HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GROUP_HEARTBEAT_REPLY_FIELD_NUMBER: _ClassVar[int]
    GROUP_DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    GROUP_DESCRIBE_REPLY_FIELD_NUMBER: _ClassVar[int]
    GROUP_LIST_FIELD_NUMBER: _ClassVar[int]
    GROUP_LIST_REPLY_FIELD_NUMBER: _ClassVar[int]
    GROUP_DELETE_FIELD_NUMBER: _ClassVar[int]
    GROUP_DELETE_REPLY_FIELD_NUMBER: _ClassVar[int]
    SECURITY_CHANGE_FIELD_NUMBER: _ClassVar[int]
    SECURITY_CHANGE_REPLY_FIELD_NUMBER: _ClassVar[int]
    SECURITY_LIST_FIELD_NUMBER: _ClassVar[int]
    SECURITY_LIST_REPLY_FIELD_NUMBER: _ClassVar[int]
    ACCESS_TEST_FIELD_NUMBER: _ClassVar[int]
    ACCESS_TEST_REPLY_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_CHANGE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_CHANGE_REPLY_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_REPLY_FIELD_NUMBER: _ClassVar[int]
    HELLO_CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    IDENTIFY_FIELD_NUMBER: _ClassVar[int]
    IDENTIFY_REPLY_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ON_BEHALF_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_MS_FIELD_NUMBER: _ClassVar[int]
    CALLER_THROTTLE_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: Error
    hello: Hello
    hello_reply: HelloReply
    metadata: Metadata
    metadata_reply: MetadataReply
    publish: Publish
    publish_reply: PublishReply
    fetch: Fetch
    fetch_reply: FetchReply
    list_offsets: ListOffsets
    list_offsets_reply: ListOffsetsReply
    subscribe: Subscribe
    subscribe_reply: SubscribeReply
    message_event: MessageEvent
    credit: Credit
    unsubscribe: Unsubscribe
    unsubscribe_reply: UnsubscribeReply
    subscription_ended: SubscriptionEnded
    commit: Commit
    commit_reply: CommitReply
    committed: Committed
    committed_reply: CommittedReply
    topic_create: TopicCreate
    topic_describe: TopicDescribe
    topic_list: TopicList
    topic_alter: TopicAlter
    topic_delete: TopicDelete
    topic_reply: TopicReply
    cluster_status: ClusterStatus
    cluster_status_reply: ClusterStatusReply
    cluster_change: ClusterChange
    cluster_change_reply: ClusterChangeReply
    delete_records: DeleteRecords
    delete_records_reply: DeleteRecordsReply
    compact: Compact
    compact_reply: CompactReply
    producer_begin: ProducerBegin
    producer_begin_reply: ProducerBeginReply
    peer_hello: PeerHello
    peer_hello_reply: PeerHelloReply
    peer_proof: PeerProof
    peer_welcome: PeerWelcome
    append_batch: AppendBatches
    replication_ack: ReplicationAcks
    pre_vote: PreVotes
    pre_vote_reply: PreVoteReplies
    seal: Seals
    seal_reply: SealReplies
    open_epoch: OpenEpochs
    open_epoch_reply: OpenEpochReplies
    metadata_update: MetadataUpdates
    epoch_status: EpochStatuses
    backfill: Backfills
    backfill_reply: BackfillReply
    chain_digests: ChainDigests
    node_announce: NodeAnnounce
    node_announce_reply: NodeAnnounceReply
    incarnations: Incarnations
    incarnations_reply: IncarnationsReply
    group_heartbeat: GroupHeartbeat
    group_heartbeat_reply: GroupHeartbeatReply
    group_describe: GroupDescribe
    group_describe_reply: GroupDescribeReply
    group_list: GroupList
    group_list_reply: GroupListReply
    group_delete: GroupDelete
    group_delete_reply: GroupDeleteReply
    security_change: SecurityChange
    security_change_reply: SecurityChangeReply
    security_list: SecurityList
    security_list_reply: SecurityListReply
    access_test: AccessTest
    access_test_reply: AccessTestReply
    schema_change: SchemaChange
    schema_change_reply: SchemaChangeReply
    schemas: Schemas
    schemas_reply: SchemasReply
    hello_challenge: HelloChallenge
    identify: Identify
    identify_reply: IdentifyReply
    caller: Caller
    on_behalf: bytes
    throttle_ms: int
    caller_throttle_ms: int
    trace_contexts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., hello_reply: _Optional[_Union[HelloReply, _Mapping]] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., metadata_reply: _Optional[_Union[MetadataReply, _Mapping]] = ..., publish: _Optional[_Union[Publish, _Mapping]] = ..., publish_reply: _Optional[_Union[PublishReply, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., fetch_reply: _Optional[_Union[FetchReply, _Mapping]] = ..., list_offsets: _Optional[_Union[ListOffsets, _Mapping]] = ..., list_offsets_reply: _Optional[_Union[ListOffsetsReply, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., subscribe_reply: _Optional[_Union[SubscribeReply, _Mapping]] = ..., message_event: _Optional[_Union[MessageEvent, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., unsubscribe: _Optional[_Union[Unsubscribe, _Mapping]] = ..., unsubscribe_reply: _Optional[_Union[UnsubscribeReply, _Mapping]] = ..., subscription_ended: _Optional[_Union[SubscriptionEnded, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., commit_reply: _Optional[_Union[CommitReply, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., committed_reply: _Optional[_Union[CommittedReply, _Mapping]] = ..., topic_create: _Optional[_Union[TopicCreate, _Mapping]] = ..., topic_describe: _Optional[_Union[TopicDescribe, _Mapping]] = ..., topic_list: _Optional[_Union[TopicList, _Mapping]] = ..., topic_alter: _Optional[_Union[TopicAlter, _Mapping]] = ..., topic_delete: _Optional[_Union[TopicDelete, _Mapping]] = ..., topic_reply: _Optional[_Union[TopicReply, _Mapping]] = ..., cluster_status: _Optional[_Union[ClusterStatus, _Mapping]] = ..., cluster_status_reply: _Optional[_Union[ClusterStatusReply, _Mapping]] = ..., cluster_change: _Optional[_Union[ClusterChange, _Mapping]] = ..., cluster_change_reply: _Optional[_Union[ClusterChangeReply, _Mapping]] = ..., delete_records: _Optional[_Union[DeleteRecords, _Mapping]] = ..., delete_records_reply: _Optional[_Union[DeleteRecordsReply, _Mapping]] = ..., compact: _Optional[_Union[Compact, _Mapping]] = ..., compact_reply: _Optional[_Union[CompactReply, _Mapping]] = ..., producer_begin: _Optional[_Union[ProducerBegin, _Mapping]] = ..., producer_begin_reply: _Optional[_Union[ProducerBeginReply, _Mapping]] = ..., peer_hello: _Optional[_Union[PeerHello, _Mapping]] = ..., peer_hello_reply: _Optional[_Union[PeerHelloReply, _Mapping]] = ..., peer_proof: _Optional[_Union[PeerProof, _Mapping]] = ..., peer_welcome: _Optional[_Union[PeerWelcome, _Mapping]] = ..., append_batch: _Optional[_Union[AppendBatches, _Mapping]] = ..., replication_ack: _Optional[_Union[ReplicationAcks, _Mapping]] = ..., pre_vote: _Optional[_Union[PreVotes, _Mapping]] = ..., pre_vote_reply: _Optional[_Union[PreVoteReplies, _Mapping]] = ..., seal: _Optional[_Union[Seals, _Mapping]] = ..., seal_reply: _Optional[_Union[SealReplies, _Mapping]] = ..., open_epoch: _Optional[_Union[OpenEpochs, _Mapping]] = ..., open_epoch_reply: _Optional[_Union[OpenEpochReplies, _Mapping]] = ..., metadata_update: _Optional[_Union[MetadataUpdates, _Mapping]] = ..., epoch_status: _Optional[_Union[EpochStatuses, _Mapping]] = ..., backfill: _Optional[_Union[Backfills, _Mapping]] = ..., backfill_reply: _Optional[_Union[BackfillReply, _Mapping]] = ..., chain_digests: _Optional[_Union[ChainDigests, _Mapping]] = ..., node_announce: _Optional[_Union[NodeAnnounce, _Mapping]] = ..., node_announce_reply: _Optional[_Union[NodeAnnounceReply, _Mapping]] = ..., incarnations: _Optional[_Union[Incarnations, _Mapping]] = ..., incarnations_reply: _Optional[_Union[IncarnationsReply, _Mapping]] = ..., group_heartbeat: _Optional[_Union[GroupHeartbeat, _Mapping]] = ..., group_heartbeat_reply: _Optional[_Union[GroupHeartbeatReply, _Mapping]] = ..., group_describe: _Optional[_Union[GroupDescribe, _Mapping]] = ..., group_describe_reply: _Optional[_Union[GroupDescribeReply, _Mapping]] = ..., group_list: _Optional[_Union[GroupList, _Mapping]] = ..., group_list_reply: _Optional[_Union[GroupListReply, _Mapping]] = ..., group_delete: _Optional[_Union[GroupDelete, _Mapping]] = ..., group_delete_reply: _Optional[_Union[GroupDeleteReply, _Mapping]] = ..., security_change: _Optional[_Union[SecurityChange, _Mapping]] = ..., security_change_reply: _Optional[_Union[SecurityChangeReply, _Mapping]] = ..., security_list: _Optional[_Union[SecurityList, _Mapping]] = ..., security_list_reply: _Optional[_Union[SecurityListReply, _Mapping]] = ..., access_test: _Optional[_Union[AccessTest, _Mapping]] = ..., access_test_reply: _Optional[_Union[AccessTestReply, _Mapping]] = ..., schema_change: _Optional[_Union[SchemaChange, _Mapping]] = ..., schema_change_reply: _Optional[_Union[SchemaChangeReply, _Mapping]] = ..., schemas: _Optional[_Union[Schemas, _Mapping]] = ..., schemas_reply: _Optional[_Union[SchemasReply, _Mapping]] = ..., hello_challenge: _Optional[_Union[HelloChallenge, _Mapping]] = ..., identify: _Optional[_Union[Identify, _Mapping]] = ..., identify_reply: _Optional[_Union[IdentifyReply, _Mapping]] = ..., caller: _Optional[_Union[Caller, _Mapping]] = ..., on_behalf: _Optional[bytes] = ..., throttle_ms: _Optional[int] = ..., caller_throttle_ms: _Optional[int] = ..., trace_contexts: _Optional[_Iterable[str]] = ...) -> None: ...

class Caller(_message.Message):
    __slots__ = ("principal", "roles", "identity", "expires_us")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_US_FIELD_NUMBER: _ClassVar[int]
    principal: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    identity: str
    expires_us: int
    def __init__(self, principal: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., identity: _Optional[str] = ..., expires_us: _Optional[int] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("caller", "holder", "ends_us")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ENDS_US_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    holder: str
    ends_us: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., holder: _Optional[str] = ..., ends_us: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "retriable", "definite", "retry_after_ms", "log_start_offset", "high_watermark", "epoch", "topic_id")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    DEFINITE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    retriable: bool
    definite: bool
    retry_after_ms: int
    log_start_offset: int
    high_watermark: int
    epoch: int
    topic_id: bytes
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., retriable: _Optional[bool] = ..., definite: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., epoch: _Optional[int] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "client_id", "software", "features", "credentials")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    version: int
    client_id: str
    software: str
    features: _containers.RepeatedScalarFieldContainer[str]
    credentials: Credentials
    def __init__(self, version: _Optional[int] = ..., client_id: _Optional[str] = ..., software: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., credentials: _Optional[_Union[Credentials, _Mapping]] = ...) -> None: ...

class Credentials(_message.Message):
    __slots__ = ("api_key", "token", "scram")
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SCRAM_FIELD_NUMBER: _ClassVar[int]
    api_key: str
    token: str
    scram: str
    def __init__(self, api_key: _Optional[str] = ..., token: _Optional[str] = ..., scram: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("version", "node_id", "cluster_id", "incarnation", "software", "features", "frame_bytes_max", "batch_bytes_max", "principal", "expires_us", "scram", "produce_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_US_FIELD_NUMBER: _ClassVar[int]
    SCRAM_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    node_id: str
    cluster_id: bytes
    incarnation: int
    software: str
    features: _containers.RepeatedScalarFieldContainer[str]
    frame_bytes_max: int
    batch_bytes_max: int
    principal: str
    expires_us: int
    scram: str
    produce_bytes: int
    def __init__(self, version: _Optional[int] = ..., node_id: _Optional[str] = ..., cluster_id: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., software: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., frame_bytes_max: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ..., principal: _Optional[str] = ..., expires_us: _Optional[int] = ..., scram: _Optional[str] = ..., produce_bytes: _Optional[int] = ...) -> None: ...

class HelloChallenge(_message.Message):
    __slots__ = ("scram",)
    SCRAM_FIELD_NUMBER: _ClassVar[int]
    scram: str
    def __init__(self, scram: _Optional[str] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("topics", "wait_ms", "known", "cursor", "confirmed")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    wait_ms: int
    known: _containers.RepeatedCompositeFieldContainer[KnownEpochs]
    cursor: TopicCursor
    confirmed: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., wait_ms: _Optional[int] = ..., known: _Optional[_Iterable[_Union[KnownEpochs, _Mapping]]] = ..., cursor: _Optional[_Union[TopicCursor, _Mapping]] = ..., confirmed: _Optional[bool] = ...) -> None: ...

class TopicCursor(_message.Message):
    __slots__ = ("topic", "topic_id", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partition: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class KnownEpochs(_message.Message):
    __slots__ = ("topic_id", "news_from")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NEWS_FROM_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    news_from: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[bytes] = ..., news_from: _Optional[_Iterable[int]] = ...) -> None: ...

class MetadataReply(_message.Message):
    __slots__ = ("cluster_id", "nodes", "topics", "next", "unconfirmed")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    next: TopicCursor
    unconfirmed: bool
    def __init__(self, cluster_id: _Optional[bytes] = ..., nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., next: _Optional[_Union[TopicCursor, _Mapping]] = ..., unconfirmed: _Optional[bool] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node_id", "host", "port", "zone", "incarnation", "alive")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    host: str
    port: int
    zone: str
    incarnation: int
    alive: bool
    def __init__(self, node_id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., zone: _Optional[str] = ..., incarnation: _Optional[int] = ..., alive: _Optional[bool] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("name", "topic_id", "config", "partitions", "error", "serial", "schema_number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    config: TopicConfig
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionInfo]
    error: Error
    serial: int
    schema_number: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., config: _Optional[_Union[TopicConfig, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionInfo, _Mapping]]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., serial: _Optional[int] = ..., schema_number: _Optional[int] = ...) -> None: ...

class PartitionInfo(_message.Message):
    __slots__ = ("partition", "owner", "epoch", "placement", "log_start_offset", "high_watermark", "size_bytes", "state", "replicas", "missing_epochs", "missing_records", "copy_fault", "oldest_append_us", "newest_append_us", "next_deletion", "unindexed_bytes", "stored", "unapplied")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MISSING_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MISSING_RECORDS_FIELD_NUMBER: _ClassVar[int]
    COPY_FAULT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_APPEND_US_FIELD_NUMBER: _ClassVar[int]
    NEWEST_APPEND_US_FIELD_NUMBER: _ClassVar[int]
    NEXT_DELETION_FIELD_NUMBER: _ClassVar[int]
    UNINDEXED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    UNAPPLIED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    owner: str
    epoch: int
    placement: _containers.RepeatedScalarFieldContainer[str]
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    state: str
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaInfo]
    missing_epochs: int
    missing_records: int
    copy_fault: str
    oldest_append_us: int
    newest_append_us: int
    next_deletion: NextDeletion
    unindexed_bytes: int
    stored: _containers.RepeatedCompositeFieldContainer[StoredEpochs]
    unapplied: str
    def __init__(self, partition: _Optional[int] = ..., owner: _Optional[str] = ..., epoch: _Optional[int] = ..., placement: _Optional[_Iterable[str]] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., size_bytes: _Optional[int] = ..., state: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[ReplicaInfo, _Mapping]]] = ..., missing_epochs: _Optional[int] = ..., missing_records: _Optional[int] = ..., copy_fault: _Optional[str] = ..., oldest_append_us: _Optional[int] = ..., newest_append_us: _Optional[int] = ..., next_deletion: _Optional[_Union[NextDeletion, _Mapping]] = ..., unindexed_bytes: _Optional[int] = ..., stored: _Optional[_Iterable[_Union[StoredEpochs, _Mapping]]] = ..., unapplied: _Optional[str] = ...) -> None: ...

class StoredEpochs(_message.Message):
    __slots__ = ("first", "last", "engine")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    engine: str
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., engine: _Optional[str] = ...) -> None: ...

class NextDeletion(_message.Message):
    __slots__ = ("below", "size_bytes", "at_us", "bytes_more", "bounded")
    BELOW_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    BYTES_MORE_FIELD_NUMBER: _ClassVar[int]
    BOUNDED_FIELD_NUMBER: _ClassVar[int]
    below: int
    size_bytes: int
    at_us: int
    bytes_more: int
    bounded: bool
    def __init__(self, below: _Optional[int] = ..., size_bytes: _Optional[int] = ..., at_us: _Optional[int] = ..., bytes_more: _Optional[int] = ..., bounded: _Optional[bool] = ...) -> None: ...

class ReplicaInfo(_message.Message):
    __slots__ = ("node_id", "held_offset", "lag", "streaming", "latency_us", "missing_epochs", "missing_records", "copy_fault")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    MISSING_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MISSING_RECORDS_FIELD_NUMBER: _ClassVar[int]
    COPY_FAULT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    held_offset: int
    lag: int
    streaming: bool
    latency_us: int
    missing_epochs: int
    missing_records: int
    copy_fault: str
    def __init__(self, node_id: _Optional[str] = ..., held_offset: _Optional[int] = ..., lag: _Optional[int] = ..., streaming: _Optional[bool] = ..., latency_us: _Optional[int] = ..., missing_epochs: _Optional[int] = ..., missing_records: _Optional[int] = ..., copy_fault: _Optional[str] = ...) -> None: ...

class TopicConfig(_message.Message):
    __slots__ = ("partitions", "flush", "flush_interval_ms", "retention_bytes", "segment_bytes", "replication_factor", "ack_quorum", "engine", "retention_ms", "cleanup", "compaction_lag_ms", "tombstone_retention_ms", "dirty_percent", "index_key", "index_tag", "hold", "deduplicate_s", "deduplicate_records", "file_model", "typed", "schema_floor")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    FLUSH_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    DIRTY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    INDEX_KEY_FIELD_NUMBER: _ClassVar[int]
    INDEX_TAG_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATE_S_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    FILE_MODEL_FIELD_NUMBER: _ClassVar[int]
    TYPED_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FLOOR_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    flush: Flush
    flush_interval_ms: int
    retention_bytes: int
    segment_bytes: int
    replication_factor: int
    ack_quorum: int
    engine: str
    retention_ms: int
    cleanup: Cleanup
    compaction_lag_ms: int
    tombstone_retention_ms: int
    dirty_percent: int
    index_key: bool
    index_tag: bool
    hold: bool
    deduplicate_s: int
    deduplicate_records: int
    file_model: FileModel
    typed: bool
    schema_floor: int
    def __init__(self, partitions: _Optional[int] = ..., flush: _Optional[_Union[Flush, str]] = ..., flush_interval_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., replication_factor: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., engine: _Optional[str] = ..., retention_ms: _Optional[int] = ..., cleanup: _Optional[_Union[Cleanup, str]] = ..., compaction_lag_ms: _Optional[int] = ..., tombstone_retention_ms: _Optional[int] = ..., dirty_percent: _Optional[int] = ..., index_key: _Optional[bool] = ..., index_tag: _Optional[bool] = ..., hold: _Optional[bool] = ..., deduplicate_s: _Optional[int] = ..., deduplicate_records: _Optional[int] = ..., file_model: _Optional[_Union[FileModel, str]] = ..., typed: _Optional[bool] = ..., schema_floor: _Optional[int] = ...) -> None: ...

class Publish(_message.Message):
    __slots__ = ("acks", "timeout_ms", "entries", "forwarded")
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    acks: Acks
    timeout_ms: int
    entries: _containers.RepeatedCompositeFieldContainer[PublishEntry]
    forwarded: bool
    def __init__(self, acks: _Optional[_Union[Acks, str]] = ..., timeout_ms: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[PublishEntry, _Mapping]]] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class PublishEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "length")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    length: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PublishResult]
    def __init__(self, results: _Optional[_Iterable[_Union[PublishResult, _Mapping]]] = ...) -> None: ...

class PublishResult(_message.Message):
    __slots__ = ("error", "base_offset", "epoch", "append_timestamp_us", "duplicate", "duplicates", "dropped")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    error: Error
    base_offset: int
    epoch: int
    append_timestamp_us: int
    duplicate: bool
    duplicates: int
    dropped: bytes
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., base_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., append_timestamp_us: _Optional[int] = ..., duplicate: _Optional[bool] = ..., duplicates: _Optional[int] = ..., dropped: _Optional[bytes] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("entries", "min_bytes", "max_bytes", "wait_ms")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[FetchEntry]
    min_bytes: int
    max_bytes: int
    wait_ms: int
    def __init__(self, entries: _Optional[_Iterable[_Union[FetchEntry, _Mapping]]] = ..., min_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class FetchEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "offset", "max_bytes", "filter", "projection", "newest")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    offset: int
    max_bytes: int
    filter: RecordFilter
    projection: Projection
    newest: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., filter: _Optional[_Union[RecordFilter, _Mapping]] = ..., projection: _Optional[_Union[Projection, _Mapping]] = ..., newest: _Optional[bool] = ...) -> None: ...

class Projection(_message.Message):
    __slots__ = ("columns", "from_us", "until_us", "end_offset", "fields")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FROM_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    columns: int
    from_us: int
    until_us: int
    end_offset: int
    fields: FieldSelection
    def __init__(self, columns: _Optional[int] = ..., from_us: _Optional[int] = ..., until_us: _Optional[int] = ..., end_offset: _Optional[int] = ..., fields: _Optional[_Union[FieldSelection, _Mapping]] = ...) -> None: ...

class FieldSelection(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RecordFilter(_message.Message):
    __slots__ = ("key", "tag", "where")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    tag: str
    where: _filter_pb2.RowFilter
    def __init__(self, key: _Optional[bytes] = ..., tag: _Optional[str] = ..., where: _Optional[_Union[_filter_pb2.RowFilter, _Mapping]] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[FetchResult]
    def __init__(self, results: _Optional[_Iterable[_Union[FetchResult, _Mapping]]] = ...) -> None: ...

class FetchResult(_message.Message):
    __slots__ = ("error", "length", "log_start_offset", "high_watermark", "epoch", "next_offset", "searched")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEARCHED_FIELD_NUMBER: _ClassVar[int]
    error: Error
    length: int
    log_start_offset: int
    high_watermark: int
    epoch: int
    next_offset: int
    searched: bool
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., length: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., epoch: _Optional[int] = ..., next_offset: _Optional[int] = ..., searched: _Optional[bool] = ...) -> None: ...

class ListOffsets(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ListOffsetsEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ListOffsetsEntry, _Mapping]]] = ...) -> None: ...

class ListOffsetsEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "earliest", "latest", "timestamp_us", "latest_of_key")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    LATEST_OF_KEY_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    earliest: bool
    latest: bool
    timestamp_us: int
    latest_of_key: bytes
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_us: _Optional[int] = ..., latest_of_key: _Optional[bytes] = ...) -> None: ...

class ListOffsetsReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ListOffsetsResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ListOffsetsResult, _Mapping]]] = ...) -> None: ...

class ListOffsetsResult(_message.Message):
    __slots__ = ("error", "offset", "found", "timestamp_us", "log_start_offset", "high_watermark", "epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: Error
    offset: int
    found: bool
    timestamp_us: int
    log_start_offset: int
    high_watermark: int
    epoch: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., offset: _Optional[int] = ..., found: _Optional[bool] = ..., timestamp_us: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class DeleteRecords(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DeleteRecordsEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[DeleteRecordsEntry, _Mapping]]] = ...) -> None: ...

class DeleteRecordsEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "offset", "timestamp_us")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    offset: int
    timestamp_us: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class DeleteRecordsReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DeleteRecordsResult]
    def __init__(self, results: _Optional[_Iterable[_Union[DeleteRecordsResult, _Mapping]]] = ...) -> None: ...

class DeleteRecordsResult(_message.Message):
    __slots__ = ("error", "log_start_offset")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    error: Error
    log_start_offset: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., log_start_offset: _Optional[int] = ...) -> None: ...

class Compact(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[CompactEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[CompactEntry, _Mapping]]] = ...) -> None: ...

class CompactEntry(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class CompactReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CompactResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CompactResult, _Mapping]]] = ...) -> None: ...

class CompactResult(_message.Message):
    __slots__ = ("error", "below", "size_bytes")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    error: Error
    below: int
    size_bytes: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., below: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ProducerBegin(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ProducerBeginEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ProducerBeginEntry, _Mapping]]] = ...) -> None: ...

class ProducerBeginEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "producer_id", "producer_epoch", "base_sequence")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., base_sequence: _Optional[int] = ...) -> None: ...

class ProducerBeginReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ProducerBeginResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ProducerBeginResult, _Mapping]]] = ...) -> None: ...

class ProducerBeginResult(_message.Message):
    __slots__ = ("error", "producer_epoch", "repeated")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    error: Error
    producer_epoch: int
    repeated: bool
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., producer_epoch: _Optional[int] = ..., repeated: _Optional[bool] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("subscription_id", "entries", "credit_records", "credit_bytes")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_RECORDS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    entries: _containers.RepeatedCompositeFieldContainer[SubscribeEntry]
    credit_records: int
    credit_bytes: int
    def __init__(self, subscription_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[SubscribeEntry, _Mapping]]] = ..., credit_records: _Optional[int] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class SubscribeEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "offset", "filter", "record_epoch", "projection")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    RECORD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    offset: int
    filter: RecordFilter
    record_epoch: int
    projection: Projection
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., filter: _Optional[_Union[RecordFilter, _Mapping]] = ..., record_epoch: _Optional[int] = ..., projection: _Optional[_Union[Projection, _Mapping]] = ...) -> None: ...

class SubscribeReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SubscribeResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SubscribeResult, _Mapping]]] = ...) -> None: ...

class SubscribeResult(_message.Message):
    __slots__ = ("error", "log_start_offset", "high_watermark", "epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: Error
    log_start_offset: int
    high_watermark: int
    epoch: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class MessageEvent(_message.Message):
    __slots__ = ("subscription_id", "topic_id", "partition", "record_count", "high_watermark", "next_offset")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    topic_id: bytes
    partition: int
    record_count: int
    high_watermark: int
    next_offset: int
    def __init__(self, subscription_id: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., record_count: _Optional[int] = ..., high_watermark: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("subscription_id", "records", "bytes")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    records: int
    bytes: int
    def __init__(self, subscription_id: _Optional[int] = ..., records: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Unsubscribe(_message.Message):
    __slots__ = ("subscription_id",)
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    def __init__(self, subscription_id: _Optional[int] = ...) -> None: ...

class UnsubscribeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubscriptionEnded(_message.Message):
    __slots__ = ("subscription_id", "topic_id", "partition", "error")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    subscription_id: int
    topic_id: bytes
    partition: int
    error: Error
    def __init__(self, subscription_id: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("group", "reset", "entries", "member_id", "generation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    reset: bool
    entries: _containers.RepeatedCompositeFieldContainer[CommitEntry]
    member_id: str
    generation: int
    def __init__(self, group: _Optional[str] = ..., reset: _Optional[bool] = ..., entries: _Optional[_Iterable[_Union[CommitEntry, _Mapping]]] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class CommitEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "next_offset", "note", "epoch", "record_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    next_offset: int
    note: str
    epoch: int
    record_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., note: _Optional[str] = ..., epoch: _Optional[int] = ..., record_epoch: _Optional[int] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("results", "forwarded")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommittedResult]
    forwarded: bool
    def __init__(self, results: _Optional[_Iterable[_Union[CommittedResult, _Mapping]]] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("group", "entries", "after", "topic_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    entries: _containers.RepeatedCompositeFieldContainer[CommittedEntry]
    after: CommittedEntry
    topic_id: bytes
    def __init__(self, group: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[CommittedEntry, _Mapping]]] = ..., after: _Optional[_Union[CommittedEntry, _Mapping]] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class CommittedEntry(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class CommittedReply(_message.Message):
    __slots__ = ("results", "last", "forwarded")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommittedResult]
    last: CommittedEntry
    forwarded: bool
    def __init__(self, results: _Optional[_Iterable[_Union[CommittedResult, _Mapping]]] = ..., last: _Optional[_Union[CommittedEntry, _Mapping]] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class CommittedResult(_message.Message):
    __slots__ = ("error", "topic_id", "partition", "found", "next_offset", "note", "commit_timestamp_us", "topic", "epoch", "record_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: Error
    topic_id: bytes
    partition: int
    found: bool
    next_offset: int
    note: str
    commit_timestamp_us: int
    topic: str
    epoch: int
    record_epoch: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., found: _Optional[bool] = ..., next_offset: _Optional[int] = ..., note: _Optional[str] = ..., commit_timestamp_us: _Optional[int] = ..., topic: _Optional[str] = ..., epoch: _Optional[int] = ..., record_epoch: _Optional[int] = ...) -> None: ...

class GroupWish(_message.Message):
    __slots__ = ("topics", "pattern", "assignor", "instance_id", "session_timeout_ms", "client_id", "host", "born_us", "takes_over_at_once")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BORN_US_FIELD_NUMBER: _ClassVar[int]
    TAKES_OVER_AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    pattern: str
    assignor: Assignor
    instance_id: str
    session_timeout_ms: int
    client_id: str
    host: str
    born_us: int
    takes_over_at_once: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., pattern: _Optional[str] = ..., assignor: _Optional[_Union[Assignor, str]] = ..., instance_id: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., client_id: _Optional[str] = ..., host: _Optional[str] = ..., born_us: _Optional[int] = ..., takes_over_at_once: _Optional[bool] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic_id", "partitions", "generations", "topic")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    topic: str
    def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., topic: _Optional[str] = ...) -> None: ...

class GroupHeartbeat(_message.Message):
    __slots__ = ("group", "member_id", "join", "leave", "seen_revision", "held", "wait_ms", "loads", "stopped", "ended_member_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    SEEN_REVISION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    ENDED_MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    join: GroupWish
    leave: bool
    seen_revision: int
    held: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    wait_ms: int
    loads: _containers.RepeatedCompositeFieldContainer[PartitionLoad]
    stopped: bool
    ended_member_id: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., join: _Optional[_Union[GroupWish, _Mapping]] = ..., leave: _Optional[bool] = ..., seen_revision: _Optional[int] = ..., held: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., wait_ms: _Optional[int] = ..., loads: _Optional[_Iterable[_Union[PartitionLoad, _Mapping]]] = ..., stopped: _Optional[bool] = ..., ended_member_id: _Optional[str] = ...) -> None: ...

class PartitionLoad(_message.Message):
    __slots__ = ("topic_id", "partition", "bytes_per_s")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    bytes_per_s: float
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., bytes_per_s: _Optional[float] = ...) -> None: ...

class GroupHeartbeatReply(_message.Message):
    __slots__ = ("revision", "generation", "unchanged", "assigned", "wants_loads")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    WANTS_LOADS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    generation: int
    unchanged: bool
    assigned: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    wants_loads: bool
    def __init__(self, revision: _Optional[int] = ..., generation: _Optional[int] = ..., unchanged: _Optional[bool] = ..., assigned: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., wants_loads: _Optional[bool] = ...) -> None: ...

class GroupDescribe(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupDescribeReply(_message.Message):
    __slots__ = ("summary", "members", "topics", "shortened")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SHORTENED_FIELD_NUMBER: _ClassVar[int]
    summary: GroupSummary
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    topics: _containers.RepeatedCompositeFieldContainer[TopicName]
    shortened: bool
    def __init__(self, summary: _Optional[_Union[GroupSummary, _Mapping]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicName, _Mapping]]] = ..., shortened: _Optional[bool] = ...) -> None: ...

class TopicName(_message.Message):
    __slots__ = ("topic_id", "name")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    name: str
    def __init__(self, topic_id: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class GroupList(_message.Message):
    __slots__ = ("after", "partition", "made_by")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FIELD_NUMBER: _ClassVar[int]
    after: str
    partition: int
    made_by: str
    def __init__(self, after: _Optional[str] = ..., partition: _Optional[int] = ..., made_by: _Optional[str] = ...) -> None: ...

class GroupListReply(_message.Message):
    __slots__ = ("groups", "more", "made")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    more: bool
    made: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ..., more: _Optional[bool] = ..., made: _Optional[int] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group", "generation", "members", "positions", "assignor", "state", "coordinator", "last_commit_us", "creator")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_US_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    group: str
    generation: int
    members: int
    positions: int
    assignor: Assignor
    state: str
    coordinator: str
    last_commit_us: int
    creator: str
    def __init__(self, group: _Optional[str] = ..., generation: _Optional[int] = ..., members: _Optional[int] = ..., positions: _Optional[int] = ..., assignor: _Optional[_Union[Assignor, str]] = ..., state: _Optional[str] = ..., coordinator: _Optional[str] = ..., last_commit_us: _Optional[int] = ..., creator: _Optional[str] = ...) -> None: ...

class GroupDelete(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupDeleteReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TopicCreate(_message.Message):
    __slots__ = ("name", "config", "schema")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: TopicConfig
    schema: _schema_pb2.TopicSchema
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Union[TopicConfig, _Mapping]] = ..., schema: _Optional[_Union[_schema_pb2.TopicSchema, _Mapping]] = ...) -> None: ...

class TopicDescribe(_message.Message):
    __slots__ = ("name", "cursor", "confirmed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    name: str
    cursor: TopicCursor
    confirmed: bool
    def __init__(self, name: _Optional[str] = ..., cursor: _Optional[_Union[TopicCursor, _Mapping]] = ..., confirmed: _Optional[bool] = ...) -> None: ...

class TopicList(_message.Message):
    __slots__ = ("internal", "cursor", "limit", "brief")
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    internal: bool
    cursor: TopicCursor
    limit: int
    brief: bool
    def __init__(self, internal: _Optional[bool] = ..., cursor: _Optional[_Union[TopicCursor, _Mapping]] = ..., limit: _Optional[int] = ..., brief: _Optional[bool] = ...) -> None: ...

class TopicAlter(_message.Message):
    __slots__ = ("name", "partitions", "flush", "flush_interval_ms", "retention_bytes", "segment_bytes", "retention_ms", "cleanup", "compaction_lag_ms", "tombstone_retention_ms", "dirty_percent", "index_key", "index_tag", "hold", "replication_factor", "deduplicate_s", "deduplicate_records", "engine", "file_model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    FLUSH_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    DIRTY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    INDEX_KEY_FIELD_NUMBER: _ClassVar[int]
    INDEX_TAG_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATE_S_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    FILE_MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    flush: Flush
    flush_interval_ms: int
    retention_bytes: int
    segment_bytes: int
    retention_ms: int
    cleanup: Cleanup
    compaction_lag_ms: int
    tombstone_retention_ms: int
    dirty_percent: int
    index_key: bool
    index_tag: bool
    hold: bool
    replication_factor: int
    deduplicate_s: int
    deduplicate_records: int
    engine: str
    file_model: FileModel
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., flush: _Optional[_Union[Flush, str]] = ..., flush_interval_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., retention_ms: _Optional[int] = ..., cleanup: _Optional[_Union[Cleanup, str]] = ..., compaction_lag_ms: _Optional[int] = ..., tombstone_retention_ms: _Optional[int] = ..., dirty_percent: _Optional[int] = ..., index_key: _Optional[bool] = ..., index_tag: _Optional[bool] = ..., hold: _Optional[bool] = ..., replication_factor: _Optional[int] = ..., deduplicate_s: _Optional[int] = ..., deduplicate_records: _Optional[int] = ..., engine: _Optional[str] = ..., file_model: _Optional[_Union[FileModel, str]] = ...) -> None: ...

class TopicDelete(_message.Message):
    __slots__ = ("name", "topic_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class TopicReply(_message.Message):
    __slots__ = ("topics", "next")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    next: TopicCursor
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., next: _Optional[_Union[TopicCursor, _Mapping]] = ...) -> None: ...

class SchemaChange(_message.Message):
    __slots__ = ("topic", "topic_id", "schema", "expected_number", "floor")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    schema: _schema_pb2.TopicSchema
    expected_number: int
    floor: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., schema: _Optional[_Union[_schema_pb2.TopicSchema, _Mapping]] = ..., expected_number: _Optional[int] = ..., floor: _Optional[int] = ...) -> None: ...

class SchemaChangeReply(_message.Message):
    __slots__ = ("schema", "floor")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    schema: _schema_pb2.TopicSchema
    floor: int
    def __init__(self, schema: _Optional[_Union[_schema_pb2.TopicSchema, _Mapping]] = ..., floor: _Optional[int] = ...) -> None: ...

class Schemas(_message.Message):
    __slots__ = ("topic_id", "numbers", "first_number", "confirmed")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    numbers: _containers.RepeatedScalarFieldContainer[int]
    first_number: int
    confirmed: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., numbers: _Optional[_Iterable[int]] = ..., first_number: _Optional[int] = ..., confirmed: _Optional[bool] = ...) -> None: ...

class SchemasReply(_message.Message):
    __slots__ = ("schemas", "next_number", "newest_number", "floor", "unconfirmed")
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    NEXT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    NEWEST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    schemas: _containers.RepeatedCompositeFieldContainer[_schema_pb2.TopicSchema]
    next_number: int
    newest_number: int
    floor: int
    unconfirmed: bool
    def __init__(self, schemas: _Optional[_Iterable[_Union[_schema_pb2.TopicSchema, _Mapping]]] = ..., next_number: _Optional[int] = ..., newest_number: _Optional[int] = ..., floor: _Optional[int] = ..., unconfirmed: _Optional[bool] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("partitions", "cursor", "nodes_only", "ages", "as_is")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    NODES_ONLY_FIELD_NUMBER: _ClassVar[int]
    AGES_FIELD_NUMBER: _ClassVar[int]
    AS_IS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionName]
    cursor: TopicCursor
    nodes_only: bool
    ages: bool
    as_is: bool
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionName, _Mapping]]] = ..., cursor: _Optional[_Union[TopicCursor, _Mapping]] = ..., nodes_only: _Optional[bool] = ..., ages: _Optional[bool] = ..., as_is: _Optional[bool] = ...) -> None: ...

class PartitionName(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class ClusterStatusReply(_message.Message):
    __slots__ = ("cluster_id", "nodes", "topics", "next", "level")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    next: TopicCursor
    level: int
    def __init__(self, cluster_id: _Optional[bytes] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., next: _Optional[_Union[TopicCursor, _Mapping]] = ..., level: _Optional[int] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node", "software", "uptime_ms", "connections", "in_flight_bytes", "data_bytes", "disk_free_bytes", "state", "roles", "membership", "draining", "no_quorum", "level", "certificate_ends_us", "ca_ends_us")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    NO_QUORUM_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_ENDS_US_FIELD_NUMBER: _ClassVar[int]
    CA_ENDS_US_FIELD_NUMBER: _ClassVar[int]
    node: NodeInfo
    software: str
    uptime_ms: int
    connections: int
    in_flight_bytes: int
    data_bytes: int
    disk_free_bytes: int
    state: str
    roles: _containers.RepeatedScalarFieldContainer[NodeRole]
    membership: str
    draining: bool
    no_quorum: int
    level: int
    certificate_ends_us: int
    ca_ends_us: int
    def __init__(self, node: _Optional[_Union[NodeInfo, _Mapping]] = ..., software: _Optional[str] = ..., uptime_ms: _Optional[int] = ..., connections: _Optional[int] = ..., in_flight_bytes: _Optional[int] = ..., data_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., state: _Optional[str] = ..., roles: _Optional[_Iterable[_Union[NodeRole, str]]] = ..., membership: _Optional[str] = ..., draining: _Optional[bool] = ..., no_quorum: _Optional[int] = ..., level: _Optional[int] = ..., certificate_ends_us: _Optional[int] = ..., ca_ends_us: _Optional[int] = ...) -> None: ...

class ClusterChange(_message.Message):
    __slots__ = ("drain", "undrain", "remove", "rebalance", "unsafe_recovery", "finalize", "accept_data_loss")
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    UNDRAIN_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_FIELD_NUMBER: _ClassVar[int]
    UNSAFE_RECOVERY_FIELD_NUMBER: _ClassVar[int]
    FINALIZE_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    drain: str
    undrain: str
    remove: str
    rebalance: bool
    unsafe_recovery: UnsafeRecovery
    finalize: bool
    accept_data_loss: bool
    def __init__(self, drain: _Optional[str] = ..., undrain: _Optional[str] = ..., remove: _Optional[str] = ..., rebalance: _Optional[bool] = ..., unsafe_recovery: _Optional[_Union[UnsafeRecovery, _Mapping]] = ..., finalize: _Optional[bool] = ..., accept_data_loss: _Optional[bool] = ...) -> None: ...

class UnsafeRecovery(_message.Message):
    __slots__ = ("topic", "partition", "node_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    node_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., node_id: _Optional[str] = ...) -> None: ...

class ClusterChangeReply(_message.Message):
    __slots__ = ("moves", "end_offset", "epoch", "unsafe", "level")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNSAFE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    moves: int
    end_offset: int
    epoch: int
    unsafe: bool
    level: int
    def __init__(self, moves: _Optional[int] = ..., end_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., unsafe: _Optional[bool] = ..., level: _Optional[int] = ...) -> None: ...

class PeerHello(_message.Message):
    __slots__ = ("version", "cluster_id", "node_id", "incarnation", "bootstrap_hash", "nonce", "software")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_HASH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: bytes
    node_id: str
    incarnation: int
    bootstrap_hash: bytes
    nonce: bytes
    software: str
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., bootstrap_hash: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., software: _Optional[str] = ...) -> None: ...

class PeerHelloReply(_message.Message):
    __slots__ = ("version", "cluster_id", "node_id", "incarnation", "bootstrap_hash", "nonce", "proof")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_HASH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: bytes
    node_id: str
    incarnation: int
    bootstrap_hash: bytes
    nonce: bytes
    proof: bytes
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., bootstrap_hash: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class PeerProof(_message.Message):
    __slots__ = ("proof", "incarnations")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    incarnations: PeerIncarnations
    def __init__(self, proof: _Optional[bytes] = ..., incarnations: _Optional[_Union[PeerIncarnations, _Mapping]] = ...) -> None: ...

class PeerWelcome(_message.Message):
    __slots__ = ("frame_bytes_max", "removed", "later_incarnation", "in_use", "incarnations", "withdrawn")
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    LATER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    frame_bytes_max: int
    removed: bool
    later_incarnation: KnownIncarnation
    in_use: bool
    incarnations: PeerIncarnations
    withdrawn: bool
    def __init__(self, frame_bytes_max: _Optional[int] = ..., removed: _Optional[bool] = ..., later_incarnation: _Optional[_Union[KnownIncarnation, _Mapping]] = ..., in_use: _Optional[bool] = ..., incarnations: _Optional[_Union[PeerIncarnations, _Mapping]] = ..., withdrawn: _Optional[bool] = ...) -> None: ...

class PeerIncarnations(_message.Message):
    __slots__ = ("directory_id", "past", "forgotten_below", "tick", "known", "withdrawn")
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_BELOW_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    directory_id: bytes
    past: _containers.RepeatedCompositeFieldContainer[IncarnationTick]
    forgotten_below: int
    tick: int
    known: _containers.RepeatedCompositeFieldContainer[KnownIncarnation]
    withdrawn: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, directory_id: _Optional[bytes] = ..., past: _Optional[_Iterable[_Union[IncarnationTick, _Mapping]]] = ..., forgotten_below: _Optional[int] = ..., tick: _Optional[int] = ..., known: _Optional[_Iterable[_Union[KnownIncarnation, _Mapping]]] = ..., withdrawn: _Optional[_Iterable[int]] = ...) -> None: ...

class IncarnationTick(_message.Message):
    __slots__ = ("incarnation", "tick")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    tick: int
    def __init__(self, incarnation: _Optional[int] = ..., tick: _Optional[int] = ...) -> None: ...

class KnownIncarnation(_message.Message):
    __slots__ = ("node_id", "directory_id", "incarnation", "tick", "own", "dropped", "earlier", "withdrawn", "elsewhere")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    directory_id: bytes
    incarnation: int
    tick: int
    own: bool
    dropped: bool
    earlier: _containers.RepeatedCompositeFieldContainer[IncarnationTick]
    withdrawn: _containers.RepeatedScalarFieldContainer[int]
    elsewhere: bool
    def __init__(self, node_id: _Optional[str] = ..., directory_id: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., tick: _Optional[int] = ..., own: _Optional[bool] = ..., dropped: _Optional[bool] = ..., earlier: _Optional[_Iterable[_Union[IncarnationTick, _Mapping]]] = ..., withdrawn: _Optional[_Iterable[int]] = ..., elsewhere: _Optional[bool] = ...) -> None: ...

class Incarnations(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[KnownIncarnation]
    def __init__(self, entries: _Optional[_Iterable[_Union[KnownIncarnation, _Mapping]]] = ...) -> None: ...

class IncarnationsReply(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[KnownIncarnation]
    def __init__(self, entries: _Optional[_Iterable[_Union[KnownIncarnation, _Mapping]]] = ...) -> None: ...

class AppendBatch(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "owner", "owner_incarnation", "base_offset", "end_offset", "previous_digest", "end_digest", "commit_offset", "log_start_offset", "length", "deleting_below", "deleted_below", "acknowledged_offset")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    END_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DELETING_BELOW_FIELD_NUMBER: _ClassVar[int]
    DELETED_BELOW_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    owner: str
    owner_incarnation: int
    base_offset: int
    end_offset: int
    previous_digest: int
    end_digest: int
    commit_offset: int
    log_start_offset: int
    length: int
    deleting_below: int
    deleted_below: int
    acknowledged_offset: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., owner: _Optional[str] = ..., owner_incarnation: _Optional[int] = ..., base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., previous_digest: _Optional[int] = ..., end_digest: _Optional[int] = ..., commit_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., length: _Optional[int] = ..., deleting_below: _Optional[int] = ..., deleted_below: _Optional[int] = ..., acknowledged_offset: _Optional[int] = ...) -> None: ...

class AppendBatches(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AppendBatch]
    def __init__(self, entries: _Optional[_Iterable[_Union[AppendBatch, _Mapping]]] = ...) -> None: ...

class ReplicationAck(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "owner_incarnation", "end_offset", "end_digest", "status", "deleting_below")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DELETING_BELOW_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    owner_incarnation: int
    end_offset: int
    end_digest: int
    status: ReplicaStatus
    deleting_below: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., owner_incarnation: _Optional[int] = ..., end_offset: _Optional[int] = ..., end_digest: _Optional[int] = ..., status: _Optional[_Union[ReplicaStatus, str]] = ..., deleting_below: _Optional[int] = ...) -> None: ...

class ReplicationAcks(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ReplicationAck]
    def __init__(self, entries: _Optional[_Iterable[_Union[ReplicationAck, _Mapping]]] = ...) -> None: ...

class PreVote(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "attempt", "probe", "previous_hash")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    attempt: int
    probe: bool
    previous_hash: bytes
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., attempt: _Optional[int] = ..., probe: _Optional[bool] = ..., previous_hash: _Optional[bytes] = ...) -> None: ...

class PreVotes(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[PreVote]
    def __init__(self, entries: _Optional[_Iterable[_Union[PreVote, _Mapping]]] = ...) -> None: ...

class PreVoteReply(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "attempt", "agrees", "status", "promised")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AGREES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    attempt: int
    agrees: bool
    status: ReplicaStatus
    promised: Ballot
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., attempt: _Optional[int] = ..., agrees: _Optional[bool] = ..., status: _Optional[_Union[ReplicaStatus, str]] = ..., promised: _Optional[_Union[Ballot, _Mapping]] = ...) -> None: ...

class PreVoteReplies(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[PreVoteReply]
    def __init__(self, entries: _Optional[_Iterable[_Union[PreVoteReply, _Mapping]]] = ...) -> None: ...

class Seal(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "ballot", "previous_hash")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    ballot: Ballot
    previous_hash: bytes
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., previous_hash: _Optional[bytes] = ...) -> None: ...

class Seals(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Seal]
    def __init__(self, entries: _Optional[_Iterable[_Union[Seal, _Mapping]]] = ...) -> None: ...

class SealReply(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "ballot", "status", "promised", "end_offset", "end_digest", "accepted", "accepted_value", "short_log", "deleting_below", "ceiling")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_VALUE_FIELD_NUMBER: _ClassVar[int]
    SHORT_LOG_FIELD_NUMBER: _ClassVar[int]
    DELETING_BELOW_FIELD_NUMBER: _ClassVar[int]
    CEILING_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    ballot: Ballot
    status: ReplicaStatus
    promised: Ballot
    end_offset: int
    end_digest: int
    accepted: Ballot
    accepted_value: bytes
    short_log: bool
    deleting_below: int
    ceiling: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., status: _Optional[_Union[ReplicaStatus, str]] = ..., promised: _Optional[_Union[Ballot, _Mapping]] = ..., end_offset: _Optional[int] = ..., end_digest: _Optional[int] = ..., accepted: _Optional[_Union[Ballot, _Mapping]] = ..., accepted_value: _Optional[bytes] = ..., short_log: _Optional[bool] = ..., deleting_below: _Optional[int] = ..., ceiling: _Optional[int] = ...) -> None: ...

class SealReplies(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[SealReply]
    def __init__(self, entries: _Optional[_Iterable[_Union[SealReply, _Mapping]]] = ...) -> None: ...

class OpenEpoch(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "ballot", "value", "holders")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    ballot: Ballot
    value: bytes
    holders: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., value: _Optional[bytes] = ..., holders: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenEpochs(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[OpenEpoch]
    def __init__(self, entries: _Optional[_Iterable[_Union[OpenEpoch, _Mapping]]] = ...) -> None: ...

class OpenEpochReply(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "ballot", "status", "promised")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    ballot: Ballot
    status: ReplicaStatus
    promised: Ballot
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., status: _Optional[_Union[ReplicaStatus, str]] = ..., promised: _Optional[_Union[Ballot, _Mapping]] = ...) -> None: ...

class OpenEpochReplies(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[OpenEpochReply]
    def __init__(self, entries: _Optional[_Iterable[_Union[OpenEpochReply, _Mapping]]] = ...) -> None: ...

class MetadataUpdate(_message.Message):
    __slots__ = ("topic_id", "partition", "genesis", "first_epoch", "decisions", "deleted")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GENESIS_FIELD_NUMBER: _ClassVar[int]
    FIRST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    genesis: EpochDescriptor
    first_epoch: int
    decisions: _containers.RepeatedScalarFieldContainer[bytes]
    deleted: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., genesis: _Optional[_Union[EpochDescriptor, _Mapping]] = ..., first_epoch: _Optional[int] = ..., decisions: _Optional[_Iterable[bytes]] = ..., deleted: _Optional[bool] = ...) -> None: ...

class MetadataUpdates(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[MetadataUpdate]
    def __init__(self, entries: _Optional[_Iterable[_Union[MetadataUpdate, _Mapping]]] = ...) -> None: ...

class EpochStatus(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "previous_hash")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    previous_hash: bytes
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., previous_hash: _Optional[bytes] = ...) -> None: ...

class EpochStatuses(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[EpochStatus]
    def __init__(self, entries: _Optional[_Iterable[_Union[EpochStatus, _Mapping]]] = ...) -> None: ...

class Backfill(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "from_offset", "from_digest", "end_offset", "max_bytes", "producers", "digest_unknown", "producers_or_later")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FROM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_OR_LATER_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    from_offset: int
    from_digest: int
    end_offset: int
    max_bytes: int
    producers: bool
    digest_unknown: bool
    producers_or_later: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., from_offset: _Optional[int] = ..., from_digest: _Optional[int] = ..., end_offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., producers: _Optional[bool] = ..., digest_unknown: _Optional[bool] = ..., producers_or_later: _Optional[bool] = ...) -> None: ...

class Backfills(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Backfill]
    def __init__(self, entries: _Optional[_Iterable[_Union[Backfill, _Mapping]]] = ...) -> None: ...

class BackfillReply(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "status", "base_offset", "end_offset", "previous_digest", "end_digest", "commit_offset", "length", "source_end_offset", "producers", "append_timestamp_us", "log_start_offset", "epoch_digest", "producers_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    END_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    status: ReplicaStatus
    base_offset: int
    end_offset: int
    previous_digest: int
    end_digest: int
    commit_offset: int
    length: int
    source_end_offset: int
    producers: bytes
    append_timestamp_us: int
    log_start_offset: int
    epoch_digest: int
    producers_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., status: _Optional[_Union[ReplicaStatus, str]] = ..., base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., previous_digest: _Optional[int] = ..., end_digest: _Optional[int] = ..., commit_offset: _Optional[int] = ..., length: _Optional[int] = ..., source_end_offset: _Optional[int] = ..., producers: _Optional[bytes] = ..., append_timestamp_us: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., epoch_digest: _Optional[int] = ..., producers_epoch: _Optional[int] = ...) -> None: ...

class ChainDigest(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "previous_hash")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    previous_hash: bytes
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., previous_hash: _Optional[bytes] = ...) -> None: ...

class ChainDigests(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ChainDigest]
    def __init__(self, entries: _Optional[_Iterable[_Union[ChainDigest, _Mapping]]] = ...) -> None: ...

class NodeAnnounce(_message.Message):
    __slots__ = ("node", "is_new", "ask", "bind", "after")
    NODE_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    node: NodeRecord
    is_new: bool
    ask: bool
    bind: bool
    after: str
    def __init__(self, node: _Optional[_Union[NodeRecord, _Mapping]] = ..., is_new: _Optional[bool] = ..., ask: _Optional[bool] = ..., bind: _Optional[bool] = ..., after: _Optional[str] = ...) -> None: ...

class NodeAnnounceReply(_message.Message):
    __slots__ = ("nodes", "meta", "bound_directory_id", "last", "features_in_use")
    NODES_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    BOUND_DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FEATURES_IN_USE_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRecord]
    meta: TopicRecord
    bound_directory_id: bytes
    last: str
    features_in_use: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeRecord, _Mapping]]] = ..., meta: _Optional[_Union[TopicRecord, _Mapping]] = ..., bound_directory_id: _Optional[bytes] = ..., last: _Optional[str] = ..., features_in_use: _Optional[_Iterable[str]] = ...) -> None: ...

class TopicRecord(_message.Message):
    __slots__ = ("name", "topic_id", "config", "revision", "deleted", "first_epoch", "first_epochs", "serial", "creator", "content_key", "features")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    FIRST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    CONTENT_KEY_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    config: TopicConfig
    revision: int
    deleted: bool
    first_epoch: EpochDescriptor
    first_epochs: _containers.RepeatedCompositeFieldContainer[EpochDescriptor]
    serial: int
    creator: str
    content_key: bytes
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., config: _Optional[_Union[TopicConfig, _Mapping]] = ..., revision: _Optional[int] = ..., deleted: _Optional[bool] = ..., first_epoch: _Optional[_Union[EpochDescriptor, _Mapping]] = ..., first_epochs: _Optional[_Iterable[_Union[EpochDescriptor, _Mapping]]] = ..., serial: _Optional[int] = ..., creator: _Optional[str] = ..., content_key: _Optional[bytes] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class OffsetRecord(_message.Message):
    __slots__ = ("group", "topic_id", "partition", "next_offset", "note", "commit_timestamp_us", "revision", "epoch", "record_epoch")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic_id: bytes
    partition: int
    next_offset: int
    note: str
    commit_timestamp_us: int
    revision: int
    epoch: int
    record_epoch: int
    def __init__(self, group: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., next_offset: _Optional[int] = ..., note: _Optional[str] = ..., commit_timestamp_us: _Optional[int] = ..., revision: _Optional[int] = ..., epoch: _Optional[int] = ..., record_epoch: _Optional[int] = ...) -> None: ...

class OffsetsValue(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: GroupRecord
    def __init__(self, group: _Optional[_Union[GroupRecord, _Mapping]] = ...) -> None: ...

class GroupRecord(_message.Message):
    __slots__ = ("group", "revision", "generation", "target_revision", "assignor", "members", "deleted", "changed_us", "creator")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_REVISION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_US_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    group: str
    revision: int
    generation: int
    target_revision: int
    assignor: Assignor
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    deleted: bool
    changed_us: int
    creator: str
    def __init__(self, group: _Optional[str] = ..., revision: _Optional[int] = ..., generation: _Optional[int] = ..., target_revision: _Optional[int] = ..., assignor: _Optional[_Union[Assignor, str]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., deleted: _Optional[bool] = ..., changed_us: _Optional[int] = ..., creator: _Optional[str] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "wish", "held", "target", "replaced", "stopped")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    wish: GroupWish
    held: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    target: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    replaced: bool
    stopped: bool
    def __init__(self, member_id: _Optional[str] = ..., wish: _Optional[_Union[GroupWish, _Mapping]] = ..., held: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., target: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., replaced: _Optional[bool] = ..., stopped: _Optional[bool] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("round", "node_id", "incarnation")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    round: int
    node_id: str
    incarnation: int
    def __init__(self, round: _Optional[int] = ..., node_id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class EpochDescriptor(_message.Message):
    __slots__ = ("epoch", "owner", "owner_incarnation", "placement", "ack_quorum", "start_offset", "flush", "engine")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    owner: str
    owner_incarnation: int
    placement: _containers.RepeatedScalarFieldContainer[str]
    ack_quorum: int
    start_offset: int
    flush: Flush
    engine: str
    def __init__(self, epoch: _Optional[int] = ..., owner: _Optional[str] = ..., owner_incarnation: _Optional[int] = ..., placement: _Optional[_Iterable[str]] = ..., ack_quorum: _Optional[int] = ..., start_offset: _Optional[int] = ..., flush: _Optional[_Union[Flush, str]] = ..., engine: _Optional[str] = ...) -> None: ...

class EpochDecision(_message.Message):
    __slots__ = ("epoch", "end_offset", "end_digest", "previous_hash", "next", "unsafe", "short_logs", "compactions", "deleted_below", "lost_until")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HASH_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    UNSAFE_FIELD_NUMBER: _ClassVar[int]
    SHORT_LOGS_FIELD_NUMBER: _ClassVar[int]
    COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    DELETED_BELOW_FIELD_NUMBER: _ClassVar[int]
    LOST_UNTIL_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    end_offset: int
    end_digest: int
    previous_hash: bytes
    next: EpochDescriptor
    unsafe: bool
    short_logs: bool
    compactions: _containers.RepeatedCompositeFieldContainer[Compaction]
    deleted_below: int
    lost_until: int
    def __init__(self, epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., end_digest: _Optional[int] = ..., previous_hash: _Optional[bytes] = ..., next: _Optional[_Union[EpochDescriptor, _Mapping]] = ..., unsafe: _Optional[bool] = ..., short_logs: _Optional[bool] = ..., compactions: _Optional[_Iterable[_Union[Compaction, _Mapping]]] = ..., deleted_below: _Optional[int] = ..., lost_until: _Optional[int] = ...) -> None: ...

class Compaction(_message.Message):
    __slots__ = ("epoch", "horizon", "tombstones_below", "end_digest", "size_bytes", "floor", "decided_us")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_BELOW_FIELD_NUMBER: _ClassVar[int]
    END_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    DECIDED_US_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    horizon: int
    tombstones_below: int
    end_digest: int
    size_bytes: int
    floor: int
    decided_us: int
    def __init__(self, epoch: _Optional[int] = ..., horizon: _Optional[int] = ..., tombstones_below: _Optional[int] = ..., end_digest: _Optional[int] = ..., size_bytes: _Optional[int] = ..., floor: _Optional[int] = ..., decided_us: _Optional[int] = ...) -> None: ...

class ChainEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "genesis", "decision", "forgotten")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GENESIS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    genesis: EpochDescriptor
    decision: bytes
    forgotten: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., genesis: _Optional[_Union[EpochDescriptor, _Mapping]] = ..., decision: _Optional[bytes] = ..., forgotten: _Optional[bool] = ...) -> None: ...

class FenceEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "epoch", "descriptor", "promised", "accepted", "accepted_value", "dropped", "deleting_below", "ceiling")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_VALUE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    DELETING_BELOW_FIELD_NUMBER: _ClassVar[int]
    CEILING_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    epoch: int
    descriptor: EpochDescriptor
    promised: Ballot
    accepted: Ballot
    accepted_value: bytes
    dropped: bool
    deleting_below: int
    ceiling: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., descriptor: _Optional[_Union[EpochDescriptor, _Mapping]] = ..., promised: _Optional[_Union[Ballot, _Mapping]] = ..., accepted: _Optional[_Union[Ballot, _Mapping]] = ..., accepted_value: _Optional[bytes] = ..., dropped: _Optional[bool] = ..., deleting_below: _Optional[int] = ..., ceiling: _Optional[int] = ...) -> None: ...

class ProducerSnapshot(_message.Message):
    __slots__ = ("producers", "silent", "last_append_timestamp_us", "known_from", "keyed")
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    LAST_APPEND_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FROM_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    producers: _containers.RepeatedCompositeFieldContainer[ProducerEntry]
    silent: _containers.RepeatedCompositeFieldContainer[SilentProducers]
    last_append_timestamp_us: int
    known_from: int
    keyed: _containers.RepeatedCompositeFieldContainer[KeyedRequests]
    def __init__(self, producers: _Optional[_Iterable[_Union[ProducerEntry, _Mapping]]] = ..., silent: _Optional[_Iterable[_Union[SilentProducers, _Mapping]]] = ..., last_append_timestamp_us: _Optional[int] = ..., known_from: _Optional[int] = ..., keyed: _Optional[_Iterable[_Union[KeyedRequests, _Mapping]]] = ...) -> None: ...

class KeyedRequests(_message.Message):
    __slots__ = ("producer_ids", "columns")
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    producer_ids: bytes
    columns: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, producer_ids: _Optional[bytes] = ..., columns: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SilentProducers(_message.Message):
    __slots__ = ("producer_ids", "producer_epochs", "end_sequences")
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    END_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    producer_ids: bytes
    producer_epochs: bytes
    end_sequences: bytes
    def __init__(self, producer_ids: _Optional[bytes] = ..., producer_epochs: _Optional[bytes] = ..., end_sequences: _Optional[bytes] = ...) -> None: ...

class ProducerEntry(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "window")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    window: _containers.RepeatedCompositeFieldContainer[ProducerWindowEntry]
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., window: _Optional[_Iterable[_Union[ProducerWindowEntry, _Mapping]]] = ...) -> None: ...

class ProducerWindowEntry(_message.Message):
    __slots__ = ("base_sequence", "record_count", "base_offset", "offset_count", "epoch", "append_timestamp_us", "duplicates", "fingerprint")
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_COUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    base_sequence: int
    record_count: int
    base_offset: int
    offset_count: int
    epoch: int
    append_timestamp_us: int
    duplicates: int
    fingerprint: int
    def __init__(self, base_sequence: _Optional[int] = ..., record_count: _Optional[int] = ..., base_offset: _Optional[int] = ..., offset_count: _Optional[int] = ..., epoch: _Optional[int] = ..., append_timestamp_us: _Optional[int] = ..., duplicates: _Optional[int] = ..., fingerprint: _Optional[int] = ...) -> None: ...

class NodeRecord(_message.Message):
    __slots__ = ("node_id", "host", "port", "gossip_host", "gossip_port", "zone", "weight", "roles", "incarnation", "revision", "removed", "draining", "directory_id", "engines", "features", "software")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    GOSSIP_HOST_FIELD_NUMBER: _ClassVar[int]
    GOSSIP_PORT_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    host: str
    port: int
    gossip_host: str
    gossip_port: int
    zone: str
    weight: int
    roles: _containers.RepeatedScalarFieldContainer[NodeRole]
    incarnation: int
    revision: int
    removed: bool
    draining: bool
    directory_id: bytes
    engines: _containers.RepeatedScalarFieldContainer[str]
    features: _containers.RepeatedScalarFieldContainer[str]
    software: str
    def __init__(self, node_id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., gossip_host: _Optional[str] = ..., gossip_port: _Optional[int] = ..., zone: _Optional[str] = ..., weight: _Optional[int] = ..., roles: _Optional[_Iterable[_Union[NodeRole, str]]] = ..., incarnation: _Optional[int] = ..., revision: _Optional[int] = ..., removed: _Optional[bool] = ..., draining: _Optional[bool] = ..., directory_id: _Optional[bytes] = ..., engines: _Optional[_Iterable[str]] = ..., features: _Optional[_Iterable[str]] = ..., software: _Optional[str] = ...) -> None: ...

class MetaRecord(_message.Message):
    __slots__ = ("node", "security", "level", "schema")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    node: NodeRecord
    security: SecurityRecord
    level: ClusterLevel
    schema: SchemaRecord
    def __init__(self, node: _Optional[_Union[NodeRecord, _Mapping]] = ..., security: _Optional[_Union[SecurityRecord, _Mapping]] = ..., level: _Optional[_Union[ClusterLevel, _Mapping]] = ..., schema: _Optional[_Union[SchemaRecord, _Mapping]] = ...) -> None: ...

class SchemaRecord(_message.Message):
    __slots__ = ("topic_id", "schema", "creator", "created_us", "features")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    schema: _schema_pb2.TopicSchema
    creator: str
    created_us: int
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic_id: _Optional[bytes] = ..., schema: _Optional[_Union[_schema_pb2.TopicSchema, _Mapping]] = ..., creator: _Optional[str] = ..., created_us: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class ClusterLevel(_message.Message):
    __slots__ = ("level", "revision", "features")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    level: int
    revision: int
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, level: _Optional[int] = ..., revision: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class MetaSnapshot(_message.Message):
    __slots__ = ("applied", "meta", "records")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    applied: int
    meta: TopicRecord
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, applied: _Optional[int] = ..., meta: _Optional[_Union[TopicRecord, _Mapping]] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AccessRule(_message.Message):
    __slots__ = ("rule_id", "principal", "deny", "operations", "resource", "name", "prefix")
    RULE_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    DENY_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    rule_id: str
    principal: str
    deny: bool
    operations: _containers.RepeatedScalarFieldContainer[Operation]
    resource: Resource
    name: str
    prefix: bool
    def __init__(self, rule_id: _Optional[str] = ..., principal: _Optional[str] = ..., deny: _Optional[bool] = ..., operations: _Optional[_Iterable[_Union[Operation, str]]] = ..., resource: _Optional[_Union[Resource, str]] = ..., name: _Optional[str] = ..., prefix: _Optional[bool] = ...) -> None: ...

class ApiKey(_message.Message):
    __slots__ = ("key_id", "principal", "roles", "created_us", "expires_us", "note", "salt", "secret_hash")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_US_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    SECRET_HASH_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    principal: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    created_us: int
    expires_us: int
    note: str
    salt: bytes
    secret_hash: bytes
    def __init__(self, key_id: _Optional[str] = ..., principal: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., created_us: _Optional[int] = ..., expires_us: _Optional[int] = ..., note: _Optional[str] = ..., salt: _Optional[bytes] = ..., secret_hash: _Optional[bytes] = ...) -> None: ...

class ScramUser(_message.Message):
    __slots__ = ("user_id", "name", "roles", "created_us", "iterations", "salt", "stored_key", "server_key")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    STORED_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    name: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    created_us: int
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    def __init__(self, user_id: _Optional[str] = ..., name: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., created_us: _Optional[int] = ..., iterations: _Optional[int] = ..., salt: _Optional[bytes] = ..., stored_key: _Optional[bytes] = ..., server_key: _Optional[bytes] = ...) -> None: ...

class SecurityRecord(_message.Message):
    __slots__ = ("id", "revision", "deleted", "api_key", "rule", "user", "scram_secret", "quota", "features")
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SCRAM_SECRET_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    id: str
    revision: int
    deleted: bool
    api_key: ApiKey
    rule: AccessRule
    user: ScramUser
    scram_secret: bytes
    quota: Quota
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., revision: _Optional[int] = ..., deleted: _Optional[bool] = ..., api_key: _Optional[_Union[ApiKey, _Mapping]] = ..., rule: _Optional[_Union[AccessRule, _Mapping]] = ..., user: _Optional[_Union[ScramUser, _Mapping]] = ..., scram_secret: _Optional[bytes] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("quota_id", "subject", "produce_bytes", "consume_bytes", "requests", "connections", "in_flight_bytes", "topics", "partitions", "groups")
    QUOTA_ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONSUME_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    quota_id: str
    subject: str
    produce_bytes: int
    consume_bytes: int
    requests: int
    connections: int
    in_flight_bytes: int
    topics: int
    partitions: int
    groups: int
    def __init__(self, quota_id: _Optional[str] = ..., subject: _Optional[str] = ..., produce_bytes: _Optional[int] = ..., consume_bytes: _Optional[int] = ..., requests: _Optional[int] = ..., connections: _Optional[int] = ..., in_flight_bytes: _Optional[int] = ..., topics: _Optional[int] = ..., partitions: _Optional[int] = ..., groups: _Optional[int] = ...) -> None: ...

class SecurityChange(_message.Message):
    __slots__ = ("create_key", "revoke_key", "grant", "revoke_rule", "create_user", "delete_user", "set_password", "set_quota", "remove_quota")
    CREATE_KEY_FIELD_NUMBER: _ClassVar[int]
    REVOKE_KEY_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REVOKE_RULE_FIELD_NUMBER: _ClassVar[int]
    CREATE_USER_FIELD_NUMBER: _ClassVar[int]
    DELETE_USER_FIELD_NUMBER: _ClassVar[int]
    SET_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    SET_QUOTA_FIELD_NUMBER: _ClassVar[int]
    REMOVE_QUOTA_FIELD_NUMBER: _ClassVar[int]
    create_key: ApiKey
    revoke_key: str
    grant: AccessRule
    revoke_rule: str
    create_user: ScramUser
    delete_user: str
    set_password: ScramUser
    set_quota: Quota
    remove_quota: str
    def __init__(self, create_key: _Optional[_Union[ApiKey, _Mapping]] = ..., revoke_key: _Optional[str] = ..., grant: _Optional[_Union[AccessRule, _Mapping]] = ..., revoke_rule: _Optional[str] = ..., create_user: _Optional[_Union[ScramUser, _Mapping]] = ..., delete_user: _Optional[str] = ..., set_password: _Optional[_Union[ScramUser, _Mapping]] = ..., set_quota: _Optional[_Union[Quota, _Mapping]] = ..., remove_quota: _Optional[str] = ...) -> None: ...

class SecurityChangeReply(_message.Message):
    __slots__ = ("api_key", "key", "rule", "user", "quota")
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    api_key: str
    key: ApiKey
    rule: AccessRule
    user: ScramUser
    quota: Quota
    def __init__(self, api_key: _Optional[str] = ..., key: _Optional[_Union[ApiKey, _Mapping]] = ..., rule: _Optional[_Union[AccessRule, _Mapping]] = ..., user: _Optional[_Union[ScramUser, _Mapping]] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class SecurityList(_message.Message):
    __slots__ = ("what", "after")
    class What(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WHAT_UNSPECIFIED: _ClassVar[SecurityList.What]
        KEYS: _ClassVar[SecurityList.What]
        RULES: _ClassVar[SecurityList.What]
        USERS: _ClassVar[SecurityList.What]
        QUOTAS: _ClassVar[SecurityList.What]
        QUOTA_USAGE: _ClassVar[SecurityList.What]
    WHAT_UNSPECIFIED: SecurityList.What
    KEYS: SecurityList.What
    RULES: SecurityList.What
    USERS: SecurityList.What
    QUOTAS: SecurityList.What
    QUOTA_USAGE: SecurityList.What
    WHAT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    what: SecurityList.What
    after: str
    def __init__(self, what: _Optional[_Union[SecurityList.What, str]] = ..., after: _Optional[str] = ...) -> None: ...

class SecurityListReply(_message.Message):
    __slots__ = ("keys", "rules", "last", "users", "quotas", "usages")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    USAGES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ApiKey]
    rules: _containers.RepeatedCompositeFieldContainer[AccessRule]
    last: str
    users: _containers.RepeatedCompositeFieldContainer[ScramUser]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    usages: _containers.RepeatedCompositeFieldContainer[QuotaUsage]
    def __init__(self, keys: _Optional[_Iterable[_Union[ApiKey, _Mapping]]] = ..., rules: _Optional[_Iterable[_Union[AccessRule, _Mapping]]] = ..., last: _Optional[str] = ..., users: _Optional[_Iterable[_Union[ScramUser, _Mapping]]] = ..., quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ..., usages: _Optional[_Iterable[_Union[QuotaUsage, _Mapping]]] = ...) -> None: ...

class QuotaUsage(_message.Message):
    __slots__ = ("node_id", "caller", "connections", "in_flight_bytes", "waiting", "throttled_ms", "produce_debt_ms", "consume_debt_ms")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_DEBT_MS_FIELD_NUMBER: _ClassVar[int]
    CONSUME_DEBT_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    caller: str
    connections: int
    in_flight_bytes: int
    waiting: int
    throttled_ms: int
    produce_debt_ms: int
    consume_debt_ms: int
    def __init__(self, node_id: _Optional[str] = ..., caller: _Optional[str] = ..., connections: _Optional[int] = ..., in_flight_bytes: _Optional[int] = ..., waiting: _Optional[int] = ..., throttled_ms: _Optional[int] = ..., produce_debt_ms: _Optional[int] = ..., consume_debt_ms: _Optional[int] = ...) -> None: ...

class AccessTest(_message.Message):
    __slots__ = ("principal", "roles", "operation", "resource", "name", "enforce")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENFORCE_FIELD_NUMBER: _ClassVar[int]
    principal: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    operation: Operation
    resource: Resource
    name: str
    enforce: bool
    def __init__(self, principal: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., operation: _Optional[_Union[Operation, str]] = ..., resource: _Optional[_Union[Resource, str]] = ..., name: _Optional[str] = ..., enforce: _Optional[bool] = ...) -> None: ...

class AccessTestReply(_message.Message):
    __slots__ = ("allowed", "because")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    because: str
    def __init__(self, allowed: _Optional[bool] = ..., because: _Optional[str] = ...) -> None: ...

class Identify(_message.Message):
    __slots__ = ("credentials", "only_revision", "login")
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    ONLY_REVISION_FIELD_NUMBER: _ClassVar[int]
    LOGIN_FIELD_NUMBER: _ClassVar[int]
    credentials: Credentials
    only_revision: bool
    login: bytes
    def __init__(self, credentials: _Optional[_Union[Credentials, _Mapping]] = ..., only_revision: _Optional[bool] = ..., login: _Optional[bytes] = ...) -> None: ...

class IdentifyReply(_message.Message):
    __slots__ = ("error", "principal", "expires_us", "ticket", "ticket_ms", "revision", "challenge", "login", "scram")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_US_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TICKET_MS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    LOGIN_FIELD_NUMBER: _ClassVar[int]
    SCRAM_FIELD_NUMBER: _ClassVar[int]
    error: Error
    principal: str
    expires_us: int
    ticket: bytes
    ticket_ms: int
    revision: bytes
    challenge: HelloChallenge
    login: bytes
    scram: str
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., principal: _Optional[str] = ..., expires_us: _Optional[int] = ..., ticket: _Optional[bytes] = ..., ticket_ms: _Optional[int] = ..., revision: _Optional[bytes] = ..., challenge: _Optional[_Union[HelloChallenge, _Mapping]] = ..., login: _Optional[bytes] = ..., scram: _Optional[str] = ...) -> None: ...

class SealedLogin(_message.Message):
    __slots__ = ("first", "nonce", "user_id", "holder", "ends_us")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ENDS_US_FIELD_NUMBER: _ClassVar[int]
    first: str
    nonce: str
    user_id: str
    holder: str
    ends_us: int
    def __init__(self, first: _Optional[str] = ..., nonce: _Optional[str] = ..., user_id: _Optional[str] = ..., holder: _Optional[str] = ..., ends_us: _Optional[int] = ...) -> None: ...
