"""Callbacks that are plain functions: what an `async def` returns nobody would await, so it would never run."""

from __future__ import annotations

import inspect


def check_callback(what: str, callback: object) -> None:
    """Refuse what is no function, or one that has to be awaited.

    Args:
        what: the parameter's name, for the error.
        callback: what was given; None is none.

    Raises:
        TypeError: it is no plain function.
    """
    if callback is None:
        return
    if not callable(callback):
        raise TypeError(f"{what} is a function or None, not {callback!r}")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
        raise coroutine_error(what, callback)


def coroutine_error(what: str, callback: object) -> TypeError:
    """Return the error of a callback that has to be awaited."""
    return TypeError(
        f"{what} is a plain function, which is called and not awaited; {callback!r} is a coroutine function: let a "
        "plain one make a task of it"
    )


def discard_coroutine(returned: object) -> bool:
    """Whether what a callback returned is a coroutine; it is closed, so that Python warns of nothing."""
    if not inspect.iscoroutine(returned):
        return False
    returned.close()
    return True
