"""Spark as a surface of a secured node: each of its operations, by whom it is asked, and the whole way once."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.broker.issuer import Issuer
from tests.spark.conftest import needs_spark_4_1, started_node

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.options import parse_options
from pyspark_tidelog.source import TidelogReader
from pyspark_tidelog.stream import TidelogStreamReader
from pyspark_tidelog.write_options import parse_write_options
from pyspark_tidelog.write_task import write_rows
from tidelog.errors import ForbiddenError, UnauthenticatedError
from tidelog.produce.work import Work
from tidelog.security import AccessRule
from tidelog.sync import Client
from tidelog_cli.certs.command import new_certificate
from tidelog_cli.certs.files import CA, paths
from tidelog_cli.up.local_security import LocalSecurity, secure

PASSWORD = "correct horse battery"
SCHEMA = pa.schema([pa.field("value", pa.binary())])


@dataclass(frozen=True)
class Secured:
    """A node that speaks TLS and asks who calls."""

    address: str
    files: LocalSecurity
    directory: Path
    issuer: Issuer

    def admin(self) -> Client:
        return Client(self.address, **self.files.client_options(self.address))

    @property
    def to_node(self) -> dict[str, str]:
        """The options of everybody."""
        return {"bootstrap": self.address, "caFile": str(paths(self.files.certs, CA)[0])}

    def kept(self, name: str, secret: str) -> str:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(secret)
        return str(path)

    def certificate(self, principal: str) -> dict[str, str]:
        new_certificate(self.files.certs, "client", principal, (), days=1, replace=True)
        cert, key = paths(self.files.certs, principal)
        return {"certFile": str(cert), "keyFile": str(key)}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    files = secure(directory, ["node"])
    issuer = Issuer()
    tokens = issuer.settings(issuer.save(directory / "jwks"))
    config = files.certs / "node.toml"
    told = "".join(f"{name} = {value!r}\n" for name, value in tokens.items())
    config.write_text(config.read_text() + told)
    with ExitStack() as stack:
        node = stack.enter_context(started_node(directory / "node", *files.config("node")))
        secured = Secured(node.address, files, directory, issuer)
        with secured.admin() as admin:
            for name in ("in", "out"):
                admin.create_topic(name, flush="never")
            admin.producer("in").send(b"a record")
            for principal in ("key", "user", "token", "certificate"):
                admin.security.grant(AccessRule(principal, ("consume",), "topic", "in"))
                admin.security.grant(AccessRule(principal, ("produce", "consume"), "topic", "out"))
            admin.security.create_user("user", PASSWORD)
        yield secured


def plan(options: dict[str, str]) -> Any:
    return TidelogReader(parse_options({**options, "subscribe": "in"}), SCHEMA).partitions()


def read(options: dict[str, str]) -> Any:
    """Read a range that another principal has planned, in a task."""
    reader = TidelogReader(parse_options({**options, "subscribe": "in"}), SCHEMA)
    travelled: TidelogReader = pickle.loads(pickle.dumps(reader))
    return [row for batch in travelled.read(PLANNED[0]) for row in batch.column("value").to_pylist()]


def stream(options: dict[str, str]) -> Any:
    reader = TidelogStreamReader(parse_options({**options, "subscribe": "in"}, streaming=True), SCHEMA)
    try:
        return reader.initialOffset()["in"]["0"]
    finally:
        reader.stop()


def write(options: dict[str, str]) -> Any:
    told = parse_write_options({**options, "topic": "out"})
    rows = pa.record_batch({"value": pa.array([b"written"], pa.binary())})
    return asyncio.run(write_rows(iter([rows]), pickle.loads(pickle.dumps(told)), Work(f"job/{id(rows)}", 0))).rows


PLANNED: list[Any] = []
OPERATIONS: dict[str, tuple[Callable[[dict[str, str]], Any], Any]] = {
    "plan": (lambda options: len(plan(options)), 1),
    "read": (read, [b"a record"]),
    "stream": (stream, 1),
    "write": (write, 1),
}
"""A Spark operation, and its result."""


def identities(
    secured: Secured,
) -> dict[str, tuple[dict[str, str], type[Exception] | tuple[type[Exception], ...] | None]]:
    """Return each caller, its options, and the error that refuses it; None if it is accepted."""
    with secured.admin() as admin:
        keys = {name: admin.security.create_key(name) for name in ("key", "nothing")}
        gone = admin.security.create_key("key")
        admin.security.revoke_key(gone.info.key_id)
    wrong = keys["key"].api_key[:-6] + "aaaaaa"
    unknown = (ForbiddenError, OptionError)  # invisible topics are missing
    return {
        "nobody": ({}, UnauthenticatedError),
        "a wrong key": ({"apiKeyFile": secured.kept("wrong", wrong)}, UnauthenticatedError),
        "a revoked key": ({"apiKeyFile": secured.kept("gone", gone.api_key)}, UnauthenticatedError),
        "a wrong password": ({"user": "user", "passwordFile": secured.kept("w", "guessed it")}, UnauthenticatedError),
        "a forged token": (
            {"tokenFile": secured.kept("forged", Issuer().token("token"))},
            UnauthenticatedError,
        ),
        "a certificate without rules": (secured.certificate("stranger"), unknown),
        "a key without rules": ({"apiKeyFile": secured.kept("nothing", keys["nothing"].api_key)}, unknown),
        "a key": ({"apiKeyFile": secured.kept("key", keys["key"].api_key)}, None),
        "a password": ({"user": "user", "passwordFile": secured.kept("password", PASSWORD)}, None),
        "a token": ({"tokenFile": secured.kept("token", secured.issuer.token("token"))}, None),
        "a certificate": (secured.certificate("certificate"), None),
    }


def test_each_operation_without_with_wrong_revoked_and_right_credentials(secured: Secured) -> None:
    who = identities(secured)
    PLANNED[:] = plan({**secured.to_node, **who["a key"][0]})
    for name, (options, refusal) in who.items():
        for operation, (do, comes) in OPERATIONS.items():
            if refusal is None:
                assert do({**secured.to_node, **options}) == comes, (name, operation)
                continue
            with pytest.raises(refusal) as caught:
                do({**secured.to_node, **options})
            assert PASSWORD not in str(caught.value), (name, operation)


@pytest.mark.long
@pytest.mark.spark
@needs_spark_4_1
def test_the_whole_way_and_no_secret_in_plans_or_checkpoints(
    secured: Secured, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with secured.admin() as admin:
        key = admin.security.create_key("key").api_key
        admin.create_topic("copies", flush="never")
        admin.security.grant(AccessRule("user", ("produce", "consume"), "topic", "copies"))
    reading = {**secured.to_node, "apiKeyFile": secured.kept("of-spark", key), "subscribe": "in"}
    user = {"user": "user", "passwordFile": secured.kept("of-user", PASSWORD)}
    rows = spark.read.format("tidelog").options(**reading).load()
    assert [bytes(row.value) for row in rows.collect()] == [b"a record"]
    stream = spark.readStream.format("tidelog").options(**reading, startingOffsets="earliest").load()
    query = (
        stream.select("value")
        .writeStream.format("tidelog")
        .options(**secured.to_node, **user, topic="copies", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120), "the query has not ended"
    with secured.admin() as admin:
        assert admin.list_offsets("copies", "latest")[0].offset >= 1
    rows.explain(mode="extended")
    told = [capsys.readouterr().out, str(query.recentProgress), str(query.status)]
    told += [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert "Physical Plan" in told[0]
    assert len(told) > 4, "there is a checkpoint"
    for text in told:
        assert key not in text
        assert PASSWORD not in text
