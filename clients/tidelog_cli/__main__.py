"""`python -m tidelog_cli`: the command without an installed script, as child processes are started."""

from __future__ import annotations

import sys

from tidelog_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
