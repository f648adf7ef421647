from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.credentials import ApiKeyFile, asked_each_time
from tidelog.errors import InvalidRequestError


def test_a_key_in_a_file_is_read_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("one\n")
    asked = asked_each_time(ApiKeyFile(path))
    assert asked() == "one"
    path.write_text("two")
    assert asked() == "two"
    path.unlink()
    with pytest.raises(InvalidRequestError, match="cannot read the API key"):
        asked()


def test_what_is_given_goes_before_the_environment_and_a_file_before_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDELOG_API_KEY", raising=False)
    monkeypatch.delenv("TIDELOG_API_KEY_FILE", raising=False)
    assert asked_each_time(None)() == ""
    monkeypatch.setenv("TIDELOG_API_KEY", "variable")
    assert asked_each_time(None)() == "variable"
    path = tmp_path / "key"
    path.write_text("file")
    monkeypatch.setenv("TIDELOG_API_KEY_FILE", str(path))
    assert asked_each_time(None)() == "file"
    assert asked_each_time("given")() == "given"
