"""Progress of a long benchmark on stderr, if that is a terminal; standard output has the results.

The progress line is redrawn only once per second, because that takes processor time from the benchmark in this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Tell = Callable[[str, int], None]
"""A callback that displays progress: called with the name of a step, and the number of completed steps."""


def say_nothing(_stage: str, _done: int) -> None:
    """Ignore progress."""


@contextlib.contextmanager
def shown(steps: int, *, console: Console | None = None) -> Iterator[Tell]:
    """Yield a progress callback for a benchmark; the progress line is removed at the end.

    Args:
        steps: total number of steps, at least 1.
        console: where to draw the progress line; None for standard error.
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
