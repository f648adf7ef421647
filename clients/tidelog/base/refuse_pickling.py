"""Refusal to pickle clients, with an error that names the alternative."""

from __future__ import annotations

import copyreg
from typing import Any, NoReturn


def refuse_to_pickle(*classes: type[Any]) -> None:
    """Make `pickle`, `cloudpickle` and `copy` raise a TypeError for instances of these classes."""
    for each in classes:
        copyreg.pickle(each, _refuse)


def _refuse(thing: object) -> NoReturn:
    name = f"{type(thing).__module__}.{type(thing).__qualname__}"
    raise TypeError(
        f"a {name} cannot be pickled or copied: its connections belong to this process; create one where it is used, "
        "such as in the function that a worker process runs (in Spark inside foreachPartition, or use the data source "
        '"tidelog")'
    )
