"""Signatures of functions that take options as `**options: Unpack[...]`, so that options are listed once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def takes_options(options: type, source: Callable[..., Any]) -> Callable[[F], F]:
    """Show the options of a function's `**options` in its signature, for `help`, `inspect` and the API reference.

    An unknown option is a TypeError, as for any function.

    Args:
        options: the TypedDict of the options, which has their types.
        source: the function or class that receives the options and has their defaults.
    """

    def taking(function: F) -> F:
        defaults = inspect.signature(source).parameters
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [defaults[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in options.__annotations__]
        known = {each.name for each in (*own, *added)}

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            for name in given.keys() - known:
                raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}")
            return function(*args, **given)

        vars(checked)["__signature__"] = signature.replace(parameters=[*own, *added])
        return cast("F", checked)

    return taking
