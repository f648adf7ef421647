"""Credentials and addresses of a query's tasks, from options, a context and the environment."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from pathlib import Path

import pytest
from tests.authority import Authority
from tests.private_files import keep_private

from pyspark_tidelog.access import Access, access_of
from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.options import parse_options
from pyspark_tidelog.write_options import parse_write_options
from tidelog.cluster.contexts import Context, Contexts, change_contexts
from tidelog.credentials import showing
from tidelog.tls import Tls, Trust
from tidelog_proto import broker_pb2 as pb

HERE = {"bootstrap": "a:1"}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "API_KEY",
        "API_KEY_FILE",
        "TOKEN_FILE",
        "USER",
        "PASSWORD_FILE",
        "TLS",
        "CA_FILE",
        "CERT_FILE",
        "CRL_FILE",
    ):
        monkeypatch.delenv(f"TIDELOG_{name}", raising=False)
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "contexts.json"))


def keep(name: str, context: Context) -> None:
    change_contexts(lambda contexts: Contexts({**contexts.by_name, name: context}, None))


def refused(**options: str) -> str:
    with pytest.raises(OptionError) as caught:
        access_of({**HERE, **options})
    return str(caught.value)


def shown(access: Access) -> pb.Credentials:
    """Return what a task's greeting carries, after the way to it."""
    travelled: Access = pickle.loads(pickle.dumps(access))
    return asyncio.run(showing(None, travelled.credentials).shown()).credentials


def test_file_content_is_carried_and_the_file_is_tried_first(tmp_path: Path) -> None:
    for option, kind in (("apiKeyFile", "api_key"), ("tokenFile", "token")):
        file = tmp_path / option
        keep_private(file, "first-secret\n")
        access = access_of({**HERE, option: str(file)})
        assert "secret" not in repr(access)
        file.write_text("second-secret")
        assert getattr(shown(access), kind) == "second-secret", "renewed credentials are used"
        file.write_text("")
        assert getattr(shown(access), kind) == "first-secret", "it is just being written"
        file.unlink()
        assert getattr(shown(access), kind) == "first-secret"
        assert f"cannot read the {option[:3]}"[:15] in refused(**{option: str(file)})


def test_a_password_is_carried_and_proven(tmp_path: Path) -> None:
    file = tmp_path / "password"
    keep_private(file, "correct horse")
    access = access_of({**HERE, "user": "ann", "passwordFile": str(file)})
    file.unlink()
    assert shown(access).scram.startswith("n,,n=ann,")
    assert "horse" not in repr(access)
    assert "must be given together" in refused(user="ann")
    assert "must be given together" in refused(passwordFile=str(file))


def test_the_context_says_what_options_leave_out_and_the_environment_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep("prod", Context(("a:1", "b:2"), api_key="tlk_secret"))
    found = access_of({"context": "prod"})
    assert (found.bootstrap, shown(found).api_key) == (("a:1", "b:2"), "tlk_secret")
    assert "secret" not in repr(found)
    token = tmp_path / "token"
    keep_private(token, "a.b.c")
    keep("bearer", Context(("a:1",), token_file=str(token)))
    assert shown(access_of({"context": "bearer"})).token == "a.b.c"
    own = tmp_path / "own"
    keep_private(own, "tlk_own")
    assert shown(access_of({"context": "bearer", "apiKeyFile": str(own)})).api_key == "tlk_own"
    assert "give one of them" in refused(context="prod")
    with pytest.raises(OptionError, match="context 'prd' does not exist"):
        access_of({"context": "prd"})
    assert access_of(HERE).credentials is None, "that of the task's environment counts"
    monkeypatch.setenv("TIDELOG_TOKEN_FILE", str(token))
    assert shown(access_of(HERE)).token == "a.b.c"
    monkeypatch.setenv("TIDELOG_API_KEY", "tlk_of_environment")
    assert shown(access_of(HERE)).api_key == "tlk_of_environment"


def test_certificates_travel_as_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.files("client", "job")
    crl = authority.revoke()
    given = {"caFile": str(files.ca), "certFile": str(files.cert), "keyFile": str(files.key), "crlFile": str(crl)}
    access = access_of({**HERE, **given})
    assert "PRIVATE" not in repr(access)
    for path in (files.ca, files.cert, files.key, crl):
        assert path is not None
        path.unlink()
    travelled: Access = pickle.loads(pickle.dumps(access))
    context = Trust(travelled.tls)()
    assert context is not None
    assert context.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF
    assert "cannot read the CA" in refused(**given)
    assert "requires 'certFile'" in refused(keyFile="/k")
    assert "omit one or the other" in refused(tls="false", caFile="/ca")
    monkeypatch.setenv("TIDELOG_CA_FILE", str(tmp_path / "nothing"))
    assert access_of({**HERE, "tls": "false"}).tls is None
    monkeypatch.delenv("TIDELOG_CA_FILE")
    assert access_of(HERE).tls is None
    assert access_of({**HERE, "tls": "true"}).tls == Tls(), "the CAs of the system"
    ca = tmp_path / "ca.pem"
    ca.write_text("the CA")
    keep("tls", Context(("a:1",), ca_file=str(ca)))
    for more in ({}, {"tls": "true"}):
        assert access_of({"context": "tls", **more}).tls == Tls(ca_pem="the CA")


def test_invalid_path_is_reported() -> None:
    assert "not a valid path" in refused(tokenFile="/a\0b")
    assert "not a valid path" in refused(caFile="~nobody-of-that-name/ca.pem")


def test_two_ways_to_say_who_asks_are_one_too_many() -> None:
    assert "'apiKeyFile' and 'tokenFile'" in refused(apiKeyFile="/a", tokenFile="/b")
    assert "'tokenFile' and 'user'" in refused(tokenFile="/b", user="ann", passwordFile="/c")


@pytest.mark.parametrize(
    ("option", "instead"), [("apiKey", "apiKeyFile"), ("TOKEN", "tokenFile"), ("password", "passwordFile")]
)
def test_secret_is_not_an_option(option: str, instead: str) -> None:
    for parse in (parse_options, parse_write_options):
        with pytest.raises(OptionError) as caught:
            parse({**HERE, "subscribe": "t", option: "hush"})
        assert instead in str(caught.value)
        assert "hush" not in str(caught.value)
