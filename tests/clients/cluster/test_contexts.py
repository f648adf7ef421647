from __future__ import annotations

import json
import multiprocessing
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.private_files import keep_private

from tidelog import Client
from tidelog import sync as blocking
from tidelog.cluster.contexts import (
    CONTEXTS_MAX,
    FILE_BYTES_MAX,
    Context,
    Contexts,
    change_contexts,
    contexts_path,
    find_context,
    read_contexts,
    require_context,
    using,
    with_context,
    without_context,
)
from tidelog.credentials import ApiKeyFile, TokenFile
from tidelog.errors import InvalidRequestError, NodeUnreachableError
from tidelog.tls import Tls

PROD = Context(("a:1", "b:2"), api_key="tlk_secret")


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TIDELOG_CONTEXT", raising=False)
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "config" / "contexts.json"))
    return contexts_path()


def add(name: str, context: Context = PROD, *, instead: bool = False, use: bool = False) -> Contexts:
    return change_contexts(lambda contexts: with_context(contexts, name, context, instead=instead, use=use))


def test_contexts_file_is_readable_by_its_owner_only(path: Path) -> None:
    assert read_contexts() == Contexts()
    assert find_context() is None
    add("prod")
    add("lab", Context(("c:3",), api_key_file="/keys/lab"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    kept = read_contexts()
    assert kept == Contexts({"lab": Context(("c:3",), api_key_file="/keys/lab"), "prod": PROD}, "prod")
    assert list(path.parent.iterdir()) == [path]
    assert "secret" not in repr(kept)


def test_first_context_is_current_until_another_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    add("prod")
    lab = Context(("c:3",))
    assert add("lab", lab).current == "prod"
    assert find_context() == PROD
    assert find_context("lab") == lab
    monkeypatch.setenv("TIDELOG_CONTEXT", "lab")
    assert find_context() == lab
    monkeypatch.delenv("TIDELOG_CONTEXT")
    change_contexts(lambda contexts: using(contexts, "lab"))
    assert require_context() == lab
    assert add("new", lab, use=True).current == "new"
    assert change_contexts(lambda contexts: without_context(contexts, "new")).current is None
    with pytest.raises(InvalidRequestError, match="no cluster is selected: pass bootstrap= to Client"):
        require_context()


def test_existing_name_is_refused_unless_replaced() -> None:
    add("prod")
    with pytest.raises(InvalidRequestError, match="already"):
        add("prod")
    other = Context(("c:3",))
    assert add("prod", other, instead=True).by_name["prod"] == other


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "é", "x" * 65, "a\nb"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="invalid context name"):
        add(name)


def test_unknown_name_error_lists_known_names() -> None:
    add("prod")
    for ask in (find_context, lambda name: using(read_contexts(), name), lambda name: without_context(PRODS, name)):
        with pytest.raises(InvalidRequestError, match="known contexts: prod"):
            ask("prd")


PRODS = Contexts({"prod": PROD}, "prod")


@pytest.mark.parametrize(
    "arguments",
    [
        {"bootstrap": ()},
        {"bootstrap": ("no port",)},
        {"bootstrap": ("a:1",), "api_key": "k", "api_key_file": "/k"},
        {"bootstrap": ("a:1",), "api_key_file": "relative"},
    ],
)
def test_invalid_context_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Context(**arguments)


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


WHOLE: dict[str, Any] = {"format_version": 1, "current": "a", "contexts": {"a": {"bootstrap": ["h:1"]}}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "\0",
        "[" * 100_000,
        json.dumps(WHOLE | {"format_version": 2}),
        json.dumps(WHOLE | {"current": 1}),
        json.dumps(WHOLE | {"contexts": []}),
        json.dumps(WHOLE | {"contexts": {"a": []}}),
        json.dumps(WHOLE | {"contexts": {"a": {"bootstrap": "h:1"}}}),
        json.dumps(WHOLE | {"contexts": {"a": {"bootstrap": [1]}}}),
        json.dumps(WHOLE | {"contexts": {"a": {"bootstrap": ["h:1"], "pinned": "yes"}}}),
        json.dumps(WHOLE | {"contexts": {"a": {"bootstrap": ["h:1"], "api_key": 1}}}),
        " " * (FILE_BYTES_MAX + 1),
    ],
)
def test_malformed_file_is_reported_and_kept(path: Path, text: str) -> None:
    write(path, text)
    with pytest.raises(InvalidRequestError, match=r"contexts\.json"):
        read_contexts()
    with pytest.raises(InvalidRequestError):
        add("prod")
    assert path.read_text() == text


def test_file_readable_by_others_is_refused(path: Path) -> None:
    write(path, json.dumps(WHOLE))
    assert find_context() == Context(("h:1",))
    path.chmod(0o640)
    with pytest.raises(InvalidRequestError, match="chmod 600"):
        find_context()


def test_missing_current_context_is_reported(path: Path) -> None:
    write(path, json.dumps(WHOLE | {"current": "b"}))
    with pytest.raises(InvalidRequestError, match="context 'b' does not exist"):
        find_context()


def test_number_of_contexts_is_limited() -> None:
    many = {f"c{number}": Context(("a:1",)) for number in range(CONTEXTS_MAX)}
    change_contexts(lambda _: Contexts(many, "c1"))
    with pytest.raises(InvalidRequestError, match="context remove"):
        add("prod")


def test_unwritable_directory_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    (path.parent / "file").write_text("")
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(path.parent / "file" / "contexts.json"))
    with pytest.raises(InvalidRequestError, match="cannot"):
        add("prod")


def _add_some(first: int) -> None:
    for number in range(first, first + 10):
        add(f"c{number}")


def test_concurrent_changes_are_all_stored() -> None:
    spawning = multiprocessing.get_context("fork")
    writers = [spawning.Process(target=_add_some, args=(first,)) for first in (0, 10, 20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert set(read_contexts().by_name) == {f"c{number}" for number in range(30)}


def test_path_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDELOG_CONTEXTS")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert contexts_path() == Path("/config/tidelog/contexts.json")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert contexts_path() == Path("/home/ann/.config/tidelog/contexts.json")


def test_client_arguments_override_the_context(tmp_path: Path) -> None:
    assert PROD.with_options({}) == {"credentials": "tlk_secret", "tls": None}
    assert PROD.with_options({"api_key": "other", "zone": "z"}) == {"api_key": "other", "tls": None, "zone": "z"}
    file = tmp_path / "key"
    keep_private(file, "tlk_of_file\n")
    given = Context(("a:1",), api_key_file=str(file)).credentials()
    assert isinstance(given, ApiKeyFile)
    assert given() == "tlk_of_file"
    assert Context(("a:1",)).credentials() is None
    token = Context(("a:1",), token_file="/tokens/lab")
    assert isinstance(token.credentials(), TokenFile)
    assert token.with_options({"api_key": "other"}) == {"api_key": "other", "tls": None}
    with pytest.raises(InvalidRequestError, match="only one of"):
        Context(("a:1",), api_key="tlk_secret", token_file="/tokens/lab")
    with pytest.raises(InvalidRequestError, match="absolute"):
        Context(("a:1",), token_file="tokens/lab")


def test_context_determines_encryption() -> None:
    assert Context(("a:1",)).encryption() is None, "the environment decides"
    assert Context(("a:1",), tls=True).encryption() == Tls()
    filed = Context(("a:1",), ca_file="/ca.pem", cert_file="/c.pem", key_file="/c.key", crl_file="/crl.pem")
    add("filed", filed)
    assert require_context("filed") == filed
    assert filed.with_options({}).get("tls") == Tls("/ca.pem", "/c.pem", "/c.key", crl_file="/crl.pem")
    assert Context(("a:1",), crl_file="/crl.pem").encryption() == Tls(crl_file="/crl.pem"), "implies TLS"
    with pytest.raises(InvalidRequestError, match="must be absolute"):
        Context(("a:1",), ca_file="ca.pem")
    with pytest.raises(InvalidRequestError, match="must be absolute"):
        Context(("a:1",), crl_file="crl.pem")
    with pytest.raises(InvalidRequestError, match="key_file needs cert_file"):
        Context(("a:1",), key_file="/c.key")
    contexts_path().write_text(contexts_path().read_text().replace('"ca_file": "/ca.pem"', '"tls": "yes"'))
    with pytest.raises(InvalidRequestError, match="`tls` must be true or false"):
        read_contexts()


async def test_both_clients_connect_to_the_context() -> None:
    add("nobody", Context(("127.0.0.1:1",)))
    async with Client.from_context("nobody", request_timeout_s=1) as client:
        with pytest.raises(NodeUnreachableError, match=r"127\.0\.0\.1:1"):
            await client.connect()
    with blocking.Client.from_context(request_timeout_s=1) as client, pytest.raises(NodeUnreachableError):
        client.connect()
    with pytest.raises(InvalidRequestError, match="context 'other' does not exist"):
        Client.from_context("other")
