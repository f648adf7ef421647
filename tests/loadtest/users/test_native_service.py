from __future__ import annotations

import asyncio
import json
import sys

from tidelog import Client
from tidelog_loadtest.users.native_service import RECORDS_PER_SEND, Service, timed
from tidelog_loadtest.users.time_stamps import VALUE_CHARS


async def test_published_records_are_fetched_only_once(client: Client) -> None:
    await client.create_topic("t", partitions=1)
    service = Service(client, "t")
    assert await service.publish() == RECORDS_PER_SEND * VALUE_CHARS
    assert await service.fetch() > RECORDS_PER_SEND * VALUE_CHARS
    assert await service.fetch() == 0
    await service.close()


async def test_a_failed_task_returns_the_failure() -> None:
    async def fail() -> int:
        raise ConnectionError("gone")

    done = await timed(fail)
    assert (done.failure, done.length_bytes) == ("ConnectionError: gone", 0)


async def test_the_process_responds_to_each_line_and_exits_at_the_end_of_its_input(
    client: Client, bootstrap: str
) -> None:
    await client.create_topic("t", partitions=1)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidelog_loadtest.users.native_service", bootstrap, "t",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    stdout, _ = await asyncio.wait_for(process.communicate(b"publish\nfetch\n"), 60)
    done = [json.loads(line) for line in stdout.splitlines()]
    assert [line["failure"] for line in done] == [None, None]
    assert done[1]["length_bytes"] > done[0]["length_bytes"] == RECORDS_PER_SEND * VALUE_CHARS
    assert process.returncode == 0
