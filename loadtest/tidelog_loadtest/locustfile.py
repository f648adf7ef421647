"""Locust users: REST publish and fetch, a WebSocket subscriber, and the native client.

Run by `run.py` (`make loadtest`), or by hand against something that runs:
`TIDELOG_BOOTSTRAP=HOST:PORT locust -f locustfile.py --host http://HOST:PORT`; the topic must be there.

Every record begins with the time at which it was published, so a subscriber reports the time from publish to
arrival, not how long it waited. The native client is asyncio, which gevent's patched world cannot run: each user
has it in a process of its own (`native_service.py`). Rejected: a real thread with a uvloop in it, which now and then
waited for ever for a lock that gevent had patched.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, Final

import websocket
from gevent import Timeout, subprocess
from locust import FastHttpUser, User, between, task
from locust.exception import StopUser

from tidelog_loadtest.stamps import age_ms, stamped

TOPIC: Final = "loadtest"
RECORDS_PER_REQUEST: Final = 10
FETCH_RECORDS_MAX: Final = 500
CREDIT_RECORDS: Final = 5_000
RECEIVE_TIMEOUT_S: Final = 10.0
SERVICE_TIMEOUT_S: Final = 10.0


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
        """Start the process in which the client lives."""
        self.service = subprocess.Popen(
            [sys.executable, "-m", "tidelog_loadtest.native_service", os.environ["TIDELOG_BOOTSTRAP"], TOPIC],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.tasks_to: Any = self.service.stdin
        self.answers: Any = self.service.stdout

    def on_stop(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):  # it may be gone, and then nobody takes what is unsent
            self.tasks_to.close()
        try:
            self.service.wait(SERVICE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.service.kill()

    @task(3)
    def publish(self) -> None:
        """Send some values and wait for their receipts."""
        self._have_done("publish", "publish 100 records")

    @task(1)
    def fetch(self) -> None:
        """Fetch what follows the last fetch in partition 0."""
        self._have_done("fetch", "fetch")

    def _have_done(self, work: str, name: str) -> None:
        """Have the process do `work` and report it as `name`; without an answer this user is at its end."""
        gone = False
        try:
            with Timeout(SERVICE_TIMEOUT_S):
                self.tasks_to.write(work + "\n")
                self.tasks_to.flush()
                done = json.loads(self.answers.readline())
        except (Timeout, OSError, ValueError) as error:
            done = {"response_ms": 0.0, "length_bytes": 0, "failure": f"the client's process does not answer: {error}"}
            gone = True
        self.environment.events.request.fire(
            request_type="native", name=name, response_time=done["response_ms"], response_length=done["length_bytes"],
            exception=RuntimeError(done["failure"]) if done["failure"] else None, context={},
        )  # fmt: skip
        if gone:
            self.service.kill()
            raise StopUser
