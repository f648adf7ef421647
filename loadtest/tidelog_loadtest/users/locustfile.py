"""Locust users: single records, bulk publishing, server-sent events, WebSockets, and the native client.

`run.py` (`make loadtest`) runs this file. By hand, against a running node and gateway that have both topics:
`TIDELOG_BOOTSTRAP=HOST:PORT locust -f locustfile.py --host http://HOST:PORT`. The environment variables in `mixes`
set the mix, the number of users and the duration.

Every value begins with the time at which it was published, so a subscriber reports the time from publish to arrival,
not the time that it waited for a record. The native client uses asyncio, which does not work in a process that gevent
has patched: each user runs the client in a separate process (`native_service.py`). Rejected: an operating system thread
that runs uvloop, because the thread sometimes waited forever for a lock that gevent had patched.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sys
from typing import Any, Final

import websocket
from gevent import Timeout, subprocess
from locust import FastHttpUser, LoadTestShape, User, between, events, task
from locust.env import Environment
from locust.exception import StopUser

from tidelog_loadtest.users.mixes import (
    BULK_TOPIC,
    MIX_VARIABLE,
    MIXES,
    SECONDS_VARIABLE,
    TOPIC,
    USERS_VARIABLE,
    users_at,
)
from tidelog_loadtest.users.time_stamps import age_ms, stamped

BULK_RECORDS: Final = 1_000
FETCH_RECORDS_MAX: Final = 500
CREDIT_RECORDS: Final = 5_000
RECEIVE_TIMEOUT_S: Final = 10.0
SERVICE_TIMEOUT_S: Final = 10.0


def _weight(name: str) -> int:
    """Return the weight of a class in the mix of this run; the command line of locust selects the classes."""
    return MIXES[os.environ.get(MIX_VARIABLE, "all")].get(name, 1)


def _report(user: User, **fields: Any) -> None:
    """Report a request to locust."""
    user.environment.events.request.fire(context={}, **fields)


def _count_exceptions(environment: Environment, **_: Any) -> None:
    """Count each unhandled exception of a user as a failed request: locust itself only logs it."""
    hooks: Any = environment.events  # locust's hooks have no type annotations

    def count(exception: Exception, **_: Any) -> None:
        hooks.request.fire(
            request_type="user", name="unhandled exception", response_time=0.0, response_length=0,
            exception=exception, context={},
        )  # fmt: skip

    hooks.user_error.add_listener(count)


_HOOKS: Any = events
_HOOKS.init.add_listener(_count_exceptions)


class Ramp(LoadTestShape):
    """Start users in steps, then keep all of them for the rest of the time."""

    def tick(self) -> tuple[int, float] | None:
        """Return the target number of users and the number of starts per second; None at the end."""
        seconds = float(os.environ.get(SECONDS_VARIABLE, "60"))
        run_s: float = self.get_run_time()  # type: ignore[no-untyped-call]  # partly annotated in locust
        users = users_at(run_s, seconds, int(os.environ.get(USERS_VARIABLE, "14")))
        return None if users is None else (users, float(users))


class SingleUser(FastHttpUser):
    """A web application: publishes one record at a time, and fetches from its last position."""

    weight = _weight("SingleUser")
    wait_time = between(0.005, 0.02)

    def on_start(self) -> None:
        """Start at the first offset."""
        self.next_offset = 0

    @task(3)
    def publish(self) -> None:
        """POST a record."""
        body = {"records": [{"key": "page", "value": stamped()}]}
        self.client.post(f"/v1/topics/{TOPIC}/records", json=body, name="single: publish 1 record")

    @task(1)
    def fetch(self) -> None:
        """GET the records after the last fetch in partition 0."""
        address = f"/v1/topics/{TOPIC}/partitions/0/records"
        query = f"?offset={self.next_offset}&max_records={FETCH_RECORDS_MAX}"
        with self.client.get(address + query, name="single: fetch", catch_response=True) as answer:
            if answer.status_code == 200:
                self.next_offset = answer.json()["next_offset"]
            else:
                answer.failure(f"{answer.status_code}: {str(answer.text)[:200]}")


class BulkUser(FastHttpUser):
    """A collector: publishes 1,000 records at a time."""

    weight = _weight("BulkUser")
    wait_time = between(0.05, 0.15)

    @task
    def publish(self) -> None:
        """POST 1,000 records."""
        value = stamped()
        records = [{"key": str(at), "value": value} for at in range(BULK_RECORDS)]
        path = f"/v1/topics/{BULK_TOPIC}/records"
        self.client.post(path, json={"records": records}, name=f"bulk: publish {BULK_RECORDS} records")


class StreamUser(User):
    """A live page: reads server-sent events."""

    weight = _weight("StreamUser")

    def on_start(self) -> None:
        """Open a stream that starts at the end of the topic."""
        host, _, port = str(self.host).partition("://")[2].partition(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=RECEIVE_TIMEOUT_S)
        self.connection.request("GET", f"/v1/topics/{TOPIC}/stream")
        self.events = self.connection.getresponse()

    def on_stop(self) -> None:
        """Disconnect."""
        self.connection.close()

    @task
    def receive(self) -> None:
        """Read one event; if it has records, report the age of the last one. An error is reported and ends the user."""
        failure: Exception | None = None
        data, latency_ms = b"", 0.0
        try:
            data = self._event()
            records = json.loads(data or b"{}").get("records", [])
            if not records:
                return
            latency_ms = age_ms(records[-1]["value"])
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            failure = error
        _report(
            self, request_type="SSE", name="sse: publish to arrival", response_time=latency_ms,
            response_length=len(data), exception=failure,
        )  # fmt: skip
        if failure is not None:
            raise StopUser from failure

    def _event(self) -> bytes:
        """Return the data of the next event.

        Raises:
            OSError: the stream was refused or has ended.
        """
        if self.events.status != 200:
            raise OSError(f"the gateway refused the event stream with status {self.events.status}")
        data = b""
        while (line := self.events.readline()).strip():
            if line.startswith(b"data: "):
                data = line[6:]
        if not line:
            raise OSError("the gateway ended the event stream")
        return data


class WebSocketUser(User):
    """A live page: subscribes to the end of the topic and returns credit."""

    weight = _weight("WebSocketUser")

    def on_start(self) -> None:
        """Connect and subscribe to new records."""
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
        """Receive one message; for a batch, report the age of its last record.

        Other messages and errors are reported as failures; the loss of the connection also stops the user.
        """
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
        _report(
            self, request_type="WS", name="websocket: publish to arrival", response_time=latency_ms,
            response_length=len(received), exception=failure,
        )  # fmt: skip
        if isinstance(failure, OSError | websocket.WebSocketException):
            raise StopUser from failure  # the connection is lost: report one failure, not one per retry

    def _send(self, message: dict[str, Any]) -> None:
        self.socket.send(json.dumps(message))


class NativeUser(User):
    """A service with the native client: publishes lists of values and fetches them."""

    weight = _weight("NativeUser")
    wait_time = between(0.005, 0.02)

    def on_start(self) -> None:
        """Start the process of the client."""
        self.service = subprocess.Popen(
            [sys.executable, "-m", "tidelog_loadtest.users.native_service", os.environ["TIDELOG_BOOTSTRAP"],
            BULK_TOPIC], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.tasks_to: Any = self.service.stdin
        self.answers: Any = self.service.stdout

    def on_stop(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):  # the process may have exited, with unsent input in the pipe
            self.tasks_to.close()
        try:
            self.service.wait(SERVICE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.service.kill()

    @task(3)
    def publish(self) -> None:
        """Publish some values and wait for their acknowledgements."""
        self._have_done("publish", "native: publish 100 records")

    @task(1)
    def fetch(self) -> None:
        """Fetch the records after the last fetch in partition 0."""
        self._have_done("fetch", "native: fetch")

    def _have_done(self, work: str, name: str) -> None:
        """Run `work` in the process and report it as `name`; without a response, stop this user."""
        gone = False
        try:
            with Timeout(SERVICE_TIMEOUT_S):
                self.tasks_to.write(work + "\n")
                self.tasks_to.flush()
                done = json.loads(self.answers.readline())
        except (Timeout, OSError, ValueError) as error:
            done = {
                "response_ms": 0.0,
                "length_bytes": 0,
                "failure": f"the process of the native client does not respond: {error}",
            }
            gone = True
        failure = RuntimeError(done["failure"]) if done["failure"] else None
        _report(
            self, request_type="native", name=name, response_time=done["response_ms"],
            response_length=done["length_bytes"], exception=failure,
        )  # fmt: skip
        if gone:
            self.service.kill()
            raise StopUser
