"""Pickles that can be read where the connector's zip is not on the path yet.

Spark unpickles a data source on the driver's machine in a process of its own for each stream. It looks for the zips of
`--py-files` in a folder of that process that has none of them (4.0 to 4.3), so the import of this package fails there,
unless PYTHONPATH has it. Objects that are reduced here first put the zip on the path, and then import from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.worker_util import add_path


class _Call:
    """Is replaced, when a pickle is read, by what a call returns."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def zip_of_package() -> str | None:
    """Return the zip that this package was imported from; None: a directory."""
    place = Path(__file__).parents[1]
    return str(place) if place.is_file() else None


def reduced(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return what `__reduce__` returns for an object that `function` makes of `arguments`.

    The pickle first adds the zip that this package was imported from, if it was one, to the reader's path. Where there
    is no such file, that changes nothing.
    """
    place = zip_of_package()
    if place is None:
        return function, arguments
    # The parts of a tuple are unpickled in order, and these names are Python's and Spark's own.
    return operator.itemgetter(1), ((_Call(add_path, place), _Call(function, *arguments)),)
