"""The gateway's settings: the `[gateway]` section, `TIDELOG_GATEWAY_…` variables, options of the command.

The limits keep the memory of the process bounded against slow, large and numerous clients; the defaults suit a machine
with a gigabyte to spare. The name of each limit has its unit.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tidelog_proto.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, KIB, MIB

Address = Annotated[str, Field(min_length=1, max_length=300)]

_ORIGIN: Final = re.compile(r"\*|null|(?!http://[^/]*:80$|https://[^/]*:443$)[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


def _check_origin(value: str) -> str:
    """Refuse a value that no browser sends as `Origin`."""
    if _ORIGIN.fullmatch(value) is None:
        raise ValueError(
            f"{value!r} is not an origin as browsers send it: scheme and host in lower case, and the port unless it is "
            "the scheme's default, without a path, such as https://app.example or http://app.example:8080"
        )
    return value


Origin = Annotated[Address, AfterValidator(_check_origin)]


class GatewaySettings(BaseModel):
    """The gateway's settings; each field is a key of `[gateway]` in the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: list[Address] = Field(
        default=["127.0.0.1:7400"],
        min_length=1,
        description="Bootstrap nodes, HOST:PORT; separated by commas in a variable.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    http_port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Number of processes that serve the port. Limits of the whole gateway are divided among them, see "
        "gateway-workers.md; with 1 there is no parent process.",
    )
    insecure: bool = Field(
        default=False,
        description="Allow other hosts than loopback without TLS or `auth`; only for trusted networks.",
    )
    tls_cert_file: Path | None = Field(
        default=None,
        description="The gateway's certificate in PEM, with its chain; enables HTTPS on the port. A changed file is "
        "reloaded, and so is tls_key_file.",
    )
    tls_key_file: Path | None = Field(
        default=None,
        description="The private key of the certificate, not encrypted, readable by the gateway only; by default it "
        "is in tls_cert_file.",
    )
    auth: Literal["none", "callers"] = Field(
        default="none",
        description="callers: each request is authenticated and has its caller's permissions. none: all requests have "
        "the permissions of the gateway's own key.",
    )
    callers_max: int = Field(
        default=4096, ge=16, description="Maximum number of cached callers; the least recently used is dropped."
    )
    wrong_credentials_max: int = Field(
        default=20,
        ge=0,
        description="Maximum number of failed authentications of one address in a burst, refilled at one per "
        "second; beyond it requests get 429. 0: unlimited, for a gateway behind a proxy, whose address "
        "all clients share.",
    )
    request_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="How long the gateway waits for a node's answer before it answers the client 503 (not "
        "accepted) or 504 (outcome unknown).",
    )
    head_timeout_s: float = Field(
        default=10.0, gt=0, le=600, description="How long the whole head of a request may take to arrive."
    )
    keep_alive_timeout_s: int = Field(
        default=90,
        ge=1,
        le=3600,
        description="How long a connection may be idle between requests. Longer than the idle timeout of a load "
        "balancer in front (often 60 s), which otherwise sends a request to a connection that is being closed, and "
        "answers 502.",
    )
    body_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="How long the whole body of a request may take to arrive; for a body of JSON lines, how long "
        "a pause between two parts of it may be.",
    )
    stop_timeout_s: int = Field(
        default=10, ge=1, le=600, description="How long a graceful stop waits for requests that are being answered."
    )
    access_log: bool = Field(
        default=False,
        description="Whether a line of JSON is written to standard output at the end of each request and each "
        "WebSocket.",
    )
    otel: bool = Field(
        default=False,
        description="Whether OpenTelemetry traces and metrics are exported (OTLP over HTTP), configured by OTEL_* "
        "variables; needs the extra `otel`.",
    )
    connections_max: int = Field(
        default=10_000,
        ge=1,
        description="Maximum number of open connections, including WebSockets. Beyond it a new connection replaces "
        "one that waits for its client, or gets 503 if all of them are answering requests.",
    )
    address_connections_max: int | None = Field(
        default=None,
        ge=0,
        description="Maximum number of open connections of one client address, or IPv6 /64; by default three "
        "quarters of connections_max. 0: unlimited, for a gateway behind a proxy, whose address all "
        "clients share.",
    )
    body_bytes_max: int = Field(
        default=8 * MIB, ge=KIB, le=1024 * MIB, description="Maximum size of a request's body; larger bodies get 413."
    )
    in_flight_bytes_max: int = Field(
        default=128 * MIB,
        ge=KIB,
        description="Request budget: maximum bytes of request bodies and WebSocket messages in memory. Beyond it "
        "requests get 429, and slow senders are disconnected.",
    )
    out_bytes_max: int = Field(
        default=256 * MIB,
        ge=8 * MIB,
        description="Response budget: maximum bytes of answers, WebSocket messages and records read ahead in memory. "
        "Beyond it requests get 503, and clients that do not read are disconnected.",
    )
    connection_out_bytes_max: int = Field(
        default=32 * MIB,
        ge=MIB,
        description="Maximum bytes of the response budget that one connection may use; a single answer may exceed it.",
    )
    records_per_request_max: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Maximum number of records in one publish and in one fetch."
    )
    fetch_bytes_max: int = Field(
        default=8 * MIB,
        ge=KIB,
        le=FETCH_BYTES_MAX,
        description="Maximum payload in the answer to one fetch; a single record may exceed it.",
    )
    fetch_wait_ms_max: int = Field(
        default=30_000, ge=0, le=FETCH_WAIT_MS_MAX, description="How long a fetch may wait for records."
    )
    producers_max: int = Field(
        default=1024,
        ge=1,
        description="Maximum number of producers, one for each topic and caller; the least recently used is closed.",
    )
    allowed_origins: list[Origin] = Field(
        default=[],
        description="Origins of pages, besides the gateway's own, that may open WebSockets, send changing requests "
        "and read answers (CORS); * allows all pages.",
    )
    allowed_hosts: list[Address] = Field(
        default=[],
        description="Accepted values of `Host` over plain HTTP with auth = none, besides addresses, localhost, the "
        "machine's name, `host` and the hosts of allowed_origins; other values get 421, to prevent DNS rebinding. * "
        "allows all values.",
    )
    ws_connections_max: int = Field(
        default=2000,
        ge=1,
        description="Maximum number of open WebSockets and streams; beyond it close code 4429, or status 429. One "
        "caller may use as many as remain free: half of them when it is alone.",
    )
    ws_subscriptions_max: int = Field(
        default=64, ge=1, le=4096, description="Maximum number of subscriptions of one WebSocket."
    )
    ws_publishes_max: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Maximum number of unanswered pub messages of one WebSocket; at this number the gateway stops "
        "reading.",
    )
    ws_message_bytes_max: int = Field(
        default=1 * MIB,
        ge=KIB,
        le=64 * MIB,
        description="Maximum size of a message that a client may send over a WebSocket; a larger one closes it with "
        "1009.",
    )
    ws_batch_records_max: int = Field(
        default=1000, ge=1, le=100_000, description="Maximum number of records in one batch message."
    )
    ws_batch_bytes_max: int = Field(
        default=1_000_000,
        ge=KIB,
        le=64 * MIB,
        description="Maximum size of a batch message; a larger record is sent alone. The default suits clients that "
        "accept messages of up to 1 MiB.",
    )
    ws_ping_interval_s: float = Field(
        default=20.0, gt=0, le=3600, description="Interval between two pings on a WebSocket."
    )
    ws_ping_timeout_s: float = Field(
        default=20.0, gt=0, le=3600, description="How long the pong may take before the WebSocket is closed."
    )
    ws_member_idle_s: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="How long a member of a group may give no credit while records wait for it; then its subscription "
        "ends, and its partitions go to other members.",
    )
    stream_heartbeat_s: float = Field(
        default=15.0,
        gt=0,
        le=3600,
        description="Time without an event after which a stream gets a comment; shorter than the idle timeout of a "
        "proxy in front (often 60 s).",
    )
    ws_slow_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="How long a client may leave sent data unread. Then a WebSocket is closed with 4408, a stream "
        "ends with `slow_client`, and any other connection is closed.",
    )

    ui: Literal["on", "read_only", "off"] = Field(
        default="on",
        description="The page `/ui`. read_only: the page offers no changes; the permissions of callers do not change. "
        "off: the gateway serves no page and samples no metrics.",
    )
    ui_interval_s: float = Field(
        default=10.0,
        ge=1,
        le=600,
        description="How often the figures of all topics are sampled for the page; less often if a sample takes more "
        "than 2 % of that time.",
    )

    @model_validator(mode="after")
    def _check_tls_files(self) -> Self:
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_key_file is set without tls_cert_file; set both")
        return self
