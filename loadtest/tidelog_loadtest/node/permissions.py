"""`tidelog bench permissions`: the cost of authentication and permissions for a publish.

Two nodes run side by side, one without authentication and one with principals and permission rules. Single records are
published to them, alternating in short rounds; every second round starts with the other node. The figures are the
processor time of node and client per publish, as medians over the rounds. Busy polling is disabled, since it would be
counted. The client does the same work for both nodes, so the deviation of its ratio from 1 shows the error of the
node's ratio. TLS is not used: the option `--secure` of `tidelog bench produce` measures it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from tidelog import Client
from tidelog.security import AccessRule
from tidelog_cli.up.child_processes import running
from tidelog_loadtest.measure import product
from tidelog_loadtest.measure.environment import Environment
from tidelog_loadtest.measure.footprint import Watch
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.progress import Tell, say_nothing
from tidelog_loadtest.measure.runs import Budget
from tidelog_proto.auth.api_key import new_key

KINDS: Final = ("open", "asks")
_PRINCIPAL: Final = "bench"
_RETENTION_BYTES: Final = 64 << 20
_QUIET: Final = {"TIDELOG_NODE_IDLE_POLL_US": "0"}
"""Busy polling is disabled, because it would count as processor time."""


@dataclass(frozen=True, slots=True)
class PermissionsPlan:
    """The parameters of the benchmark.

    Attributes:
        records: publishes to each node per round, each after the acknowledgement of the previous one.
        rules: number of access rules for other principals.
        rounds: number of rounds.
        size_bytes: size of a value.
        flush: setting of both topics.
        data: directory for temporary files.
    """

    records: int = 200
    rules: int = 200
    rounds: int = 99
    size_bytes: int = 100
    flush: FlushName = "never"
    data: Path | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time per publish in one round, in microseconds."""

    client_us: float
    node_us: float


@dataclass(slots=True)
class PermissionsResult:
    """The costs of both nodes in all rounds."""

    plan: PermissionsPlan
    costs: dict[str, list[Cost]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def median(self, kind: str, what: str) -> float:
        """Return the median over the rounds of `client_us` or `node_us`."""
        figures: list[float] = [getattr(cost, what) for cost in self.costs[kind]]
        return statistics.median(figures)

    def ratio(self, what: str) -> float:
        """Return the median over the rounds of the cost with authentication divided by the cost without."""
        pairs = zip(*(self.costs[kind] for kind in KINDS), strict=True)
        ratios: list[float] = [getattr(asks, what) / getattr(free, what) for free, asks in pairs]
        return statistics.median(ratios)

    def document(self, environment: Environment) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        plan = asdict(self.plan)
        del plan["data"]
        figures = {
            what: {kind: round(self.median(kind, what), 2) for kind in KINDS} | {"ratio": round(self.ratio(what), 4)}
            for what in ("node_us", "client_us")
        }
        return {"benchmark": "permissions", **plan, **figures, "environment": asdict(environment)}

    def table(self) -> Table:
        """Return the costs as a table."""
        plan = self.plan
        table = Table(title=f"{plan.records:,} publishes per round, {plan.rounds} rounds, flush={plan.flush}")
        for column in ("CPU a publish", "no authentication", "authentication", "ratio"):
            table.add_column(column, justify="left" if column == "CPU a publish" else "right")
        for what, name in (("node_us", "node"), ("client_us", "client")):
            figures = (f"{self.median(kind, what):.1f} µs" for kind in KINDS)
            table.add_row(name, *figures, f"{self.ratio(what):.3f}")
        return table


@dataclass(frozen=True, slots=True)
class _Side:
    client: Client
    topic: str
    pids: dict[str, int]


async def permissions(plan: PermissionsPlan, tell: Tell = say_nothing) -> PermissionsResult:
    """Run the benchmark.

    Raises:
        CommandFailed: a node did not start.
        TidelogError: a node rejected a request.
    """
    result = PermissionsResult(plan)
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=plan.data) as directory:
        async with AsyncExitStack() as stack:
            sides = {kind: await _side(plan, Path(directory), kind, stack) for kind in KINDS}
            for side in sides.values():
                await _cost(side, plan)
            for number in range(plan.rounds):
                for kind in KINDS if number % 2 else reversed(KINDS):
                    result.costs[kind].append(await _cost(sides[kind], plan))
                tell("round", number + 1)
    return result


async def _cost(side: _Side, plan: PermissionsPlan) -> Cost:
    async with Watch(side.pids) as watch:
        run = await product.latency_run(side.client, side.topic, bytes(plan.size_bytes), Budget(batches=plan.records))
    return Cost(*(watch.cpu_s[name] / run.records * 1e6 for name in ("client", "node")))


async def _side(plan: PermissionsPlan, directory: Path, kind: str, stack: AsyncExitStack) -> _Side:
    """Start a node and create the topic."""
    home = directory / kind
    home.mkdir()
    options: tuple[str, ...] = ()
    key = new_key().text
    if kind == "asks":
        admin_key, config = home / "admin.key", home / "node.toml"
        admin_key.touch(mode=0o600)
        admin_key.write_text(key)
        config.write_text(f'[node]\nauth = "required"\nadmin_key_file = "{admin_key}"\n')
        options = ("--config", str(config))
    arguments = ("node", *options, "--data", str(home / "node"), "--port", "0", "--management-port", "0")
    log = stack.enter_context((home / "node.log").open("ab"))
    node = await stack.enter_async_context(running("node", arguments, log=log, environ=os.environ | _QUIET))
    bootstrap = f"127.0.0.1:{node.ready['port']}"
    if kind == "asks":
        key = await _admit(bootstrap, key, plan)
    client = await stack.enter_async_context(Client(bootstrap, client_id="tidelog-bench", idle_poll_us=0, api_key=key))
    own = product.own_topic(client, plan.flush, retention_bytes=_RETENTION_BYTES)
    topic = await stack.enter_async_context(own)
    return _Side(client, topic, {"client": os.getpid(), "node": node.process.pid})


async def _admit(bootstrap: str, admin_key: str, plan: PermissionsPlan) -> str:
    """Create the benchmark's API key and rule, and rules for other principals; return the key."""
    async with Client(bootstrap, api_key=admin_key) as admin:
        for number in range(plan.rules):
            await admin.security.grant(
                AccessRule(f"other-{number}", ("produce",), "topic", f"other-{number}-", prefix=True)
            )
        await admin.security.grant(AccessRule(_PRINCIPAL, ("all",), "topic", "bench-", prefix=True))
        return (await admin.security.create_key(_PRINCIPAL)).api_key
