"""The node's settings: the `[node]` table of the configuration file, or `TIDELOG_NODE_…` variables.

Defaults suit a laptop; the bounds that protect memory are all here, and their sum is what a node may hold.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tidelog_proto.limits import FRAME_BYTES_MAX, MIB


class NodeSettings(BaseModel):
    """What one node needs to know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Path = Field(description="The data directory. One node at a time may use it.")
    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(7400, ge=0, le=65535, description="The native protocol's port; 0 picks a free one.")
    advertise_host: str | None = Field(
        None, description="The address that clients are told to use; `host` unless given."
    )
    management_host: str = Field("127.0.0.1", description="Where health and metrics listen.")
    management_port: int = Field(7401, ge=0, le=65535, description="Health and metrics (HTTP); 0 picks a free one.")
    zone: str = Field("default", max_length=200, description="Where the machine stands; copies spread over zones.")
    io_workers: int = Field(2, ge=1, le=64, description="Threads that read, write and sync.")
    connections_max: int = Field(4096, ge=1, description="Client connections; more are refused.")
    node_in_flight_bytes: int = Field(
        512 * MIB, ge=FRAME_BYTES_MAX, description="Bytes of requests being worked on, all connections together."
    )
    connection_in_flight_bytes: int = Field(
        128 * MIB,
        ge=FRAME_BYTES_MAX,
        description="The same for one connection; past it the node stops reading from it.",
    )
    partition_in_flight_bytes: int = Field(
        64 * MIB, ge=FRAME_BYTES_MAX, description="Bytes waiting to be appended to one partition; more is refused."
    )
    requests_in_flight: int = Field(1024, ge=1, description="Unanswered requests of one connection.")
    subscriptions_max: int = Field(256, ge=1, description="Subscriptions of one connection.")
    ring_bytes: int = Field(16 * MIB, ge=0, description="The newest batches of a partition kept in memory.")
    rings_bytes: int = Field(256 * MIB, ge=0, description="The same for all partitions together.")
    group_bytes: int = Field(8 * MIB, ge=1, description="The most that is appended and synced in one go.")
    write_stall_ms: int = Field(
        30_000, ge=100, description="A client that reads nothing for this long, with replies waiting, is cut off."
    )
    hello_timeout_ms: int = Field(10_000, ge=10, description="A new connection says HELLO within this time.")
    retention_interval_ms: int = Field(5_000, ge=10, description="How often old segments are looked for.")
    stop_timeout_ms: int = Field(10_000, ge=0, description="How long a graceful stop waits for work in flight.")

    @field_validator("advertise_host")
    @classmethod
    def _advertise_is_reachable(cls, value: str | None) -> str | None:
        if value is not None and _is_unspecified(value):
            raise ValueError(
                "clients cannot connect to an unspecified address; give a name or an address of this machine"
            )
        return value

    @property
    def advertised_host(self) -> str:
        """The host that metadata names."""
        if self.advertise_host is not None:
            return self.advertise_host
        return "127.0.0.1" if _is_unspecified(self.host) else self.host


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
