from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli
from tests.private_files import keep_private


def test_user_is_created_listed_and_deleted_and_the_password_is_not_an_argument(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "password"
    keep_private(file, "long enough\n")
    made = cli("user", "create", "dora", "--role", "etl", "--password-file", str(file))
    assert (made.code, made.out) == (0, "created user dora\n")
    (found,) = [user for user in json.loads(cli("user", "list", "--json").out) if user["name"] == "dora"]
    assert found["roles"] == ["etl"]
    assert "dora" in cli("user", "list").out
    changed = cli("user", "password", "dora", "--password-file", "-", stdin=b"another one\n")
    assert (changed.code, "dora" in changed.out) == (0, True)
    assert cli("user", "delete", "dora").code == 0
    assert "dora" not in cli("user", "list").out
    assert "does not exist" in cli("user", "delete", "dora").err
    assert "no terminal" in cli("user", "create", "dora").err
    assert "the password is empty" in cli("user", "create", "dora", "--password-file", "-", stdin=b"\n").err
    assert cli("user", "create", "dora", "--password", "x").code == 2
