"""Copies a whole small world, callbacks included, so that a search can continue from one state in many ways.

`copy.deepcopy` takes functions for constants; the core's callbacks hold on to the replica that they belong to, and a
copy of a world in which they still do would change the original.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

_T = TypeVar("_T")
_CONSTANT = (int, str, bytes, bool, float, type, memoryview, type(None))


def clone(value: _T) -> _T:
    """Return a copy of everything that hangs on an object."""
    return cast("_T", _clone(value, {}))


def _clone(value: Any, done: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _CONSTANTS:
        return value
    known = done.get(id(value))
    if known is not None:
        return known
    copier = _COPIERS.get(kind)
    if copier is None:
        copier = _COPIERS[kind] = _copier_of(kind)
    return copier(value, done)


def _copier_of(kind: type) -> Callable[[Any, dict[int, Any]], Any]:
    if issubclass(kind, _CONSTANT):
        return _same
    if issubclass(kind, Message):
        return _message
    if issubclass(kind, tuple):
        return _tuple
    if issubclass(kind, dict):
        return _dict
    if issubclass(kind, list | set | deque):
        return _collection
    slots: list[str] = []
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        slots += [names] if isinstance(names, str) else names
    return lambda value, done: _object(value, done, slots)


def _same(value: Any, done: dict[int, Any]) -> Any:
    return value


def _message(value: Any, done: dict[int, Any]) -> Any:
    copy = done[id(value)] = type(value)()
    copy.CopyFrom(value)
    return copy


def _tuple(value: Any, done: dict[int, Any]) -> Any:
    parts = [_clone(one, done) for one in value]
    if all(one is other for one, other in zip(parts, value, strict=True)):
        return value
    return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)


def _dict(value: Any, done: dict[int, Any]) -> Any:
    copy = done[id(value)] = value.copy()
    for key, one in value.items():
        copy[key] = _clone(one, done)
    return copy


def _collection(value: Any, done: dict[int, Any]) -> Any:
    copy = done[id(value)] = value.copy()
    copy.clear()
    if isinstance(copy, set):
        copy.update(value)
    else:
        copy.extend(_clone(one, done) for one in value)
    return copy


def _object(value: Any, done: dict[int, Any], slots: list[str]) -> Any:
    copy: Any = object.__new__(type(value))
    done[id(value)] = copy
    for name in slots:
        if hasattr(value, name):
            object.__setattr__(copy, name, _clone(getattr(value, name), done))
    state = getattr(value, "__dict__", None)
    if state is not None:
        for name, one in state.items():
            copy.__dict__[name] = _clone(one, done)
    return copy


def _function(value: FunctionType, done: dict[int, Any]) -> Any:
    if value.__closure__ is None:
        return value
    cells = tuple(CellType() for _ in value.__closure__)
    copy = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    copy.__kwdefaults__ = value.__kwdefaults__
    done[id(value)] = copy
    for cell, old in zip(cells, value.__closure__, strict=True):
        cell.cell_contents = _clone(old.cell_contents, done)
    return copy


def _method(value: MethodType, done: dict[int, Any]) -> Any:
    return MethodType(value.__func__, _clone(value.__self__, done))


_CONSTANTS = set(_CONSTANT)
_COPIERS: dict[type, Callable[[Any, dict[int, Any]], Any]] = {FunctionType: _function, MethodType: _method}
