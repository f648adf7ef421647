"""Collections of a server stay short, and cycles among frozen objects are freed when it is idle or has grown."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from typing import Any, Final

import pytest

from tidelog_proto.process.garbage_collection import no_collections

SERVER: Final = """
import asyncio, gc, json, sys, time, weakref
from tidelog_proto.process import garbage_collection
from tidelog_proto.process.garbage_collection import count_long_lived, tune_garbage_collection

garbage_collection.CHECK_EVERY_S = 0.2
load = sys.argv[1]
if load == "objects":
    garbage_collection.GROWN_WHEN_BUSY = 1_000_000
if load == "memory":
    garbage_collection.GROWN_BYTES = 32 * 1024 * 1024

class Node:
    pass

def cycle():
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one

def examined():
    examined.most = 0
    def note(phase, info):
        if phase == "start" and info["generation"] == 2:
            examined.most = max(examined.most, len(gc.get_objects(generation=2)))
    gc.callbacks.append(note)

async def freed(seen, timeout_s):
    until_s = time.monotonic() + timeout_s
    while seen() is not None and time.monotonic() < until_s:
        if load != "idle":
            sum(range(10_000))
        await asyncio.sleep(0.05 if load == "idle" else 0)
    return seen() is None

async def main():
    kept = [[] for _ in range(100_000)]
    tune_garbage_collection(asyncio.get_running_loop())
    examined()
    first = cycle()
    kept += [[] for _ in range(2_000_000 if load == "objects" else 400_000)]
    if load == "memory":
        kept.append(b"x" * 256 * 1024 * 1024)
    frozen, seen, most = gc.get_freeze_count(), weakref.ref(first), examined.most
    del first
    result = {"most": most, "frozen": frozen, "alive": seen() is not None, "freed": await freed(seen, 20)}
    second = cycle()
    kept += [[] for _ in range(50_000)]
    seen = weakref.ref(second)
    del second
    if load == "idle":
        count_long_lived(200_000)
        kept += [[] for _ in range(200_000)]
        result["kept"] = not await freed(seen, 1)
        count_long_lived(-1_000_000)
        result["freed after drop"] = await freed(seen, 20)
    print(json.dumps(result))

asyncio.run(main())
"""


def server(load: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", SERVER, load], capture_output=True, text=True, timeout=120, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("load", ["idle", "objects", "memory"])
def test_cycle_of_frozen_objects_is_freed(load: str) -> None:
    result = server(load)
    assert result["alive"], "the cycle was frozen"
    assert result["freed"]


def test_one_collection_examines_new_objects_only() -> None:
    result = server("idle")
    assert result["frozen"] > 200_000
    assert 0 < result["most"] < 80_000


def test_idle_server_examines_all_objects_only_after_many_new_or_dropped_ones() -> None:
    result = server("idle")
    assert result["kept"], "the server examined all objects after 50,000 new ones and 200,000 long-lived ones"
    assert result["freed after drop"]


def test_collections_are_paused_and_resumed_also_after_an_error() -> None:
    def load() -> None:
        with no_collections():
            with no_collections():
                assert not gc.isenabled()
            assert not gc.isenabled(), "the outer pause continues"
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert gc.isenabled()
