"""What an operator may set: the `[gateway]` section, `TIDELOG_GATEWAY_…` variables, flags of the command.

Every limit of the HTTP surface stands here with its unit. They exist so that no client, slow, huge or
many, can make the process grow without bound; the defaults suit a machine with a gigabyte to spare.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidelog_proto.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, KIB, MIB

Address = Annotated[str, Field(min_length=1, max_length=300)]


class GatewaySettings(BaseModel):
    """The gateway's settings; every field is a key of `[gateway]` in the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: list[Address] = Field(
        default=["127.0.0.1:7400"], min_length=1, description="Nodes to start from, HOST:PORT; commas in a variable."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    http_port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that serve the port. Limits of the whole gateway are divided among them, see "
        "gateway-workers.md; with 1 there is no parent process.",
    )
    insecure: bool = Field(
        default=False,
        description="Listen elsewhere than on loopback without TLS or `auth`: only where strangers reach nothing.",
    )
    tls_cert_file: Path | None = Field(
        default=None,
        description="The gateway's certificate in PEM, with those that lead to its CA: with it the port speaks HTTPS. "
        "The file is followed, as the next one is.",
    )
    tls_key_file: Path | None = Field(
        default=None,
        description="The private key of that, not encrypted, readable by the gateway alone; it is in tls_cert_file "
        "unless given.",
    )
    auth: Literal["none", "callers"] = Field(
        default="none",
        description="callers: each request shows who sends it, and may do what that caller may. none: everybody may do "
        "what the gateway's own key may.",
    )
    callers_max: int = Field(
        default=4096, ge=16, description="Callers that are remembered; the longest unused give way."
    )
    wrong_credentials_max: int = Field(
        default=20,
        ge=0,
        description="How often an address may show wrong credentials at once, and then once a second; past it 429. "
        "0: as often as it likes, for a gateway behind a proxy, whose address is everybody's.",
    )
    request_timeout_s: float = Field(
        default=30.0, gt=0, le=600, description="How long a request to a node may take before it answers 503 or 504."
    )
    head_timeout_s: float = Field(
        default=10.0, gt=0, le=600, description="How long the head of a request may take to arrive, in all."
    )
    keep_alive_timeout_s: int = Field(
        default=90,
        ge=1,
        le=3600,
        description="How long a connection may be idle between requests. Above the same of a load balancer in front "
        "(often 60 s), which otherwise sends a request into a connection that is being closed, and answers 502.",
    )
    body_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="How long the body of a request may take to arrive, in all; of JSON lines, how long none may.",
    )
    stop_timeout_s: int = Field(
        default=10, ge=1, le=600, description="How long a stop waits for requests that are being answered."
    )
    access_log: bool = Field(
        default=False,
        description="Whether a line of JSON is written to standard output for each request and each WebSocket, when it "
        "ends.",
    )
    otel: bool = Field(
        default=False,
        description="Whether OpenTelemetry traces and metrics are exported (OTLP over HTTP), as OTEL_* variables say; "
        "it needs the extra `otel`.",
    )
    connections_max: int = Field(
        default=10_000,
        ge=1,
        description="Open connections, WebSockets included; past it those that only wait for their client give way, "
        "and where there are none a new one gets 503.",
    )
    address_connections_max: int | None = Field(
        default=None,
        ge=0,
        description="The same of one address, of which IPv6 has a /64; three quarters of connections_max unless given. "
        "0: as many as there may be, for a gateway behind a proxy, whose address is everybody's.",
    )
    body_bytes_max: int = Field(
        default=8 * MIB, ge=KIB, le=1024 * MIB, description="The largest body of a request; past it 413."
    )
    in_flight_bytes_max: int = Field(
        default=128 * MIB,
        ge=KIB,
        description="Bytes of request bodies and WebSocket messages in memory at a time, in all; past it 429, and who "
        "sends slowly gives way.",
    )
    out_bytes_max: int = Field(
        default=256 * MIB,
        ge=8 * MIB,
        description="Bytes on their way out in memory at a time, in all: answers, WebSocket messages, records read "
        "ahead for them. Past it answers become 503, and who reads nothing gives way.",
    )
    connection_out_bytes_max: int = Field(
        default=32 * MIB,
        ge=MIB,
        description="The same for one connection; one answer may pass when nothing else is on its way there.",
    )
    records_per_request_max: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Records in one publish and in one fetch."
    )
    fetch_bytes_max: int = Field(
        default=8 * MIB,
        ge=KIB,
        le=FETCH_BYTES_MAX,
        description="Payload bytes in the answer to one fetch (one record may pass).",
    )
    fetch_wait_ms_max: int = Field(
        default=30_000, ge=0, le=FETCH_WAIT_MS_MAX, description="How long a fetch may wait for records."
    )
    producers_max: int = Field(
        default=1024,
        ge=1,
        description="Topics that are published to at a time, counted for each caller; the longest unused give way.",
    )
    allowed_origins: list[str] = Field(
        default=[],
        description="Origins of pages besides the gateway's own that may open a WebSocket, change something and see "
        "answers (CORS); * allows every page.",
    )
    allowed_hosts: list[Address] = Field(
        default=[],
        description="Names by which this gateway may be asked over plain HTTP with auth = none, besides addresses, "
        "localhost, the machine's name, `host` and the hosts of allowed_origins; other names get 421, as a page of "
        "the web may have given them to it. * allows every name.",
    )
    ws_connections_max: int = Field(
        default=2000,
        ge=1,
        description="Open WebSockets and streams; past it close code 4429, or 429. One caller has as many as are free: "
        "alone half of them.",
    )
    ws_subscriptions_max: int = Field(default=64, ge=1, le=4096, description="Subscriptions of one WebSocket.")
    ws_publishes_max: int = Field(
        default=64, ge=1, le=4096, description="Unanswered pub messages of one WebSocket; past it reading stops."
    )
    ws_message_bytes_max: int = Field(
        default=1 * MIB, ge=KIB, le=64 * MIB, description="The largest message a WebSocket may send; past it 1009."
    )
    ws_batch_records_max: int = Field(default=1000, ge=1, le=100_000, description="Records in one batch message.")
    ws_batch_bytes_max: int = Field(
        default=1_000_000,
        ge=KIB,
        le=64 * MIB,
        description="Bytes of one batch message as it is sent; a record that alone is longer is sent alone. The "
        "default suits clients that take messages of up to 1 MiB.",
    )
    ws_ping_interval_s: float = Field(default=20.0, gt=0, le=3600, description="How often a WebSocket is pinged.")
    ws_ping_timeout_s: float = Field(default=20.0, gt=0, le=3600, description="How long the answer to a ping may take.")
    ws_member_idle_s: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="How long a member of a group may give no credit while there is something to send to it: its "
        "subscription ends then, and others of the group get its partitions.",
    )
    stream_heartbeat_s: float = Field(
        default=15.0,
        gt=0,
        le=3600,
        description="Time without an event after which a stream gets a comment; less than the idle timeout of a proxy "
        "in front (often 60 s).",
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
        description="The page `/ui`. read_only: the page offers no changes; the rights of callers are unchanged. off: "
        "the gateway serves no page and samples no figures.",
    )
    ui_interval_s: float = Field(
        default=10.0,
        ge=1,
        le=600,
        description="How often the figures of all topics are sampled for the page; less often where a sample takes "
        "more than a fiftieth of that.",
    )

    @model_validator(mode="after")
    def _key_has_its_certificate(self) -> Self:
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_key_file is of no use without tls_cert_file: give that, too")
        return self
