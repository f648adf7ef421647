from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.auth.authentication_exchange import SecretFile
from tidelog.errors import InvalidRequestError


def test_secret_is_read_each_time_with_fallback_while_file_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_text(" one\n")
    file = SecretFile(path, "password", 100)
    assert file.text() == "one"
    kept = file.carried()
    path.write_text("two")
    assert (file.text(), kept.text()) == ("two", "two")
    path.write_text("")
    assert (file.text(), kept.text()) == ("", "one")
    path.write_text("open")
    path.chmod(0o644)
    assert kept.text() == "one"
    for act in (file.text, file.carried):
        with pytest.raises(
            InvalidRequestError, match=rf"may read the password in {path} \(mode 644\): chmod 600 {path}"
        ):
            act()
    path.unlink()
    assert kept.text() == "one"
    assert "one" not in repr(kept)
    for act in (file.text, file.carried):
        with pytest.raises(InvalidRequestError, match="cannot read the password"):
            act()
