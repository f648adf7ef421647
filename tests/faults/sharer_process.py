"""A member of a group in a process of its own, which a run stops with SIGSTOP for longer than its session, and kills.

    python -m tests.faults.sharer_process [--blocking] WHO GROUP TOPIC,TOPIC FIRST_LIFE ADDRESS…

It writes its observations as lines of JSON, each before it continues, so that none is missing when
it is killed: the reader has read to the end of the pipe by then. It uses its monotonic clock, which is the
machine's. A line on its input sets its mode: stay, stay and read slowly, or continue as before; the end of its
input, that it is to leave. One that is `--blocking` never dawdles.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from random import Random
from typing import Any, Final, Literal

from tests.faults.blocking_sharer import BlockingSharer
from tests.faults.history import Key
from tests.faults.sharer import Notes, Sharer

from tidelog import Client, sync
from tidelog.errors import TidelogError

Word = Literal["stay", "dawdle", "go on"]

STDOUT: Final = 1
BLOCKING: Final = "--blocking"
_KEY_AT: Final = {"begin": 1, "hand": 1, "end": 1, "committed": 0}
"""Kind of a note -> the position of the partition in it."""


class Lines:
    """Notes as lines, each written at once, from any thread."""

    def __init__(self) -> None:
        self._writes = threading.Lock()

    def begin(self, who: str, key: Key, *, position: int, generation: int, at: float) -> None:
        """It was assigned a partition."""
        self._write("begin", [who, key], {"position": position, "generation": generation, "at": at})

    def hand(self, who: str, key: Key, first: int, numbers: Sequence[int], *, at: float) -> None:
        """It was handed records."""
        self._write("hand", [who, key, first, numbers], {"at": at})

    def end(self, who: str, key: Key, *, lost: bool, at: float) -> None:
        """It has a partition no longer."""
        self._write("end", [who, key], {"lost": lost, "at": at})

    def committed(self, key: Key, offset: int, *, at: float) -> None:
        """Its commit was acknowledged."""
        self._write("committed", [key, offset], {"at": at})

    def complain(self, error: TidelogError) -> None:
        """It met an error."""
        self._write("complain", [type(error).__name__, str(error)], {})

    def _write(self, what: str, about: list[Any], told: dict[str, Any]) -> None:
        line = memoryview(json.dumps([what, about, told]).encode() + b"\n")
        with self._writes:
            while line:
                line = line[os.write(STDOUT, line) :]


def replay(line: bytes, notes: Notes) -> tuple[str, str] | None:
    """Copy a line of `Lines` to other notes; return the name and text of the error in it.

    Raises:
        ValueError: the line is not valid.
    """
    what, about, told = json.loads(line)
    if what == "complain":
        return about[0], about[1]
    if what not in _KEY_AT:
        raise ValueError(f"unknown kind of note: {what!r}")
    topic, partition = about[_KEY_AT[what]]
    about[_KEY_AT[what]] = Key(topic, partition)
    getattr(notes, what)(*about, **told)
    return None


async def _run(who: str, group: str, topics: Sequence[str], first_life: int, addresses: Sequence[str]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    lines, staying, dawdling = Lines(), asyncio.Event(), asyncio.Event()
    client = Client(addresses, client_id=who, request_timeout_s=15)
    sharer = Sharer(
        who,
        topics,
        group,
        client,
        lines,
        lines.complain,
        stays=lambda: staying.is_set() or dawdling.is_set(),
        rng=Random(first_life),
        dawdles=dawdling.is_set,
    )
    living = asyncio.create_task(sharer.run(first_life))
    while word := (await reader.readline()).decode().strip():
        if word == "stay":
            staying.set()
        elif word == "dawdle":
            dawdling.set()
        else:
            dawdling.clear()
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    await client.abort()


def _run_blocking(who: str, group: str, topics: Sequence[str], first_life: int, addresses: Sequence[str]) -> None:
    lines = Lines()
    client = sync.Client(addresses, client_id=who, request_timeout_s=15)
    sharer = BlockingSharer(who, topics, group, client, lines, lines.complain, Random(first_life))
    threading.Thread(target=_listen, args=(sharer,), daemon=True).start()
    sharer.run(first_life)
    client.close()


def _listen(sharer: BlockingSharer) -> None:
    for word in sys.stdin:
        if word.strip() == "stay":
            sharer.stay()
    sharer.leave()


def main() -> None:
    """Run with the arguments of the command line."""
    logging.basicConfig(level=logging.ERROR)  # ended sessions are intended
    blocking = sys.argv[1] == BLOCKING
    who, group, topics, first_life, *addresses = sys.argv[1 + blocking :]
    told = (who, group, topics.split(","), int(first_life), addresses)
    if blocking:
        _run_blocking(*told)
    else:
        asyncio.run(_run(*told))


if __name__ == "__main__":
    main()
