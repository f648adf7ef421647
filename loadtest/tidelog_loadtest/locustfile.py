"""Locust users: REST publish and fetch, a WebSocket subscriber, and the native client.

Run by `run.py` (`make loadtest`), or by hand against something that runs:
`TIDELOG_BOOTSTRAP=HOST:PORT locust -f locustfile.py --host http://HOST:PORT`; the topic must be there.

Every record begins with the time at which it was published, so a subscriber reports the time from publish to
arrival, not how long it waited. The native client is asyncio, which gevent's patched world cannot run: each user
owns one real thread with a uvloop in it (libuv knows nothing of gevent's patches), and greenlets wait for the
thread. Rejected: the blocking face of the client, whose own thread would be a greenlet here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import uvloop
import websocket
from gevent.threadpool import ThreadPool
from locust import FastHttpUser, User, between, task
from locust.exception import StopUser

from tidelog import Client, Producer
from tidelog_loadtest.stamps import age_ms, stamped

TOPIC: Final = "loadtest"
RECORDS_PER_REQUEST: Final = 10
RECORDS_PER_SEND: Final = 100
FETCH_RECORDS_MAX: Final = 500
CREDIT_RECORDS: Final = 5_000
RECEIVE_TIMEOUT_S: Final = 10.0

_T = TypeVar("_T")


class RestUser(FastHttpUser):
    """A web application: publishes a few records at a time, and reads on from where it was."""

    wait_time = between(0.005, 0.02)

    def on_start(self) -> None:
        """Begin reading behind what is there now."""
        self.next_offset = 0

    @task(3)
    def publish(self) -> None:
        """POST some records."""
        records = [{"key": str(at), "value": stamped()} for at in range(RECORDS_PER_REQUEST)]
        self.client.post(f"/v1/topics/{TOPIC}/records", json={"records": records}, name="publish 10 records")

    @task(1)
    def fetch(self) -> None:
        """GET what follows the last fetch in partition 0."""
        address = f"/v1/topics/{TOPIC}/partitions/0/records"
        query = f"?offset={self.next_offset}&max_records={FETCH_RECORDS_MAX}"
        with self.client.get(address + query, name="fetch", catch_response=True) as answer:
            if answer.status_code == 200:
                self.next_offset = answer.json()["next_offset"]
            else:
                answer.failure(f"{answer.status_code}: {str(answer.text)[:200]}")


class WebSocketUser(User):
    """A live page: subscribes to everything that comes and gives credit back."""

    fixed_count = 1

    def on_start(self) -> None:
        """Connect and subscribe to what comes from now on."""
        address = str(self.host).replace("http", "ws", 1) + "/v1/ws"
        self.socket = websocket.create_connection(address, subprotocols=["tidelog.v1.json"], timeout=RECEIVE_TIMEOUT_S)
        self._send(
            {"id": 1, "sub": {"sid": 1, "topic": TOPIC, "from": "latest", "credit": {"records": CREDIT_RECORDS}}}
        )

    def on_stop(self) -> None:
        """Disconnect."""
        self.socket.close()

    @task
    def receive(self) -> None:
        """Take one message; for a batch, report the age of its last record."""
        received: str | bytes = ""
        failure: Exception | None = None
        latency_ms = 0.0
        try:
            received = self.socket.recv()
            message = json.loads(received)
            if "ok" in message:
                return
            records = message["batch"]["records"]
            latency_ms = age_ms(records[-1]["value"])
            self._send({"credit": {"sid": 1, "records": len(records)}})
        except (OSError, ValueError, KeyError, websocket.WebSocketException) as error:
            failure = error
        self.environment.events.request.fire(
            request_type="WS", name="publish to arrival", response_time=latency_ms,
            response_length=len(received), exception=failure, context={},
        )  # fmt: skip
        if isinstance(failure, OSError | websocket.WebSocketException):
            raise StopUser from failure  # the connection is gone: one failure, not one for each further try

    def _send(self, message: dict[str, Any]) -> None:
        self.socket.send(json.dumps(message))


class NativeUser(User):
    """A service with the native client: publishes lists of values and reads them again."""

    wait_time = between(0.005, 0.02)

    def on_start(self) -> None:
        """Start the thread and connect in it."""
        self.thread = ThreadPool(1)
        self.loop = uvloop.new_event_loop()
        self._in_thread(self._connect)
        self.next_offset = 0

    async def _connect(self) -> None:
        self.client_native = Client(os.environ["TIDELOG_BOOTSTRAP"], client_id="tidelog-loadtest")
        await self.client_native.__aenter__()
        self.producer: Producer = self.client_native.producer(TOPIC)

    def on_stop(self) -> None:
        """Disconnect and end the thread."""
        self._in_thread(self._disconnect)
        self.loop.close()
        self.thread.kill()

    async def _disconnect(self) -> None:
        await self.producer.close()
        await self.client_native.__aexit__(None, None, None)

    @task(3)
    def publish(self) -> None:
        """Send some values and wait for their receipts."""
        self._timed("publish 100 records", self._publish)

    @task(1)
    def fetch(self) -> None:
        """Fetch what follows the last fetch in partition 0."""
        self._timed("fetch", self._fetch)

    async def _publish(self) -> int:
        values = [stamped().encode() for _ in range(RECORDS_PER_SEND)]
        await self.producer.send_many(values)
        return sum(map(len, values))

    async def _fetch(self) -> int:
        fetched = await self.client_native.fetch(TOPIC, 0, self.next_offset, max_bytes=1 << 20)
        self.next_offset = fetched.next_offset
        return sum(batch.header.length for batch in fetched.batches)

    def _timed(self, name: str, action: Callable[[], Awaitable[int]]) -> None:
        began_s = time.perf_counter()
        length_bytes, failure = 0, None
        try:
            length_bytes = self._in_thread(action)
        except Exception as error:  # noqa: BLE001 - a load test counts failures of every kind
            failure = error
        self.environment.events.request.fire(
            request_type="native", name=name, response_time=(time.perf_counter() - began_s) * 1e3,
            response_length=length_bytes, exception=failure, context={},
        )  # fmt: skip

    def _in_thread(self, action: Callable[[], Awaitable[_T]]) -> _T:
        """Run a coroutine to its end in this user's thread, while other greenlets go on."""
        result: _T = self.thread.apply(lambda: self.loop.run_until_complete(action()))
        return result
