from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_broker.base.secret_file import SecretFile, read_secrets
from tidelog_proto.process.settings import SettingsError

OLD, NEW = b"0123456789abcdef", b"fedcba9876543210"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(OLD + b"\n")
    return path


def test_secret_must_exist_be_long_enough_and_private(tmp_path: Path, secret: Path) -> None:
    assert tuple(read_secrets(secret)) == (OLD,)
    with pytest.raises(SettingsError, match="--secret-file"):
        read_secrets(None)
    with pytest.raises(SettingsError, match="cannot read"):
        read_secrets(tmp_path / "none")
    for mode in (0o644, 0o602):
        secret.chmod(mode)
        with pytest.raises(
            SettingsError, match=rf"the cluster's secret in {secret} \(mode {mode:o}\): chmod 600 {secret}"
        ):
            read_secrets(secret)
    secret.chmod(0o640)
    assert tuple(read_secrets(secret)) == (OLD,)
    secret.write_text("short\n")
    with pytest.raises(SettingsError, match="got 5"):
        read_secrets(secret)


def test_at_most_two_secrets_are_valid(secret: Path) -> None:
    secret.write_bytes(OLD + b"\n\n  " + NEW + b"\r\n")
    assert tuple(read_secrets(secret)) == (OLD, NEW)
    secret.write_bytes(b"\n".join([OLD, NEW, OLD]))
    with pytest.raises(SettingsError, match="got 3 lines"):
        read_secrets(secret)
    secret.write_bytes(OLD + b"\nshort")
    with pytest.raises(SettingsError, match="got 5"):
        read_secrets(secret)
    any_bytes = b"\xff\x00 and \n is one of them"
    secret.write_bytes(any_bytes)
    assert tuple(read_secrets(secret)) == (any_bytes,)


def test_changed_secret_file_is_reloaded_and_an_invalid_one_ignored(
    secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = read_secrets(secret)
    file = SecretFile(secret, secrets)
    assert file.look() is None
    secret.write_bytes(b"slip")
    assert [file.look(), file.look()] == [None, None]
    assert len(caplog.messages) == 1, "the fault is logged once"
    secret.write_bytes(OLD + b"\n" + NEW)
    found = file.look()
    assert found is not None
    assert found == (OLD, NEW)
    assert secrets.replace(found)
    assert file.look() is None
    assert OLD.decode() not in caplog.text
