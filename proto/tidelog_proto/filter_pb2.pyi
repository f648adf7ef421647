from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TestOperator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEST_OPERATOR_UNSPECIFIED: _ClassVar[TestOperator]
    EQUAL: _ClassVar[TestOperator]
    NOT_EQUAL: _ClassVar[TestOperator]
    LESS: _ClassVar[TestOperator]
    LESS_OR_EQUAL: _ClassVar[TestOperator]
    GREATER: _ClassVar[TestOperator]
    GREATER_OR_EQUAL: _ClassVar[TestOperator]
    IS_IN: _ClassVar[TestOperator]
    IS_NOT_IN: _ClassVar[TestOperator]
    IS_NULL: _ClassVar[TestOperator]
    IS_NOT_NULL: _ClassVar[TestOperator]
TEST_OPERATOR_UNSPECIFIED: TestOperator
EQUAL: TestOperator
NOT_EQUAL: TestOperator
LESS: TestOperator
LESS_OR_EQUAL: TestOperator
GREATER: TestOperator
GREATER_OR_EQUAL: TestOperator
IS_IN: TestOperator
IS_NOT_IN: TestOperator
IS_NULL: TestOperator
IS_NOT_NULL: TestOperator

class RowFilter(_message.Message):
    __slots__ = ("schema_number", "expression")
    SCHEMA_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    schema_number: int
    expression: FilterNode
    def __init__(self, schema_number: _Optional[int] = ..., expression: _Optional[_Union[FilterNode, _Mapping]] = ...) -> None: ...

class FilterNode(_message.Message):
    __slots__ = ("all_of", "any_of", "test")
    ALL_OF_FIELD_NUMBER: _ClassVar[int]
    ANY_OF_FIELD_NUMBER: _ClassVar[int]
    TEST_FIELD_NUMBER: _ClassVar[int]
    all_of: FilterNodes
    any_of: FilterNodes
    test: FieldTest
    def __init__(self, all_of: _Optional[_Union[FilterNodes, _Mapping]] = ..., any_of: _Optional[_Union[FilterNodes, _Mapping]] = ..., test: _Optional[_Union[FieldTest, _Mapping]] = ...) -> None: ...

class FilterNodes(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[FilterNode]
    def __init__(self, nodes: _Optional[_Iterable[_Union[FilterNode, _Mapping]]] = ...) -> None: ...

class FieldTest(_message.Message):
    __slots__ = ("field_id", "operator", "literals")
    FIELD_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    LITERALS_FIELD_NUMBER: _ClassVar[int]
    field_id: int
    operator: TestOperator
    literals: _containers.RepeatedCompositeFieldContainer[FilterLiteral]
    def __init__(self, field_id: _Optional[int] = ..., operator: _Optional[_Union[TestOperator, str]] = ..., literals: _Optional[_Iterable[_Union[FilterLiteral, _Mapping]]] = ...) -> None: ...

class FilterLiteral(_message.Message):
    __slots__ = ("boolean", "integer", "number", "text", "large_integer")
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LARGE_INTEGER_FIELD_NUMBER: _ClassVar[int]
    boolean: bool
    integer: int
    number: float
    text: bytes
    large_integer: bytes
    def __init__(self, boolean: _Optional[bool] = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., text: _Optional[bytes] = ..., large_integer: _Optional[bytes] = ...) -> None: ...
