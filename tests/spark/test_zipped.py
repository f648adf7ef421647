from __future__ import annotations

import importlib
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidelog import DefaultSource, zipped

MODULE = "only_in_a_zip"


class Carried:
    """Is pickled as a `Thing` of a module in a zip."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __reduce__(self) -> Any:
        return zipped.reduced(self._thing, 7)


@pytest.mark.parametrize("names_zip", [False, True])
def test_a_pickle_that_names_its_zip_is_read_where_the_zip_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, names_zip: bool
) -> None:
    place = tmp_path / "carried.zip"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr(
            f"{MODULE}.py", "class Thing:\n    def __init__(self, number):\n        self.number = number\n"
        )
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    monkeypatch.setattr(zipped, "zip_of_package", lambda: str(place) if names_zip else None)
    data = pickle.dumps(Carried(importlib.import_module(MODULE).Thing))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(place)])
    monkeypatch.delitem(sys.modules, MODULE)
    if names_zip:
        assert pickle.loads(data).number == 7
        assert str(place) in sys.path
        monkeypatch.delitem(sys.modules, MODULE)
    else:
        with pytest.raises(ModuleNotFoundError):
            pickle.loads(data)


def test_a_source_from_a_directory_travels_with_its_options_alone() -> None:
    assert zipped.zip_of_package() is None
    data = pickle.dumps(DefaultSource({"bootstrap": "a:1"}))
    assert pickle.loads(data).options == {"bootstrap": "a:1"}
    assert b"add_path" not in data
