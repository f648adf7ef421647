"""Clients of the gateway's WebSocket: publishers that pipeline, and a subscriber that resumes where it was.

When the gateway ends, or does not answer any more, they reconnect. A record sent before that without an answer has an
unknown outcome, so the publisher continues under a new producer's number. The subscriber resumes at its offsets, and
must get each record exactly once.
"""

from __future__ import annotations

import asyncio
import base64
import json
from random import Random
from typing import Any, Final

from tests.faults.gateway import Gateway
from tests.faults.history import Key
from tests.faults.producing import KEYS, TEMPERS
from tests.faults.reborn import NAME, Participation, Session
from tests.faults.values import number_in, number_of, value_of
from tests.faults.world import World
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

WEB_SUBSCRIBER: Final = "websocket subscriber"
SIGN_OF_PUBLISHING: Final = "publishing by WebSocket"
PIPELINED_MAX: Final = 24
RECORDS_MAX: Final = 4
"""In one message."""
CREDIT: Final = 2000
PAUSE_S: Final = 0.5
SILENCE_S: Final = 60.0
"""How long nothing may come although an answer is due, before the connection is given up."""
UNKNOWN_STATUSES: Final = frozenset({500, 504})
"""Errors that leave open whether records were written."""
_GONE: Final = (WebSocketException, OSError, TimeoutError)


async def _received(socket: ClientConnection) -> Any:
    return json.loads(await socket.recv())


def _complain(world: World, who: str, problem: Any, *, there: bool) -> None:
    world.history.complain(who, str(problem["code"]).upper(), str(problem["detail"]), there=there)


class WebPublisher:
    """Publishes records of one key, many unanswered at a time, over one connection after the other.

    Args:
        world: of the run.
        gateway: the gateway to connect to.
        topic: where to.
        standing: of that topic when it is one that is made again, else None.
        rng: decides.
    """

    def __init__(self, world: World, gateway: Gateway, topic: str, standing: Participation | None, rng: Random) -> None:
        self._world = world
        self._gateway = gateway
        self._topic = topic
        self._standing = standing
        self._rng = rng
        self._unanswered: dict[int, tuple[list[int], int]] = {}
        """Message -> its records, and how often the topic had been made, -1 when it was not certain which one it is."""
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Publish until all is to be quiet and everything is answered."""
        while not self._world.quiet:
            self._unanswered.clear()
            try:
                async with self._gateway.websocket() as socket:
                    await self._serve(socket)
            except _GONE as error:
                self._world.history.complain("websocket publisher", type(error).__name__, str(error))
                await asyncio.sleep(PAUSE_S)

    async def _serve(self, socket: ClientConnection) -> None:
        """Send and take answers side by side until one of them fails, or everything that is to be sent is answered."""
        sending = asyncio.create_task(self._send(socket))
        try:
            silent_s = 0.0
            while not (sending.done() and not self._unanswered):
                try:
                    async with asyncio.timeout(PAUSE_S):
                        self._answered(await _received(socket))
                    silent_s = 0.0
                except TimeoutError:
                    silent_s = silent_s + PAUSE_S if self._unanswered else 0.0
                    if silent_s > SILENCE_S:
                        raise
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, socket: ClientConnection) -> None:
        world, rng, sequence, message = self._world, self._rng, 0, 0
        producer, key = world.next_producer("websocket publisher"), f"key {rng.randrange(KEYS)}"
        rate = world.rate / len(world.topics) / len(TEMPERS) / (1 if self._standing is None else 4)
        while not world.quiet:
            message += 1
            numbers = [number_of(producer, sequence + at) for at in range(rng.randint(1, RECORDS_MAX))]
            sequence += len(numbers)
            for number in numbers:
                world.history.send(self._topic, number)
            standing = self._standing
            times = -1 if standing is not None and standing.changing else standing.times if standing else 0
            self._unanswered[message] = numbers, times
            records = [{"key": key, "value": _base64(number), "value_encoding": "base64"} for number in numbers]
            await socket.send(json.dumps({"id": message, "pub": {"topic": self._topic, "records": records}}))
            if rng.random() < 1 / PIPELINED_MAX:
                await asyncio.sleep(PIPELINED_MAX * len(numbers) / rate * rng.uniform(0.5, 1.5))
            while len(self._unanswered) >= PIPELINED_MAX:
                self._room.clear()
                await self._room.wait()

    def _answered(self, answer: Any) -> None:
        numbers, times = self._unanswered.pop(answer["id"])
        self._room.set()
        results = answer["ok"]["results"] if "ok" in answer else [{"error": answer["error"]}] * len(numbers)
        for number, result in zip(numbers, results, strict=True):
            self._settle(number, result, times)

    def _settle(self, number: int, result: Any, times: int) -> None:
        world, standing = self._world, self._standing
        there = standing is None or standing.since(times)
        error = result.get("error")
        if error is not None:
            if error["status"] not in UNKNOWN_STATUSES:
                world.history.refuse(self._topic, number)
            _complain(world, "websocket publisher", error, there=there)
        elif there:
            topic = self._topic if standing is None else standing.label
            world.acked(self._topic, number, result["offset"], Key(topic, result["partition"]))
            if standing is None:
                world.signs[SIGN_OF_PUBLISHING] += 1


class WebSubscriber:
    """Subscribes to all topics over one connection, and resumes over the next one where it was.

    Args:
        world: of the run.
        gateway: the gateway to connect to.
        standing: of the topic that is made again.
    """

    def __init__(self, world: World, gateway: Gateway, standing: Participation) -> None:
        self.reborn_reader = ""
        """Name of its session with the topic that is recreated."""
        self._world = world
        self._gateway = gateway
        self._standing = standing
        self._positions: dict[str, dict[int, int]] = {}
        self._topics: list[str] = []
        self._session = Session(world, "")
        self._sessions = 0
        self._stood = (False, 0)
        """Whether the topic that is recreated existed at the subscription, and how often it had been created."""

    async def run(self) -> None:
        """Read for ever."""
        while True:
            try:
                async with self._gateway.websocket() as socket:
                    self._topics = [*self._world.topics, NAME]
                    for sid in range(len(self._topics)):
                        await self._subscribe(socket, sid)
                    while True:
                        await self._take(socket, await _received(socket))
            except _GONE as error:
                self._world.history.complain("websocket subscriber", type(error).__name__, str(error))
                await asyncio.sleep(PAUSE_S)

    async def _subscribe(self, socket: ClientConnection, sid: int) -> None:
        topic = self._topics[sid]
        resume = {str(partition): offset for partition, offset in self._positions.get(topic, {}).items()}
        if topic == NAME:  # the topic may have been recreated, so the positions are void
            self._sessions += 1
            self.reborn_reader = f"{NAME} {WEB_SUBSCRIBER}#{self._sessions}"
            self._session = Session(self._world, self.reborn_reader)
            self._stood, resume = (not self._standing.changing, self._standing.times), {}
        sub = {"sid": sid, "topic": topic, "from": "earliest", "resume": resume, "credit": {"records": CREDIT}}
        await socket.send(json.dumps({"id": sid, "sub": sub}))

    async def _take(self, socket: ClientConnection, message: Any) -> None:
        if "batch" in message:
            batch = message["batch"]
            self._read(self._topics[batch["sid"]], batch)
            credit = {"sid": batch["sid"], "records": len(batch["records"])}
            await socket.send(json.dumps({"credit": credit}))
        elif "end" in message or "error" in message:
            sid = self._ended(message)
            if sid is not None:
                await asyncio.sleep(PAUSE_S)
                await self._subscribe(socket, sid)

    def _ended(self, message: Any) -> int | None:
        """Record that a subscription ended, or never began; return which, None for a message about none."""
        if "end" in message:
            sid, problem = message["end"]["sid"], message["end"]["error"]
        elif "id" in message:
            sid, problem = message["id"], message["error"]
        else:  # credit came for one that had ended; the news of that has been sent
            return None
        stood, times = self._stood
        there = self._topics[sid] != NAME or (stood and self._standing.since(times))
        _complain(self._world, "websocket subscriber", problem, there=there)
        return int(sid)

    def _read(self, topic: str, batch: Any) -> None:
        partition = batch["partition"]
        for record in batch["records"]:
            number = number_in(_bytes_of(record))
            if topic == NAME:
                self._session.take(partition, record["offset"], [number])
            else:
                self._world.history.read(WEB_SUBSCRIBER, Key(topic, partition), record["offset"], [number])
        self._positions.setdefault(topic, {})[partition] = batch["next_offset"]


def _base64(number: int) -> str:
    return base64.b64encode(value_of(number)).decode()


def _bytes_of(record: Any) -> bytes | None:
    value = record["value"]
    if value is None:
        return None
    return base64.b64decode(value) if record["value_encoding"] == "base64" else str(value).encode()
