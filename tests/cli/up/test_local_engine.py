from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.sync import Client
from tidelog_cli.base import extras
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.local_engine import check_engine, engine_variables

DEFAULT = "TIDELOG_NODE_ENGINE_DEFAULT"
PRESET = "TIDELOG_NODE_ROCKSDB_PRESET"


def test_rocksdb_is_the_form_for_a_device() -> None:
    assert engine_variables("", {PRESET: "large"}) == {}
    assert engine_variables("memory", {}) == {DEFAULT: "memory"}
    assert engine_variables("rocksdb", {}) == {
        DEFAULT: "rocksdb",
        PRESET: "small",
        "TIDELOG_NODE_OFFSETS_PARTITIONS": "1",
    }
    assert engine_variables("rocksdb", {PRESET: "large"})[PRESET] == "large"


@pytest.mark.parametrize(
    ("engine", "nodes", "why"),
    [
        ("Rocks", 1, "is the name of an engine, such as segment, memory or rocksdb, got 'Rocks'"),
        ("rocksdb", 3, "engine rocksdb stores one copy of each partition"),
    ],
)
def test_engine_that_cannot_be_used_is_refused(engine: str, nodes: int, why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        check_engine(engine, nodes)


def test_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(CommandFailed, match=r"'rocksdict'.*pip install 'tidelog\[rocksdb\]'"):
        check_engine("rocksdb", 1)
    check_engine("memory", 1)


@pytest.mark.e2e
def test_new_topics_use_the_engine_also_after_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ports = ["--port", "0", "--management-port", "0", "--http-port", "0"]
    for number, options in enumerate((["--engine", "rocksdb"], [])):
        command = [sys.executable, "-m", "tidelog_cli", "up", "--data", str(data), *ports, *options, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                ready = json.loads(process.stdout.readline())
                with Client(ready["bootstrap"]) as client:
                    client.create_topic(f"t{number}")
                    with client.producer(f"t{number}") as producer:
                        producer.send(b"value", key=b"key")
                    assert client.topic(f"t{number}").engine == "rocksdb"
                    assert [value for one in client.fetch("t0", 0, 0).batches for value in one.values()] == [b"value"]
            finally:
                process.terminate()
                process.wait(60)
    assert not list(data.glob("partitions/t*/**/*.seg"))
    (path,) = (data / "engines" / "rocksdb" / "options").glob("*")
    assert "max_total_wal_size=4194304" in path.read_text()
