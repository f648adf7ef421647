"""Write `docs/costs.md` from the tables themselves: `python -m tests.costs_table`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.abuse.known_costs import NODES_ONLY

from tidelog_broker.core.request_costs import (
    BATCHES_PER_PIECE,
    COSTS,
    FILTERED,
    JOIN,
    KNOWN,
    LONG_SLICES,
    LOOK_UP_KEY,
    LOOK_UP_TIME,
    PARTITION_BATCHES,
    SLICE_US,
    SLICE_US_MAX,
)
from tidelog_broker.server.handlers.publish import SLICE_PARTITIONS
from tidelog_broker.wire.quota_account import WORK_US_MAX
from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES, VALUES_MAX
from tidelog_gateway.route_costs import HTTP_COSTS, MESSAGE_COSTS, RouteCost
from tidelog_proto.limits import KIB

PAGE = Path(__file__).parents[1] / "docs" / "costs.md"

_ESTIMATED = " and ".join(f"`{kind}`" for kind in sorted(NODES_ONLY))

INTRODUCTION = f"""\
# What requests cost

A node and a gateway are one event loop each. The cost of a request is computed from its envelope or its body
before its work starts and charged to the caller, and a request of many entries is processed in slices of about
{SLICE_US // 1000} ms. Between two slices the event loop does other work, and callers take turns
([ADR 0127](adr/0127-every-request-kind-has-a-cost-that-is-known-before-its-work-starts.md),
[ADR 0128](adr/0128-large-json-bodies-are-bounded-by-structure-and-parsed-in-pieces.md)).

The limits, which `make abuse` checks with the largest request of every kind and route:

- One request occupies an event loop for at most 50 ms at a time. The aim is {SLICE_US_MAX // 1000} ms; longer requests
  are listed [below](#longer-than-{SLICE_US_MAX // 1000}-ms).
- While a principal sends such requests over four connections, p99 of another one is at most three times that of
  a quiet node, or 90 ms if that of a quiet node is below 30 ms.
- While the active requests of one caller cost {WORK_US_MAX / 1e6:.0f} s of the loop together, its connections are not
  read. Further requests of a gateway's caller are refused with OVERLOADED.
- At most 64 partitions are processed at a time for one caller, in all its requests that name partitions. Topics take
  turns at the threads that write and read the logs
  ([ADR 0188](adr/0188-topics-take-turns-at-the-io-threads.md)).
- The work of a request ends when its connection is closed and when the node stops. A change that has
  begun is finished.
- A gateway checks the permission, the number of records and of JSON values before it creates objects from a body
  of more than {AT_ONCE_BYTES // KIB} KiB. A larger JSON document than {VALUES_MAX:,} values is sent as a string.
- Steps of TLS handshakes are done in turns by address.
- Memory grows by at most a quarter more than the budgets: of a node `node_in_flight_bytes`, `node_outgoing_bytes` and
  `rings_bytes` together, of a gateway `in_flight_bytes_max` and `out_bytes_max`.
- A node, a node of three and a gateway end within their `stop_timeout` in the middle of such floods.

The figures are processor time of the event loop on the machine of [Performance](performance.md), rounded up.
`make abuse` measures each of them and fails where one costs half as much again. Those of {_ESTIMATED}
are estimates: clients are refused before the work of these kinds.

A quota of `requests` counts requests regardless of their cost. Costs limit the pending work of a caller and determine
the turns of callers; neither limit has a setting.
"""


def render() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *_kinds(), *_routes()])


def _kinds() -> list[str]:
    rows = []
    for kind, cost in sorted(COSTS.items()):
        entry = f"{cost.entry_us:g} us a {cost.entry_name}" if cost.entry_us else ""
        entry += f", {cost.mib_us} us a MiB" if cost.mib_us else ""
        most = f"{cost.entries_max:,}" if cost.entry_us else ""
        largest = f"{max(cost.largest_us / 1000, 0.1):,.1f} ms"
        rows.append(f"| `{kind}` | {cost.request_us:,} us | {entry} | {most} | {largest} | {cost.pace.value} |")
    return [
        "## At a node",
        "",
        "| kind | a request | and | at most | the largest | its work is done |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"Some entries count as several: a look-up of `list_offsets` by time as {LOOK_UP_TIME}, one by key as",
        f"{LOOK_UP_KEY}, a partition of `fetch` with a filter as {FILTERED}, a join of `group_heartbeat` as {JOIN:,},",
        f"each further partition of `publish` as {PARTITION_BATCHES} batches, and each partition that the client of",
        f"`metadata` knows as {KNOWN} topics.",
        "*In pages*: an answer is one page, made in one turn.",
        f"*Queued*: batches are verified and queued {BATCHES_PER_PIECE} at a time, {SLICE_PARTITIONS} if each is for a",
        "partition of its own, in the caller's turns of reading; a partition writes up to 256 in one group.",
        "*At once*: in one piece.",
        "",
        f"### Longer than {SLICE_US_MAX // 1000} ms",
        "",
        *(f"- `{kind}`: {why}." for kind, why in sorted(LONG_SLICES.items())),
        "",
    ]


def _routes() -> list[str]:
    return [
        "## At a gateway",
        "",
        *_table("route", HTTP_COSTS),
        "",
        "| message of a WebSocket | the largest | costs | bounded by |",
        "| --- | --- | --- | --- |",
        *(_row(kind, cost) for kind, cost in MESSAGE_COSTS.items()),
        "",
    ]


def _table(what: str, costs: Mapping[str, RouteCost]) -> list[str]:
    head = [f"| {what} | the largest | costs | bounded by |", "| --- | --- | --- | --- |"]
    return head + [_row(route, cost) for route, cost in sorted(costs.items())]


def _row(name: str, cost: RouteCost) -> str:
    slices = ", in slices" if cost.paced else ""
    return f"| `{name}` | {cost.largest} | {cost.largest_ms} ms{slices} | {cost.bound} |"


if __name__ == "__main__":
    PAGE.write_text(render())
