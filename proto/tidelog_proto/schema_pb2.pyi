from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FieldKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIELD_KIND_UNSPECIFIED: _ClassVar[FieldKind]
    BOOL: _ClassVar[FieldKind]
    INT8: _ClassVar[FieldKind]
    INT16: _ClassVar[FieldKind]
    INT32: _ClassVar[FieldKind]
    INT64: _ClassVar[FieldKind]
    FLOAT32: _ClassVar[FieldKind]
    FLOAT64: _ClassVar[FieldKind]
    DECIMAL128: _ClassVar[FieldKind]
    STRING: _ClassVar[FieldKind]
    BINARY: _ClassVar[FieldKind]
    DATE32: _ClassVar[FieldKind]
    TIMESTAMP: _ClassVar[FieldKind]
    TIMESTAMP_UTC: _ClassVar[FieldKind]
    LIST: _ClassVar[FieldKind]
    STRUCT: _ClassVar[FieldKind]

class FieldRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIELD_ROLE_NONE: _ClassVar[FieldRole]
    TIME: _ClassVar[FieldRole]
    KEY: _ClassVar[FieldRole]
    TAG: _ClassVar[FieldRole]
FIELD_KIND_UNSPECIFIED: FieldKind
BOOL: FieldKind
INT8: FieldKind
INT16: FieldKind
INT32: FieldKind
INT64: FieldKind
FLOAT32: FieldKind
FLOAT64: FieldKind
DECIMAL128: FieldKind
STRING: FieldKind
BINARY: FieldKind
DATE32: FieldKind
TIMESTAMP: FieldKind
TIMESTAMP_UTC: FieldKind
LIST: FieldKind
STRUCT: FieldKind
FIELD_ROLE_NONE: FieldRole
TIME: FieldRole
KEY: FieldRole
TAG: FieldRole

class TopicSchema(_message.Message):
    __slots__ = ("number", "next_field_id", "fields", "digest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_ID_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    next_field_id: int
    fields: _containers.RepeatedCompositeFieldContainer[SchemaField]
    digest: int
    def __init__(self, number: _Optional[int] = ..., next_field_id: _Optional[int] = ..., fields: _Optional[_Iterable[_Union[SchemaField, _Mapping]]] = ..., digest: _Optional[int] = ...) -> None: ...

class SchemaField(_message.Message):
    __slots__ = ("id", "name", "kind", "precision", "scale", "required", "role", "doc", "children")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    kind: FieldKind
    precision: int
    scale: int
    required: bool
    role: FieldRole
    doc: str
    children: _containers.RepeatedCompositeFieldContainer[SchemaField]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., kind: _Optional[_Union[FieldKind, str]] = ..., precision: _Optional[int] = ..., scale: _Optional[int] = ..., required: _Optional[bool] = ..., role: _Optional[_Union[FieldRole, str]] = ..., doc: _Optional[str] = ..., children: _Optional[_Iterable[_Union[SchemaField, _Mapping]]] = ...) -> None: ...
