from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_broker.metadata.admin_keys import FILE_IDENTITY_PREFIX, AdminKeys, read_admin_keys
from tidelog_proto.process.settings import SettingsError

KEY = "tlk_abcdefghij234567_" + "s" * 43


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_text(text)
    return path


def test_admin_keys_are_read_from_a_private_file(tmp_path: Path) -> None:
    assert read_admin_keys(None) == []
    path = written(tmp_path / "keys", f"# ours\n\n{KEY}\n  {KEY.replace('abc', 'bcd')}\n")
    assert [key.key_id for key in read_admin_keys(path)] == ["abcdefghij234567", "bcddefghij234567"]


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [(KEY, 0o640, "chmod 600"), (KEY, 0o604, "chmod 600"), ("", 0o600, "contains no API key"), ("x", 0o600, "line 1")],
)
def test_invalid_file_is_refused_with_a_remedy(tmp_path: Path, text: str, mode: int, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        read_admin_keys(written(tmp_path / "keys", text, mode))
    with pytest.raises(SettingsError, match="cannot read"):
        read_admin_keys(tmp_path / "none")


def test_changed_file_is_reloaded_and_an_invalid_one_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "keys", KEY)
    keys = AdminKeys(path)
    assert keys.secret_of("abcdefghij234567") == "s" * 43
    assert not keys.look()
    for text, mode in (("", 0o600), (KEY, 0o644), ("garbage", 0o600)):
        written(path, text, mode)
        caplog.clear()
        assert [keys.look(), keys.look()] == [False, False]
        assert len(caplog.messages) == 1, "the fault is logged once"
        assert not keys.has_ended(FILE_IDENTITY_PREFIX + "abcdefghij234567")
    written(path, KEY.replace("abc", "bcd"))
    assert keys.look()
    assert keys.secret_of("abcdefghij234567") is None
    assert keys.has_ended(FILE_IDENTITY_PREFIX + "abcdefghij234567")
    assert not keys.has_ended(FILE_IDENTITY_PREFIX + "bcddefghij234567")
    assert not keys.has_ended("key/abcdefghij234567"), "that is one of the cluster's"
    assert KEY not in caplog.text
