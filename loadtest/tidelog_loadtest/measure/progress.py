"""What a benchmark of some minutes is at, on stderr, where that is a terminal; standard output is for the figures.

It is drawn once a second and not more often, because what is measured runs in this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Tell = Callable[[str, int], None]
"""Is told what begins now, and how many steps are done."""


def say_nothing(_stage: str, _done: int) -> None:
    """Take it and leave it: for who does not watch."""


@contextlib.contextmanager
def shown(steps: int, *, console: Console | None = None) -> Iterator[Tell]:
    """Give what a benchmark tells its progress to; it is gone from the screen at the end.

    Args:
        steps: how many there will be, 1 or more.
        console: standard error unless given.
    """
    assert steps >= 1
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield say_nothing
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, refresh_per_second=1, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task("starting", total=steps)

        def tell(stage: str, done: int) -> None:
            progress.update(task, description=stage, completed=done)

        yield tell
