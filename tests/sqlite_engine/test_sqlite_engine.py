"""An engine of another package passes the conformance suite, and a node finds it by its entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_crash import end, ready, start
from tests.sqlite_engine.tidelog_sqlite import SqliteEngine, SqliteStore

from tidelog.sync import Client
from tidelog.testing.engine_suite import EngineSuite
from tidelog.testing.failing_files import FailingFileSystem
from tidelog_broker.storage.engine.store import Engine, Volume

PACKAGE = Path(__file__).parent


class TestSqliteEngine(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        return SqliteEngine(volume)

    @pytest.fixture(autouse=True)
    def _unbroken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    patch: pytest.MonkeyPatch

    def break_disk(self, volume: Volume, fs: FailingFileSystem, operation: str) -> None:
        """Let COMMIT or INSERT fail as SQLite reports it, by a limit of the size of statements."""
        del volume, fs
        self.patch.undo()
        if operation:
            broken = "COMMIT" if operation == "datasync" else "INSERT"
            self.patch.setattr(SqliteStore, "change", failing(broken))


def failing(broken: str) -> object:
    plain = SqliteStore.change

    def change(store: SqliteStore, *statements: tuple[str, object], commit: bool) -> None:
        if (broken == "COMMIT" and commit) or any(broken in one for one, _ in statements):
            statements = (("INSERT INTO missing VALUES (?)", [(1,)]),)
        plain(store, *statements, commit=commit)  # type: ignore[arg-type]

    return change


@pytest.mark.e2e
def test_node_finds_the_engine_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages, data = tmp_path / "packages", tmp_path / "data"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*command, str(packages), str(PACKAGE)], check=True, capture_output=True)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    for values in ([], [b"kept"]):
        process = start(data)
        try:
            with Client(f"127.0.0.1:{ready(process)['port']}") as client:
                if not values:
                    client.create_topic("t", engine="sqlite")
                assert [one for found in client.fetch("t", 0, 0).batches for one in found.values()] == values
                if not values:
                    with client.producer("t") as producer:
                        producer.send(b"kept")
            assert end(process)[0] == 0
        finally:
            process.kill()
    assert list(data.glob("partitions/t.*/epoch-*/epoch.sqlite"))
