"""Run a module as a child that ends with its parent, and whose directory goes then, too.

    python -m tidelog_cli.up.temporary_child DIRECTORY MODULE ARGUMENT…

The parent holds the other end of the child's standard input and never writes to it. When that pipe ends, whatever
ended the parent, the child's process becomes one that removes DIRECTORY: nothing of the child runs on meanwhile, and
nobody else is needed to tidy up. For programs whose data nobody wants afterwards: a node of somebody's tests.
Rejected: PR_SET_PDEATHSIG, as `child` has it, which goes by the thread that started the child: a test may well start
a node in a thread that ends long before the test does. A graceful stop: nobody is left to wait for it.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from collections.abc import Sequence
from typing import Final

_STDIN: Final = 0


def main(arguments: Sequence[str]) -> None:
    """Tie this process to its standard input, then be the module."""
    directory, module, *rest = arguments
    threading.Thread(target=_end_with_stdin, args=(directory,), name="tied", daemon=True).start()
    sys.argv[1:] = rest
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with_stdin(directory: str) -> None:
    while os.read(_STDIN, 1 << 10):
        pass
    os.execvp("rm", ["rm", "-rf", "--", directory])  # noqa: S606, S607 - the system's own, and no shell


if __name__ == "__main__":
    main(sys.argv[1:])
