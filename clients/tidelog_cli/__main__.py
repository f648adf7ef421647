"""Entry point of the `tidelog` command, as a script and as `python -m tidelog_cli`."""

from __future__ import annotations

import gc
import sys

from tidelog_cli.base.interrupts import interrupts_change_nothing, interrupts_end_quietly
from tidelog_proto.process.garbage_collection import no_collections
from tidelog_proto.process.standard_streams import escape_unencodable, open_closed_streams


def run() -> int:
    """Load the command and run it; return its exit code."""
    # First, because a file that is opened while a standard stream is closed gets the stream's descriptor.
    open_closed_streams()
    with interrupts_end_quietly(), no_collections():
        escape_unencodable()
        from tidelog_cli.base.failures import EXIT_INTERRUPTED  # noqa: PLC0415 - loaded after the setup above
        from tidelog_cli.base.standard_output import check_standard_output, leave_quietly  # noqa: PLC0415 - as above
        from tidelog_cli.main import main  # noqa: PLC0415 - loaded after the setup above

        check_standard_output()
        gc.freeze()  # the loaded modules are never garbage, so collections need not examine them

    try:
        try:
            return main()
        finally:
            interrupts_change_nothing()
            leave_quietly()
    except KeyboardInterrupt:  # one after the end of `main`, which handles those of the command
        interrupts_change_nothing()
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(run())
