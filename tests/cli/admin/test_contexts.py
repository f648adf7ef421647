from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.authority import Authority
from tests.cli.conftest import Cli
from tests.private_files import keep_private

PAGE = Path(__file__).parents[3] / "docs" / "contexts.md"
SECRET = "tlk_0123456789abcdef_secret"


@pytest.fixture
def named(cli: Cli, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command without an address, with contexts of its own."""
    monkeypatch.delenv("TIDELOG_BOOTSTRAP")
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "contexts.json"))
    assert cli("context", "add", "here", "--bootstrap", node).code == 0
    return cli


def test_commands_use_the_current_context_or_the_one_that_is_named(named: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named("context", "add", "nowhere", "--bootstrap", "127.0.0.1:1, 127.0.0.1:2").code == 0
    assert named("topic", "list").code == 0
    refused = named("--context", "nowhere", "topic", "list")
    assert refused.code != 0
    assert "127.0.0.1:1" in refused.err
    assert named("--context=here", "topic", "list").code == 0
    assert named("context", "use", "nowhere").code == 0
    assert named("topic", "list").code != 0
    monkeypatch.setenv("TIDELOG_CONTEXT", "here")
    assert named("topic", "list").code == 0
    monkeypatch.delenv("TIDELOG_CONTEXT")


def test_an_address_goes_before_contexts_and_takes_no_credentials_along(named: Cli, node: str) -> None:
    assert named("context", "add", "nowhere", "--bootstrap", "127.0.0.1:1", "--use").code == 0
    assert named("topic", "list", "--bootstrap", node).code == 0
    assert named("--context", "nowhere", "topic", "list", "--bootstrap", node).code == 0


def test_contexts_are_listed_without_their_keys_and_removed(named: Cli, tmp_path: Path) -> None:
    file = tmp_path / "ann.key"
    keep_private(file, SECRET)
    added = named("context", "add", "filed", "--bootstrap", "a:1,b:2", "--api-key-file", str(file))
    assert added.code == 0
    assert "stored in" in added.out
    token = tmp_path / "token"
    keep_private(token, "a.b.c")
    named("context", "add", "bearer", "--bootstrap", "a:1", "--token-file", str(token))
    assert str(token) in named("context", "list").out
    named("context", "remove", "bearer")
    assert (
        "only one of"
        in named(
            *("context", "add", "x", "--bootstrap", "a:1", "--token-file", str(token)), *("--api-key-file", str(file))
        ).err
    )
    kept = named("context", "add", "kept", "--bootstrap", "a:1", "--api-key-file", "-", stdin=SECRET.encode())
    assert kept.code == 0
    shown = named("context", "list")
    assert "ann.key" in shown.out
    listed = json.loads(named("context", "list", "--json").out)
    assert [(each["name"], each["current"]) for each in listed] == [("filed", False), ("here", True), ("kept", False)]
    assert listed[0]["bootstrap"] == ["a:1", "b:2"]
    assert listed[2]["credentials"] == "an API key"
    assert SECRET not in added.out + kept.out + shown.out + json.dumps(listed)
    assert named("context", "remove", "kept").code == 0
    assert "kept" not in named("context", "list").out


def test_lists_of_revoked_certificates_are_looked_at_when_they_are_named(named: Cli, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    adding = ("context", "add", "listed", "--bootstrap", "a:1", "--ca-file", str(authority.ca), "--crl-file")
    refused = named(*adding, str(authority.ca))
    assert refused.code != 0
    assert "contains CERTIFICATE; it may only contain certificate revocation lists" in refused.err
    assert "is not a valid path" in named(*adding, "~nobody-of-this-name/crl.pem").err
    assert named(*adding, str(authority.revoke())).code == 0
    (listed,) = (each for each in json.loads(named("context", "list", "--json").out) if each["name"] == "listed")
    assert listed["tls"]


def test_invalid_context_is_refused_and_not_stored(named: Cli, tmp_path: Path) -> None:
    assert "already" in named("context", "add", "here", "--bootstrap", "a:1").err
    assert named("context", "add", "here", "--bootstrap", "a:1", "--replace").code == 0
    assert (
        "cannot read the API key"
        in named("context", "add", "x", "--bootstrap", "a:1", "--api-key-file", str(tmp_path / "none")).err
    )
    added = named("context", "add", "x", "--bootstrap", "a:1", "--api-key-file", "-")
    assert "standard input has no API key" in added.err
    assert "context 'y' does not exist" in named("context", "use", "y").err
    assert "context 'y' does not exist" in named("--context", "y", "topic", "list").err
    assert [each["name"] for each in json.loads(named("context", "list", "--json").out)] == ["here"]


def test_the_lines_of_the_page(named: Cli, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_private(tmp_path / "billing.key", SECRET)
    (block,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert named("context", "remove", "here").code == 0
    for line in block.strip().splitlines():
        here = re.sub(r"127\.0\.0\.1:7400|log1:7400,log2:7400,log3:7400", node, line)
        ended = named(*shlex.split(here)[1:])
        assert ended.code == 0, (line, ended.err)
        if line.startswith("tidelog context list"):
            assert "billing.key" in ended.out
