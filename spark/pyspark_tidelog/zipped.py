"""Pickles that can be loaded by processes without the connector's zip on their path.

For each stream, Spark unpickles a data source in a separate process on the driver's machine. That process looks for the
zips of `--py-files` in a folder that does not contain them (4.0 to 4.3), so importing this package fails unless
PYTHONPATH contains the zip. Objects that use `reduced` first add the zip to the path, and then import from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.worker_util import add_path


class _Call:
    """An object that unpickles to the result of a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def zip_of_package() -> str | None:
    """Return the zip that this package was imported from; None for a directory."""
    place = Path(__file__).parents[1]
    return str(place) if place.is_file() else None


def reduced(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the result of `__reduce__` for an object created by `function(*arguments)`.

    The pickle first adds the zip that this package was imported from, if any, to the reader's path. A missing zip is
    ignored.
    """
    place = zip_of_package()
    if place is None:
        return function, arguments
    # The parts of a tuple are unpickled in order, and only need names of Python and Spark.
    return operator.itemgetter(1), ((_Call(add_path, place), _Call(function, *arguments)),)
