"""Signatures of functions that take options as `**options: Unpack[...]`, so that options are listed once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def shows_options(options: type, source: Callable[..., Any]) -> Callable[[F], F]:
    """Show the options of a function's `**options` in its signature, for `help`, `inspect` and the API reference.

    The function passes its options on, so that an unknown one is a TypeError of `source`.

    Args:
        options: the TypedDict of the options, which has their types.
        source: the function or class that receives the options and has their defaults.
    """

    def shown(function: F) -> F:
        defaults = inspect.signature(source).parameters
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name].default,
                annotation=defaults[name].annotation,
            )
            for name in options.__annotations__
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *added])
        return function

    return shown
