"""The first faults of a list in a request, found in bounded time.

Validation of a list stops at its first invalid item (`fail_fast`), because a list of 4,096 items with 100 unknown
members each has 409,600 faults, and listing one takes 30 us. The items of a refused list are then validated again, one
by one, until `ERRORS_SHOWN_MAX` faults are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError, WrapValidator
from pydantic_core import InitErrorDetails

from tidelog_gateway.problems import ERRORS_SHOWN_MAX, body_faults


def list_faults(items: Sequence[Any], adapter: TypeAdapter[Any], path: Sequence[str | int]) -> list[dict[str, str]]:
    """Return the first faults of items, as `body_faults` does.

    Args:
        items: parsed items that have not been validated.
        adapter: validates an item.
        path: path of the list in the body.
    """
    faults: list[dict[str, str]] = []
    for index, item in enumerate(items):
        try:
            adapter.validate_python(item)
        except ValidationError as error:
            faults += body_faults(error, prefix=[*path, index])
            if len(faults) >= ERRORS_SHOWN_MAX:
                break
    return faults


def first_faults(item: Any) -> WrapValidator:
    """Return a validator for the annotation of a list with `fail_fast`, which reports the list's first faults."""
    adapter = TypeAdapter[Any](item)

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            faults = _lines(value, adapter) if isinstance(value, list) else []
            if not faults:
                raise
            raise ValidationError.from_exception_data(error.title, faults) from error

    return WrapValidator(validate)


def _lines(items: list[Any], adapter: TypeAdapter[Any]) -> list[InitErrorDetails]:
    lines: list[InitErrorDetails] = []
    for index, item in enumerate(items):
        try:
            adapter.validate_python(item)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                location = (index, *each["loc"])
                ctx = each.get("ctx", {})
                lines.append(InitErrorDetails(type=each["type"], loc=location, input=each["input"], ctx=ctx))
            if len(lines) >= ERRORS_SHOWN_MAX:
                break
    return lines
