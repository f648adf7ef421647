"""Rows as instances of a dataclass or a pydantic model."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidelog.errors import InvalidRequestError
from tidelog_proto.schema.topic_schema import Schema

Build = Callable[[dict[str, Any]], Any]
"""Returns an instance for the row of a record."""

_WRAPPERS_MAX: Final = 16


def model_builder(model: Any) -> Build:
    """Return a function that makes instances of a model of rows; fields that the model lacks are left out.

    Raises:
        InvalidRequestError: the class is neither a dataclass nor a pydantic model.
    """
    if _is_pydantic(model):
        validate: Build = getattr(model, "model_validate")  # noqa: B009 - pydantic has no types here
        names = frozenset(_pydantic_names(model))
        return lambda row: validate({name: value for name, value in row.items() if name in names})
    if not (isinstance(model, type) and dataclasses.is_dataclass(model)):
        raise InvalidRequestError(f"rows must be a dataclass or a pydantic model, got {model!r}")
    return _dataclass_builder(model)


def check_model(model: type, schema: Schema) -> None:
    """Check that the schema has each field that the model requires.

    Raises:
        InvalidRequestError: a field is missing.
    """
    known = {field.name for field in schema.fields}
    if missing := [name for name in _required(model) if name not in known]:
        raise InvalidRequestError(
            f"{model.__name__} requires the fields {missing}, which schema {schema.number} of the topic lacks; give "
            f"them a default, or read with another class"
        )


def _is_pydantic(model: Any) -> bool:
    return isinstance(model, type) and isinstance(getattr(model, "model_fields", None), Mapping)


def _pydantic_names(model: Any) -> list[str]:
    return [name for name, info in model.model_fields.items() for name in {name, info.alias or name}]


def _required(model: Any) -> list[str]:
    if _is_pydantic(model):
        return [info.alias or name for name, info in model.model_fields.items() if info.is_required()]
    return [
        each.name
        for each in dataclasses.fields(model)
        if each.init and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]


def _dataclass_builder(model: Any) -> Build:
    hints = typing.get_type_hints(model)
    parts = {each.name: _part(hints[each.name]) for each in dataclasses.fields(model) if each.init}

    def build(row: dict[str, Any]) -> Any:
        return model(
            **{
                name: value if (part := parts[name]) is None or value is None else part(value)
                for name, value in row.items()
                if name in parts
            }
        )

    return build


def _part(hint: Any) -> Callable[[Any], Any] | None:
    """Return the function that makes nested instances of a struct or list; None for other hints."""
    for _ in range(_WRAPPERS_MAX):
        if typing.get_origin(hint) in {typing.Union, types.UnionType}:
            (hint, *_others) = [each for each in typing.get_args(hint) if each is not types.NoneType]
        elif hasattr(hint, "__supertype__") or hasattr(hint, "__value__"):
            hint = getattr(hint, "__supertype__", None) or hint.__value__
        else:
            break
    if typing.get_origin(hint) is list:
        item = _part(typing.get_args(hint)[0])
        return None if item is None else lambda values: [None if each is None else item(each) for each in values]
    if _is_pydantic(hint) or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return model_builder(hint)
    return None
