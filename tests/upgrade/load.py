"""Load of one client process, until its standard input ends: `load.py BOOTSTRAP TOPIC {producer,member} NAME OUT`.

The interpreter decides the build of the client, so this file uses nothing but the standard library and what each build
of `tidelog` has. It writes a line of JSON for each record that was acknowledged or read, and for each error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from tidelog import Client

PAUSE_S = 0.004
BURST = 8
KEYS = 64
TIMEOUT_S = 60.0


async def main(bootstrap: str, topic: str, role: str, name: str, out: Path) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, lambda: (sys.stdin.read(), loop.call_soon_threadsafe(ended.set)))
    with out.open("a", buffering=1) as file:

        def tell(**told: Any) -> None:
            file.write(json.dumps(told) + "\n")

        async with Client(bootstrap.split(","), client_id=name, request_timeout_s=TIMEOUT_S) as client:
            await (produce if role == "producer" else consume)(client, topic, name, ended, tell)
        tell(event="ended")


async def produce(client: Client, topic: str, name: str, ended: asyncio.Event, tell: Any) -> None:
    async def one(producer: Any, number: int) -> None:
        value = f"{name}:{number}"
        try:
            receipt = await producer.send(value.encode(), key=b"%d" % (number % KEYS))
        except Exception as error:  # noqa: BLE001 - each is reported
            tell(event="refused", value=value, error=f"{type(error).__name__}: {error}")
        else:
            tell(event="acked", value=value, partition=receipt.partition, offset=receipt.offset)

    number = 0
    async with client.producer(topic, delivery_timeout_s=TIMEOUT_S) as producer:
        while not ended.is_set():
            await asyncio.gather(*(one(producer, number + at) for at in range(BURST)))
            number += BURST
            await asyncio.sleep(PAUSE_S)


async def consume(client: Client, topic: str, name: str, ended: asyncio.Event, tell: Any) -> None:
    async with client.consumer(topic, group="readers") as consumer:
        reading = asyncio.create_task(read(consumer, tell))
        waiting = asyncio.create_task(ended.wait())
        await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        try:
            await reading
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - each is reported
            tell(event="refused", value=name, error=f"{type(error).__name__}: {error}")
            return
        await consumer.commit()


async def read(consumer: Any, tell: Any) -> None:
    read_since_commit = 0
    async for record in consumer:
        tell(event="read", value=record.value.decode(), partition=record.partition, offset=record.offset)
        read_since_commit += 1
        if read_since_commit == 100:
            await consumer.commit()
            read_since_commit = 0


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5])))
