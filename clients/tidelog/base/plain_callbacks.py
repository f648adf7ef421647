"""Checks that callbacks are plain functions: the coroutine of an `async def` would never be awaited."""

from __future__ import annotations

import inspect


def check_callback(what: str, callback: object) -> None:
    """Refuse a callback that is not callable, or is a coroutine function.

    Args:
        what: the parameter's name, for the error.
        callback: the argument; None is accepted.

    Raises:
        TypeError: the callback is not a plain function.
    """
    if callback is None:
        return
    if not callable(callback):
        raise TypeError(f"{what} must be a function or None, got {callback!r}")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
        raise coroutine_error(what, callback)


def coroutine_error(what: str, callback: object) -> TypeError:
    """Return the error of a callback that is a coroutine function."""
    return TypeError(
        f"{what} must be a plain function, got the coroutine function {callback!r}; start a task for it in a plain "
        "function"
    )


def discard_coroutine(returned: object) -> bool:
    """Return whether a callback returned a coroutine; close it, so that Python does not warn."""
    if not inspect.iscoroutine(returned):
        return False
    returned.close()
    return True
