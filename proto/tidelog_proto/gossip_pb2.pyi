from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GossipState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GOSSIP_STATE_UNSPECIFIED: _ClassVar[GossipState]
    GOSSIP_ALIVE: _ClassVar[GossipState]
    GOSSIP_SUSPECT: _ClassVar[GossipState]
    GOSSIP_DEAD: _ClassVar[GossipState]
    GOSSIP_LEFT: _ClassVar[GossipState]
GOSSIP_STATE_UNSPECIFIED: GossipState
GOSSIP_ALIVE: GossipState
GOSSIP_SUSPECT: GossipState
GOSSIP_DEAD: GossipState
GOSSIP_LEFT: GossipState

class Gossip(_message.Message):
    __slots__ = ("cluster_id", "sender", "incarnation", "counter", "digest", "members", "ping", "ping_request", "ack", "nack")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    sender: str
    incarnation: int
    counter: int
    digest: int
    members: _containers.RepeatedCompositeFieldContainer[GossipMember]
    ping: GossipPing
    ping_request: GossipPingRequest
    ack: GossipAck
    nack: GossipNack
    def __init__(self, cluster_id: _Optional[bytes] = ..., sender: _Optional[str] = ..., incarnation: _Optional[int] = ..., counter: _Optional[int] = ..., digest: _Optional[int] = ..., members: _Optional[_Iterable[_Union[GossipMember, _Mapping]]] = ..., ping: _Optional[_Union[GossipPing, _Mapping]] = ..., ping_request: _Optional[_Union[GossipPingRequest, _Mapping]] = ..., ack: _Optional[_Union[GossipAck, _Mapping]] = ..., nack: _Optional[_Union[GossipNack, _Mapping]] = ...) -> None: ...

class GossipMember(_message.Message):
    __slots__ = ("node_id", "incarnation", "refutation", "state", "host", "port", "gossip_host", "gossip_port", "zone", "roles", "weight")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REFUTATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    GOSSIP_HOST_FIELD_NUMBER: _ClassVar[int]
    GOSSIP_PORT_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: int
    refutation: int
    state: GossipState
    host: str
    port: int
    gossip_host: str
    gossip_port: int
    zone: str
    roles: int
    weight: int
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., refutation: _Optional[int] = ..., state: _Optional[_Union[GossipState, str]] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., gossip_host: _Optional[str] = ..., gossip_port: _Optional[int] = ..., zone: _Optional[str] = ..., roles: _Optional[int] = ..., weight: _Optional[int] = ...) -> None: ...

class GossipPing(_message.Message):
    __slots__ = ("sequence", "target")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    target: str
    def __init__(self, sequence: _Optional[int] = ..., target: _Optional[str] = ...) -> None: ...

class GossipPingRequest(_message.Message):
    __slots__ = ("sequence", "target")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    target: str
    def __init__(self, sequence: _Optional[int] = ..., target: _Optional[str] = ...) -> None: ...

class GossipAck(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class GossipNack(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...
