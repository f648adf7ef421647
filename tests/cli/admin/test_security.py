from __future__ import annotations

import json
import os
import resource
import stat
from pathlib import Path

from tests.cli.conftest import Cli

from tidelog_proto.auth.api_key import parse_key


def test_a_key_is_made_shown_once_listed_and_revoked(cli: Cli) -> None:
    made = cli("key", "create", "ann", "--role", "etl", "--days", 3, "--note", "of a test")
    assert made.code == 0
    key_id = parse_key(made.out.strip()).key_id
    (found,) = [key for key in json.loads(cli("key", "list", "--json").out) if key["key_id"] == key_id]
    assert (found["principal"], found["roles"], found["note"]) == ("ann", ["etl"], "of a test")
    listed = cli("key", "list").out
    assert key_id in listed
    assert made.out.strip() not in listed
    assert cli("key", "revoke", key_id).code == 0
    assert key_id not in cli("key", "list").out


def test_key_is_written_to_a_new_file_with_mode_600(cli: Cli, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kept = cli("key", "create", "ann", "--out", str(tmp_path / "ann.key"))
        as_json = cli("key", "create", "ann", "--json", "--out", str(tmp_path / "two.key"))
        new = cli("key", "new", "--out", str(tmp_path / "admin.key"))
    finally:
        os.umask(before)
    keys = [(tmp_path / name).read_text().strip() for name in ("ann.key", "two.key", "admin.key")]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.glob("*.key"))
    assert kept.out == f"wrote the key {parse_key(keys[0]).key_id} of ann to {tmp_path / 'ann.key'}\n"
    assert json.loads(as_json.out)["key_id"] == parse_key(keys[1]).key_id
    assert not any(key in result.out + result.err for key in keys for result in (kept, as_json, new))
    taken = cli("key", "create", "ann", "--out", str(tmp_path / "ann.key"))
    assert (taken.code, "File exists" in taken.err) == (2, True)
    assert (tmp_path / "ann.key").read_text().strip() == keys[0]
    assert len([key for key in json.loads(cli("key", "list", "--json").out) if key["principal"] == "ann"]) == 2
    refused = cli("key", "create", "", "--out", str(tmp_path / "none.key"))
    assert refused.code != 0
    assert not (tmp_path / "none.key").exists()
    for key in keys[:2]:
        cli("key", "revoke", parse_key(key).key_id)


def test_a_key_that_cannot_be_kept_is_named_so_that_it_can_be_revoked(cli: Cli, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))  # as on a disk that is full
    try:
        failed = cli("key", "create", "bob", "--out", str(tmp_path / "bob.key"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (made,) = [key for key in json.loads(cli("key", "list", "--json").out) if key["principal"] == "bob"]
    assert failed.code == 1
    assert f"File too large; revoke it: tidelog key revoke {made['key_id']}" in failed.err
    assert not (tmp_path / "bob.key").exists()
    assert cli("key", "revoke", made["key_id"]).code == 0


def test_a_key_for_the_nodes_file_is_made_without_a_node(cli: Cli) -> None:
    one, another = cli("key", "new"), cli("key", "new")
    assert parse_key(one.out.strip()) != parse_key(another.out.strip())
    assert "admin_key_file" in one.err


def test_rules_are_granted_tested_and_revoked(cli: Cli) -> None:
    granted = cli("acl", "grant", "ann", "produce,consume", "topic:in-*")
    rule = granted.out.strip()
    assert granted.code == 0
    assert granted.err == f"ann may produce, consume topic:in-*; remove the rule with: tidelog acl revoke {rule}\n"
    allowed = cli("acl", "test", "ann", "consume", "topic:in-1")
    assert (allowed.code, allowed.out) == (
        0,
        f"allowed: consume on the topic 'in-1': rule {rule} (ann may produce, consume topic:in-*)\n",
    )
    refused = cli("acl", "test", "ann", "delete", "topic:in-1")
    assert (refused.code, "denied" in refused.out) == (1, True)
    assert cli("acl", "grant", "role:guest", "all", "topic:in-1", "--deny").code == 0
    assert cli("acl", "test", "ann", "consume", "topic:in-1", "--role", "guest").code == 1
    assert "topic:in-*" in cli("acl", "list").out
    assert rule in {found["rule_id"] for found in json.loads(cli("acl", "list", "--json").out)}
    assert cli("acl", "revoke", rule).code == 0
    assert cli("acl", "test", "ann", "consume", "topic:in-1").code == 1


def test_unknown_resource_or_operation_is_refused(cli: Cli) -> None:
    for arguments in (("topic",), ("topics:a",), ("cluster:a",)):
        refused = cli("acl", "grant", "ann", "produce", *arguments)
        assert (refused.code, "is not a resource" in refused.err) == (2, True)
    assert "operations: produce" in cli("acl", "grant", "ann", "read", "topic:a").err
    assert cli("acl", "test", "ann", "all", "topic:a").code == 2
    assert "does not exist" in cli("key", "revoke", "none").err
