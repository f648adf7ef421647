"""`make loadtest`: run locust's users in a ramp against a node and a gateway, compare the figures with limits, report.

Locust runs as a separate process because importing it patches the standard library. Locust writes its figures to files;
this process reads them, compares them with the limits and writes the report. The exit code is 0 if all limits were
kept, 130 after Ctrl-C or SIGTERM, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog import Client
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import running
from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.measure.results import machine_of
from tidelog_loadtest.users import mixes
from tidelog_loadtest.users.report import report
from tidelog_loadtest.users.thresholds import judge, read_figures, read_moments

LOCUST_OVERTIME_S: Final = 60.0
"""Time limit for locust, in addition to the duration of the run, for its start, for stopping the users and for printing
the table."""

LOCUST_STOP_TIMEOUT_S: Final = 20.0
PARTITIONS: Final = 4
USERS_MIN: Final = 8
"""Minimum number of users, so that each class of the largest mix has at least one."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The parameters of a load test.

    Attributes:
        seconds: duration, including the ramp.
        users: number of users at the end of the ramp.
        mix: a key of `mixes.MIXES`.
        workers: worker processes of the gateway.
        p95_ms: kind of request -> maximum of the 95th percentile of its response time.
        min_per_s: kind of request -> minimum rate in requests per second.
        failures_max: maximum share of failed requests.
        html: path of the report.
    """

    seconds: int
    users: int
    mix: str
    workers: int
    p95_ms: Mapping[str, float]
    min_per_s: Mapping[str, float]
    failures_max: float
    html: Path


async def run(plan: LoadPlan, directory: Path) -> int:
    """Run the load test with its files in `directory`; write the report and return the exit code.

    Raises:
        CommandFailed: node or gateway did not start, or locust failed or did not end in time.
        TidelogError: a topic could not be created.
    """
    async with contextlib.AsyncExitStack() as stack:
        node_command = ("node", "--data", str(directory / "node"), "--port", "0", "--management-port", "0")
        node = await stack.enter_async_context(running("node", node_command))
        bootstrap = f"127.0.0.1:{node.ready['port']}"
        options = ("--bootstrap", bootstrap, "--http-port", "0", "--workers", str(plan.workers))
        gateway = await stack.enter_async_context(running("gateway", ("--context=", "gateway", *options)))
        async with Client(bootstrap, client_id="tidelog-loadtest") as client:
            for topic in (mixes.TOPIC, mixes.BULK_TOPIC):
                await client.create_topic(topic, partitions=PARTITIONS, flush="never")
        code = await _locust(plan, bootstrap, f"http://127.0.0.1:{gateway.ready['http_port']}", directory / "run")
    if code:
        raise CommandFailed(f"locust ended with code {code}; see its messages above")
    return judged(plan, directory)


def judged(plan: LoadPlan, directory: Path) -> int:
    """Compare the figures in `directory` with the limits, report both, and return the exit code."""
    figures = read_figures(directory / "run_stats.csv")
    moments = read_moments(directory / "run_stats_history.csv")
    verdicts = judge(
        figures,
        mixes.reported_by(plan.mix),
        p95_ms=plan.p95_ms,
        min_per_s=plan.min_per_s,
        failures_max=plan.failures_max,
    )
    facts = {
        "mix": plan.mix,
        "users": f"{plan.users}, in {len(mixes.STEPS)} steps",
        "time": f"{plan.seconds} s",
        "gateway": f"{plan.workers} worker{'s' if plan.workers > 1 else ''}, one node",
        "machine": machine_of(environment_of(directory)),
    }
    plan.html.write_text(report("Load test of Tidelog", facts, figures, moments, verdicts))
    broken = [verdict for verdict in verdicts if not verdict.is_kept]
    for verdict in broken:
        sys.stdout.write(f"limit exceeded: {verdict.what}; measured: {verdict.found}\n")
    sys.stdout.write(f"{len(verdicts) - len(broken)} of {len(verdicts)} limits kept; report: {plan.html}\n")
    return 1 if broken else 0


async def _locust(plan: LoadPlan, bootstrap: str, http_url: str, prefix: Path) -> int:
    locustfile = Path(__file__).with_name("locustfile.py")
    variables = {
        "TIDELOG_BOOTSTRAP": bootstrap,
        mixes.MIX_VARIABLE: plan.mix,
        mixes.USERS_VARIABLE: str(plan.users),
        mixes.SECONDS_VARIABLE: str(plan.seconds),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary", "--host", http_url,
        "--csv", str(prefix), "--csv-full-history", "--stop-timeout", "5", "--exit-code-on-error", "0",
        "--loglevel", "WARNING", *mixes.MIXES[plan.mix],
        env=os.environ | variables, start_new_session=True,
    )  # fmt: skip
    try:
        return await asyncio.wait_for(process.wait(), plan.seconds + LOCUST_OVERTIME_S)
    except TimeoutError:
        message = f"locust did not end within {LOCUST_OVERTIME_S:.0f} s after its run of {plan.seconds} s"
        raise CommandFailed(message) from None
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), LOCUST_STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def plan_of(arguments: Sequence[str] | None = None) -> LoadPlan:
    """Parse the command line.

    Raises:
        SystemExit: an option has an invalid value.
    """
    parser = argparse.ArgumentParser(prog="python -m tidelog_loadtest.users.run", description="A headless load test")
    parser.add_argument("--seconds", type=_at_least(4), default=60, help="duration, including the ramp")
    parser.add_argument("--users", type=_at_least(USERS_MIN), default=14, help="users at the end of the ramp")
    parser.add_argument("--mix", choices=tuple(mixes.MIXES), default="all", help="classes of users")
    parser.add_argument("--workers", type=_at_least(1), default=1, help="worker processes of the gateway")
    parser.add_argument(
        "--p95-ms", type=_limit, action="append", default=[], metavar="KIND=MS",
        help="maximum 95th percentile of the response time of a kind of request",
    )  # fmt: skip
    parser.add_argument(
        "--min-rate", type=_limit, action="append", default=[], metavar="KIND=N",
        help="minimum number of requests of a kind per second",
    )  # fmt: skip
    parser.add_argument(
        "--failures-max", type=_share, default=0.0, metavar="SHARE", help="maximum share of failed requests, 0 to 1"
    )
    parser.add_argument("--html", type=_report_path, default=Path("loadtest.html"), help="path of the report")
    options = parser.parse_args(arguments)
    kinds = mixes.reported_by(options.mix)
    for name, _ in [*options.p95_ms, *options.min_rate]:
        if name not in kinds:
            parser.error(f"mix {options.mix!r} has no requests of kind {name!r}; choose from: {', '.join(kinds)}")
    return LoadPlan(
        seconds=options.seconds,
        users=options.users,
        mix=options.mix,
        workers=options.workers,
        p95_ms={**mixes.P95_MS, **dict(options.p95_ms)},
        min_per_s=dict(options.min_rate),
        failures_max=options.failures_max,
        html=options.html,
    )


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return number


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not name or not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected KIND=NUMBER with a number of 0 or more, got {text!r}")
    return name, number


def _report_path(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in an existing directory, got {text!r}")
    return path


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text}")
    return value


def main() -> int:
    """Run as a program; Ctrl-C and SIGTERM end all child processes."""
    plan = plan_of()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.stdout.write(f"load test: {plan.users} users for {plan.seconds} s; the table follows at the end\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="tidelog-loadtest-") as directory:
        try:
            return asyncio.run(run(plan, Path(directory)))
        except CommandFailed as error:
            sys.stderr.write(f"load test: {error}\n")
            return 1
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())
