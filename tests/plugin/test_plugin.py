"""The fixtures in the tests of a user."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.plugin.installed import run_pytest

pytestmark = pytest.mark.e2e

BLOCKING = """
import pytest

seen = []

@pytest.mark.parametrize("turn", ["a/b", "ü"])
def test_publishes(turn, tidelog_node, tidelog_client, tidelog_topic):
    assert tidelog_client.producer(tidelog_topic).send(b"visit").offset == 0
    seen.append((tidelog_node.pid, tidelog_topic, tidelog_client))

def test_the_node_is_one_and_the_rest_is_new(tidelog_client):
    (pid, topic, client), (pid_again, other_topic, other_client) = seen
    assert pid == pid_again
    assert topic != other_topic
    assert topic.startswith("test_publishes_a_b_-")
    assert client is not other_client
    assert tidelog_client.topics() == [], "topics go with their tests"

def test_a_test_may_delete_its_topic(tidelog_client, tidelog_topic):
    tidelog_client.delete_topic(tidelog_topic)

def test_a_test_may_leave_unpublishable_records(tidelog_node, tidelog_client, tidelog_topic):
    tidelog_client.producer(tidelog_topic).enqueue(b"v").result()
    tidelog_node.kill()
    tidelog_client.producer(tidelog_topic).enqueue(b"v")

def test_a_killed_node_is_not_hidden(tidelog_topic):
    pass

def test_a_killed_node_is_started_again(tidelog_node):
    tidelog_node.restart()
    assert tidelog_node.topic()
"""

ASYNCHRONOUS = """
async def test_publishes(tidelog_node, tidelog_topic):
    async with tidelog_node.async_client() as client:
        assert (await client.producer(tidelog_topic).send(b"visit")).offset == 0
"""

UNUSED = """
import sys

def test_nothing_of_the_client_is_loaded():
    assert "tidelog_pytest.plugin" in sys.modules
    assert [name for name in sys.modules if name.partition(".")[0] in {"tidelog", "tidelog_cli", "pyarrow"}] == []
"""


def test_the_fixtures_need_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(BLOCKING)
    ran = run_pytest(tmp_path, "-p", "no:asyncio", "-W", "error", TMPDIR=str(tmp_path))
    assert "6 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert "the node was killed with `kill()`; start it again with `restart()`" in ran.stdout
    assert list(tmp_path.glob("tidelog-*")) == []


def test_tests_in_an_event_loop_create_their_own_client(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(ASYNCHRONOUS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    ran = run_pytest(tmp_path, "-W", "error")
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_a_run_without_the_fixtures_does_not_import_the_client(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(UNUSED)
    ran = run_pytest(tmp_path, "-p", "no:asyncio", "-W", "error")
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_without_the_extra_the_error_has_the_install_command(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text("def test_it(tidelog_client):\n    pass\n")
    missing = tmp_path / "installed" / "uvloop.py"
    missing.parent.mkdir()
    missing.write_text("raise ModuleNotFoundError(\"No module named 'uvloop'\")\n")
    ran = run_pytest(tmp_path)
    assert "pip install 'tidelog[broker]'" in ran.stdout, ran.stdout + ran.stderr
