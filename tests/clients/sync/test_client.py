from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.clients.fake_node import Do, FakeNode, Refuse
from tests.clients.threaded_node import threaded_fake_node

from tidelog.errors import ClosedError, CorruptBatchError, UnknownTopicError
from tidelog.sync import Client
from tidelog_proto import broker_pb2 as pb


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with threaded_fake_node() as node:
        yield node


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(f"127.0.0.1:{node.port}") as client:
        yield client


def test_topics_offsets_and_groups_work(client: Client) -> None:
    client.connect()
    assert client.create_topic("new", partitions=2).partition_count == 2
    assert client.alter_topic("new", partitions=3).partition_count == 3
    assert client.topic("new").name == "new"
    assert [topic.name for topic in client.topics()] == ["new", "t", "wide"]
    client.delete_topic("new")
    with pytest.raises(UnknownTopicError):
        client.topic("new")
    assert client.list_offsets("t", "latest")[0].offset == 0
    assert client.commit("g", "t", {0: 0})[0].next_offset == 0
    assert [each.topic for each in client.committed("g")] == ["t"]
    assert len(client.cluster_status().nodes) == 1


def test_published_records_are_fetched(node: FakeNode, client: Client) -> None:
    with client.producer("t") as producer:
        assert producer.send(b"a").offset == 0
        pending = producer.enqueue(b"b")
        assert pending.result(10).offset == 1
        assert pending.done()
        assert len(producer.send_many([b"c", b"d"])) == 2
        assert producer.send_arrow(pa.table({"value": [b"e"]}))[0].offset == 4
        producer.enqueue(b"f")
    assert node.values("t") == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert client.fetch("t", 0, 0).next_offset == 6


def test_errors_are_raised_to_the_caller(node: FakeNode, client: Client) -> None:
    node.script.append(Refuse(pb.CORRUPT_BATCH))
    with pytest.raises(CorruptBatchError):
        client.producer("t").send(b"x")
    node.script.append(Do.DROP_AFTER)
    assert client.producer("t").send(b"y").offset == 0


def test_client_is_thread_safe(node: FakeNode, client: Client) -> None:
    producer = client.producer("t")
    threads = [threading.Thread(target=lambda: [producer.send(b"x") for _ in range(20)]) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(node.values("t")) == 100


def test_closed_client_is_refused_and_close_is_idempotent(node: FakeNode) -> None:
    client = Client(f"127.0.0.1:{node.port}")
    client.topics()
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        client.topics()


def test_program_without_close_flushes_at_exit(node: FakeNode) -> None:
    program = (
        "from tidelog.sync import Client\n"
        f"client = Client('127.0.0.1:{node.port}')\n"
        "producer = client.producer('t')\n"
        "producer.enqueue(b'last words')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert node.values("t") == [b"last words"]


def test_client_works_only_in_the_process_that_created_it(node: FakeNode) -> None:
    program = (
        "import os, sys\n"
        "from tidelog.sync import Client\n"
        "from tidelog.errors import ForkedError\n"
        f"client = Client('127.0.0.1:{node.port}')\n"
        "client.topics()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        client.topics()\n"
        "    except ForkedError:\n"
        f"        with Client('127.0.0.1:{node.port}') as own:\n"
        "            sys.exit(7 if len(own.topics()) == 2 else 8)\n"
        "    sys.exit(9)\n"
        "client.topics()\n"
        "client.close()\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False, env=environment
    )
    assert (done.stdout.strip(), done.stderr) == ("7", "")


def test_creating_a_producer_imports_in_the_callers_thread() -> None:
    """A fork during an import in the loop's thread would leave the child's import lock held."""
    program = (
        "import sys, tidelog.sync, pyarrow as pa\n"
        "tidelog.sync.Client('127.0.0.1:1').producer('t')\n"
        "before = set(sys.modules)\n"
        "pa.array([b'x'], pa.binary())\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "[]"
