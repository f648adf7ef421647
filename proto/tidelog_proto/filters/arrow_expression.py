"""Conditions as `pyarrow.compute` expressions, such as `pc.field("arr_delay") > 190`.

An expression is read in the form in which pyarrow pickles it: an Arrow file whose metadata is the tree, with literals
and options as columns of one row. That form is complete and not bound to a schema; Substrait, the other form, has no
`n > 190` for an int8. An expression with a part that is not known here is refused.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.filters.conditions import And, Comparison, Condition, ExactTime, Not, Or, StartsWith
from tidelog_proto.filters.expression import Operator
from tidelog_proto.filters.filter_limits import LITERALS_MAX, FilterError, too_many_literals_error
from tidelog_proto.schema.schema_error import shown

_COMPARISONS: Final = {
    "equal": Operator.EQUAL,
    "not_equal": Operator.NOT_EQUAL,
    "less": Operator.LESS,
    "less_equal": Operator.LESS_OR_EQUAL,
    "greater": Operator.GREATER,
    "greater_equal": Operator.GREATER_OR_EQUAL,
}
_SWAPPED: Final = {
    Operator.LESS: Operator.GREATER,
    Operator.LESS_OR_EQUAL: Operator.GREATER_OR_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_OR_EQUAL: Operator.LESS_OR_EQUAL,
}
_UNITS: Final = {"s": Fraction(1_000_000), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
_DEPTH_MAX: Final = 150
"""`a | b | c` has a level for each operator."""
_METADATA_AT: Final = 2 * ctypes.sizeof(ctypes.c_void_p)
"""Offset of the metadata in an `ArrowSchema` of Arrow's C data interface, after the format and the name."""
_SIZE: Final = struct.Struct("=i")
"""A number in this metadata."""
_KEEPS_NULLS: Final = ("MATCH", "SKIP")
"""`SetLookupOptions.null_matching_behavior`: whether null is in the set if it has a null, or never."""


def condition_of_arrow(expression: pc.Expression) -> Condition:
    """Return the condition that a pyarrow expression states.

    Raises:
        FilterError: the expression has a function or literal that a filter cannot have.
    """
    return _Reader(expression).whole()


class _Reader:
    def __init__(self, expression: pc.Expression) -> None:
        self._shown = shown(str(expression))
        try:
            pickled: Any = expression.__reduce__()
            (raw,) = pickled[1]
            columns = pa.ipc.open_file(raw).read_all()
        except pa.ArrowNotImplementedError as error:
            raise FilterError(f"the expression {self._shown} cannot be read: {error}; name fields by text") from error
        self._columns: list[Any] = [column[0] for column in columns.columns]
        self._parts = _metadata(columns.schema)
        self._depth = 0

    def whole(self) -> Condition:
        """Return the condition of the expression."""
        return self._condition(*next(self._parts))

    def refuse(self, part: str) -> NoReturn:
        """Raise the error for a part of the expression."""
        raise FilterError(
            f"the expression {self._shown} has {part}, which a filter cannot have; use comparisons of fields with "
            "literals, isin, is_null, is_valid, starts_with, &, | and ~, and filter the rows that were read for more"
        )

    def _condition(self, key: str, value: str) -> Condition:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self.refuse(f"more than {_DEPTH_MAX} levels")
        found = self._part(key, value)
        self._depth -= 1
        return found

    def _part(self, key: str, value: str) -> Condition:
        if key in {"field_ref", "nested_field_ref"}:
            return Comparison(self._name(key, value), Operator.EQUAL, (True,))
        if key == "literal":
            literal = self._columns[int(value)]
            if not pa.types.is_boolean(literal.type) or not literal.is_valid:
                self.refuse(f"the literal {shown(literal)} as a condition")
            return And(()) if literal.as_py() else Or(())
        if key != "call":
            self.refuse(f"{shown(key)} {shown(value)}")
        if value in {"and_kleene", "or_kleene", "and", "or"}:
            if value in {"and", "or"}:
                self.refuse(f"{value!r}, for which null is not unknown")
            parts = tuple(self._condition(*part) for part in self._arguments(value))
            return And(parts) if value == "and_kleene" else Or(parts)
        if value == "invert":
            (inner,) = (self._condition(*part) for part in self._arguments(value))
            return Not(inner)
        return self._test(value)

    def _arguments(self, call: str) -> Iterator[tuple[str, str]]:
        """Yield the beginning of each argument; the caller reads the rest of it before the next one."""
        for key, value in self._parts:
            if key == "end":
                return
            yield key, value
        self.refuse(f"a call of {call!r} without an end")

    def _test(self, function: str) -> Condition:
        names: list[str] = []
        literals: list[Any] = []
        options: dict[str, Any] = {}
        is_literal_first = False
        for key, value in self._arguments(function):
            if key in {"field_ref", "nested_field_ref"}:
                names.append(self._name(key, value))
            elif key == "literal":
                is_literal_first = not names
                literals.append(self._value(self._columns[int(value)]))
            elif key == "options":
                column = self._columns[int(value)]
                options = {field.name: column[field.name] for field in column.type}
            else:
                self.refuse(f"{shown(value)} within {function!r}")
        if len(names) != 1:
            self.refuse(f"{function!r} of {len(names)} fields")
        if function in _COMPARISONS:
            if len(literals) != 1:
                self.refuse(f"{function!r} of {len(literals)} literals")
            operator = _COMPARISONS[function]
            if is_literal_first:
                operator = _SWAPPED.get(operator, operator)
            return Comparison(names[0], operator, (*literals,))
        test = _TESTS.get(function)
        if test is None or literals:
            self.refuse(f"the function {function!r}")
        return test(self, names[0], options)

    def is_null(self, name: str, options: dict[str, Any]) -> Condition:
        """Return the condition of `is_null`."""
        if "nan_is_null" in options and options["nan_is_null"].as_py():
            self.refuse("is_null with nan_is_null")
        return Comparison(name, Operator.IS_NULL)

    def is_valid(self, name: str, _: dict[str, Any]) -> Condition:
        """Return the condition of `is_valid`."""
        return Comparison(name, Operator.IS_NOT_NULL)

    def starts_with(self, name: str, options: dict[str, Any]) -> Condition:
        """Return the condition of `starts_with`."""
        if options["ignore_case"].as_py():
            self.refuse("starts_with with ignore_case")
        return StartsWith(name, options["pattern"].as_py())

    def is_in(self, name: str, options: dict[str, Any]) -> Condition:
        """Return the condition of `isin`, which is true or false of nulls, and not unknown."""
        behaviour = options["null_matching_behavior"].as_py()
        if not 0 <= behaviour < len(_KEEPS_NULLS):
            self.refuse("isin with another treatment of nulls than MATCH and SKIP")
        values = options["value_set"].values
        if len(values) > LITERALS_MAX:
            raise too_many_literals_error()
        members = tuple(self._value(value) for value in values if value.is_valid)
        is_in: Condition = Comparison(name, Operator.IS_IN, members) if members else Or(())
        if values.null_count and _KEEPS_NULLS[behaviour] == "MATCH":
            return Or((Comparison(name, Operator.IS_NULL), is_in))
        return And((Comparison(name, Operator.IS_NOT_NULL), is_in))

    def _name(self, key: str, value: str) -> str:
        if key == "field_ref":
            return value
        names = [next(self._parts) for _ in range(int(value))]
        if any(key != "field_ref" for key, _ in names):
            self.refuse("a reference that does not name a field")
        return ".".join(name for _, name in names)

    def _value(self, scalar: Any) -> Any:
        """Return a literal as a value of Python, exactly."""
        if not scalar.is_valid:
            raise FilterError(f"the expression {self._shown} compares with null, which is true of no row; use is_null")
        if isinstance(scalar, pa.DictionaryScalar):
            return self._value(scalar.value)
        data_type = scalar.type
        if pa.types.is_timestamp(data_type):
            return ExactTime(scalar.value * _UNITS[data_type.unit], data_type.tz is not None)
        if not any(check(data_type) for check in _PLAIN):
            self.refuse(f"a literal of the type {data_type}")
        return scalar.as_py()


_TESTS: Final[dict[str, Callable[[_Reader, str, dict[str, Any]], Condition]]] = {
    "is_null": _Reader.is_null,
    "is_valid": _Reader.is_valid,
    "is_in": _Reader.is_in,
    "starts_with": _Reader.starts_with,
}
_PLAIN: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date32,
)


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield the metadata of a schema in its order. `Schema.metadata` is a dictionary, and keys repeat here.

    The layout is that of the metadata of `ArrowSchema` in Arrow's C data interface: the number of pairs, then the size
    and bytes of each key and value.
    """
    capsule = schema.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer_of(capsule, b"arrow_schema")
    start = ctypes.c_void_p.from_address(address + _METADATA_AT).value
    if not start:
        return
    at: int = start

    def taken(size: int) -> bytes:
        nonlocal at
        found = ctypes.string_at(at, size)
        at += size
        return found

    def number() -> int:
        (found,) = _SIZE.unpack(taken(_SIZE.size))
        return int(found)

    for _ in range(number()):
        key = taken(number()).decode()
        yield key, taken(number()).decode()
