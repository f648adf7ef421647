"""Explores all states of the small cluster within limits, breadth first, so that it finds the shortest way.

The cluster has far more states than a node: an event's effect on a node is computed once for each state of that node
and looked up from then on, together with what it sends and what of it is to be checked; likewise what a check makes of
the observer's knowledge. Two states are one when their nodes, messages, remaining bounds, and what is committed and
decided are the same.

The cluster begins at rest: everybody has heard the first owner. With `in_order`, messages of a link arrive in the order
in which they were sent, as on a connection, and a connection may break with all that is under way; without, in any
order. The first has so many fewer states that takeovers can be gone through to the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import astuple, dataclass, field, replace
from typing import Any, NamedTuple

from tests.simulation.clone import clone
from tests.simulation.freeze import fingerprint
from tests.simulation.small_world import NODES, Bounds, Choice, Flying, Node, SmallWorld
from tests.simulation.truth import Truth, ViolationError

from tidelog_broker.core.replication.replica import Replica

SPENT_BY = {
    "publish": "publishes",
    "take over": "takeovers",
    "roll over": "roll_overs",
    "delete": "deletions",
    "crash": "crashes",
    "tick": "ticks",
    "lose": "losses",
    "cut": "cuts",
}
"""Which bound an event uses up."""


@dataclass(slots=True)
class Found:
    """Result of a search. `trace` leads to a violation, if one was found."""

    states: int = 0
    steps: int = 0
    complete: bool = False
    violation: str = ""
    trace: list[str] = field(default_factory=list)


class State(NamedTuple):
    """The cluster: the states of its nodes and its messages by number, what may still happen, the time."""

    nodes: tuple[int, ...]
    messages: tuple[int, ...]
    bounds: tuple[int, ...]
    now_ms: int
    published: int


class Event(NamedTuple):
    """Something that may happen: to a node, by a message, or to a link (`what` names it)."""

    kind: str
    what: str
    node: int
    message: int = -1


class Outcome(NamedTuple):
    """Outcome of an event at a node: the node's new state, its messages, and the checks to run."""

    number: int
    node: int
    sent: tuple[int, ...]
    now_ms: int
    checks: list[Callable[[Truth], object]]


class Recorder:
    """Replaces the observer while an outcome is computed, and records its calls."""

    def __init__(self, watermark: int) -> None:
        self.checks: list[Callable[[Truth], object]] = []
        self._watermark = watermark

    def start_watermark(self, replica: Replica, watermark: int) -> None:
        self._watermark = watermark
        self.checks.append(lambda truth: truth.start_watermark(replica, watermark))

    def watermark_moved(self, replica: Replica, watermark: int) -> bool:
        moved, self._watermark = watermark != self._watermark, watermark
        if moved:
            self.checks.append(lambda truth: truth.watermark_moved(replica, watermark))
        return moved

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(*arguments: Any) -> None:
            self.checks.append(lambda truth: getattr(truth, name)(*arguments))

        return note


class Search:
    """All states within `bounds`."""

    def __init__(self, bounds: Bounds, *, in_order: bool) -> None:
        self._in_order = in_order
        self._world = SmallWorld(replace(bounds))
        self._world.settle()
        self._nodes: list[Node] = []
        self._node_numbers: dict[bytes, int] = {}
        self._messages: list[Flying] = []
        self._message_numbers: dict[Flying, int] = {}
        self._truths: list[Truth] = []
        self._truth_numbers: dict[bytes, int] = {}
        self._known: list[tuple[object, ...]] = []
        """Of each of the observer's states, what makes states of the cluster differ."""
        self._outcomes: dict[tuple[object, ...], Outcome] = {}
        self._judged: dict[tuple[int, int], int] = {}
        self._own: dict[tuple[int, tuple[bool, ...]], list[Event]] = {}

    def run(self, states_max: int) -> Found:
        """Go through the states, as far as `states_max`."""
        found = Found()
        first = State(
            tuple(self._node(node) for node in self._world.nodes.values()),
            (),
            astuple(self._world.bounds),
            self._world.now_ms,
            0,
        )
        truth = self._truth(self._world.truth)
        seen = {(first, self._known[truth])}
        ways: list[tuple[int, str]] = [(-1, "")]
        queue = deque([(0, first, truth)])
        while queue and len(seen) <= states_max and not found.violation:
            way, state, truth = queue.popleft()
            for event in self._events(state):
                found.steps += 1
                try:
                    after, truth_after = self._after(state, truth, event)
                except (ViolationError, AssertionError) as error:
                    found.violation = str(error) or "an assertion of the core"
                    found.trace = [*_trace(ways, way), f"{event.kind} {event.what}"]
                    break
                key = (after, self._known[truth_after])
                if key not in seen:
                    seen.add(key)
                    ways.append((way, f"{event.kind} {event.what}"))
                    queue.append((len(ways) - 1, after, truth_after))
        found.states = len(seen)
        found.complete = not queue and not found.violation
        return found

    # ------------------------------------------------------------------------------------------ numbers

    def _node(self, node: Node) -> int:
        number = self._node_numbers.setdefault(fingerprint(node), len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(node)
        return number

    def _message(self, message: Flying) -> int:
        number = self._message_numbers.setdefault(message, len(self._messages))
        if number == len(self._messages):
            self._messages.append(message)
        return number

    def _truth(self, truth: Truth) -> int:
        number = self._truth_numbers.setdefault(fingerprint(truth), len(self._truths))
        if number == len(self._truths):
            self._truths.append(truth)
            known = (*sorted(truth.committed.items()), *sorted(truth.chosen), *sorted(truth.deleted.items()))
            self._known.append(known)
        return number

    # ------------------------------------------------------------------------------------------ what may happen

    def _events(self, state: State) -> Iterator[Event]:
        links: set[tuple[str, str]] = set()
        bounds = Bounds(*state.bounds)
        for number in state.messages:
            message = self._messages[number]
            link = (message.sender, message.to)
            if not self._in_order or link not in links:
                what = f"{message.sender}>{message.to} {message.kind.__name__}"
                yield Event("deliver", what, NODES.index(message.to), number)
            links.add(link)
        if bounds.cuts:
            for sender, to in sorted(links):
                yield Event("cut", f"{sender}>{to}", -1)
        for at, node in enumerate(state.nodes):
            yield from self._of_node(at, node, bounds)

    def _of_node(self, at: int, node: int, bounds: Bounds) -> list[Event]:
        key = (node, tuple(map(bool, astuple(bounds))))
        events = self._own.get(key)
        if events is None:
            world = self._scratch(self._nodes[node], bounds)
            choices: list[Choice] = world.choices_of(self._nodes[node])
            events = self._own[key] = [Event(choice.kind, choice.what, at) for choice in choices]
        return events

    def _scratch(self, node: Node, bounds: Bounds) -> SmallWorld:
        world = copy(self._world)
        world.bounds, world.nodes, world.flying, world.trace = bounds, {node.node_id: node}, [], []
        return world

    # ------------------------------------------------------------------------------------------ results

    def _after(self, state: State, truth: int, event: Event) -> tuple[State, int]:
        bounds = state.bounds
        if event.kind in SPENT_BY:
            spent = Bounds(*bounds)
            setattr(spent, SPENT_BY[event.kind], getattr(spent, SPENT_BY[event.kind]) - 1)
            bounds = astuple(spent)
        if event.kind == "cut":
            kept = [
                one for one in state.messages if f"{self._messages[one].sender}>{self._messages[one].to}" != event.what
            ]
            return state._replace(messages=tuple(kept), bounds=bounds), truth
        outcome = self._outcome(state, event)
        nodes = list(state.nodes)
        nodes[event.node] = outcome.node
        messages = [one for one in state.messages if one != event.message]
        messages += [one for one in outcome.sent if one not in messages]
        messages.sort(key=self._link if self._in_order else None)
        published = state.published + (event.kind == "publish")
        after = State(tuple(nodes), tuple(messages), bounds, outcome.now_ms, published)
        return after, self._judge(truth, outcome)

    def _link(self, number: int) -> tuple[str, str]:
        return self._messages[number].sender, self._messages[number].to

    def _outcome(self, state: State, event: Event) -> Outcome:
        number = state.nodes[event.node]
        of_world = (state.published, state.bounds) if event.kind in {"publish", "roll over"} else ()
        key = (number, event.kind, event.message, state.now_ms, of_world)
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = self._compute(state, self._nodes[number], event)
        return outcome

    def _compute(self, state: State, node: Node, event: Event) -> Outcome:
        node = clone(node)
        world = self._scratch(node, Bounds(*state.bounds))
        recorder = Recorder(node.replica.state.high_watermark if node.replica is not None else 0)
        world.truth, world.now_ms, world.published = recorder, state.now_ms, state.published  # type: ignore[assignment]
        if event.message >= 0:
            world.flying = [self._messages[event.message]]
            world.deliver(0, keep=False)
        else:
            next(choice for choice in world.choices_of(node) if choice.kind == event.kind).do()
        sent = tuple(map(self._message, world.flying))
        return Outcome(len(self._outcomes), self._node(node), sent, world.now_ms, recorder.checks)

    def _judge(self, truth: int, outcome: Outcome) -> int:
        """Return the observer's knowledge after an outcome; raises ViolationError for an invalid one."""
        if not outcome.checks:
            return truth
        key = (truth, outcome.number)
        after = self._judged.get(key)
        if after is None:
            observer = clone(self._truths[truth])
            for check in outcome.checks:
                check(observer)
            after = self._judged[key] = self._truth(observer)
        return after


def _trace(ways: list[tuple[int, str]], way: int) -> list[str]:
    found: list[str] = []
    while way > 0:
        way, what = ways[way]
        found.append(what)
    return found[::-1]


def explore(bounds: Bounds, *, states_max: int, in_order: bool = False) -> Found:
    """Go through the states that can be reached within `bounds`."""
    return Search(bounds, in_order=in_order).run(states_max)
