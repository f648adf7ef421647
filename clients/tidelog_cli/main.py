"""The `tidelog` command: its sub-commands, and its run, in which errors become one line and an exit code.

The module of a command is loaded only for that command or for the help: all modules take 0.05 s of processor time, and
those of an installed part, such as the gateway, up to 0.5 s.
"""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint
from typing import Annotated, Final

import typer
from typer.core import TyperGroup

from tidelog.base.context_variable import CONTEXT_VARIABLE
from tidelog_cli import plugins
from tidelog_cli.base.failures import EXIT_CODES_HELP, EXIT_FAILED, EXIT_INTERRUPTED, describe, exit_code_of
from tidelog_cli.base.interrupts import interrupts_end_quietly
from tidelog_cli.base.output import note
from tidelog_cli.base.session import named_context
from tidelog_cli.base.standard_output import changes, output_lost, track_runs
from tidelog_proto.process.arrow_without_pandas import disable_pandas_import
from tidelog_proto.process.garbage_collection import no_collections
from tidelog_proto.process.standard_streams import OutputLostError
from tidelog_proto.version import VERSION

OWN_COMMANDS: Final = {
    "up": "tidelog_cli.up.command:register",
    "topic": "tidelog_cli.topics.command:register",
    "produce": "tidelog_cli.records.produce:register",
    "consume": "tidelog_cli.records.consume:register",
    "get": "tidelog_cli.records.get:register",
    "sql": "tidelog_cli.sql.command:register",
    "export": "tidelog_cli.parquet.exporting:register",
    "import": "tidelog_cli.parquet.importing:register",
    "group": "tidelog_cli.admin.groups:register",
    "key": "tidelog_cli.admin.security:register_keys",
    "user": "tidelog_cli.admin.users:register",
    "acl": "tidelog_cli.admin.security:register_rules",
    "quota": "tidelog_cli.admin.quotas:register",
    "cluster": "tidelog_cli.cluster.command:register",
    "certs": "tidelog_cli.certs.command:register",
    "context": "tidelog_cli.admin.contexts:register",
    "spark": "tidelog_cli.admin.spark_bundle:register",
    "deploy": "tidelog_cli.admin.deploy:register",
    "doctor": "tidelog_cli.doctor.command:register",
    "top": "tidelog_cli.top.command:register",
}
"""The commands of this package, each with the function that adds it to the app."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (see `failures`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not __debug__:
        sys.stderr.write("tidelog: python -O is refused: assertions guard your data; run without -O\n")
        return EXIT_FAILED
    changes.set(False)
    try:
        with interrupts_end_quietly(), no_collections():
            if "--version" in itertools.takewhile(lambda word: word != "--", arguments):
                sys.stdout.write(f"tidelog {VERSION}\n")  # accepted with any command
                sys.stdout.flush()
                return 0
            command = typer.main.get_command(build_app(parts_meant(arguments), own_meant(arguments)))
            assert isinstance(command, TyperGroup)
            if "pyarrow" in sys.modules:  # otherwise `with_client` does so, which is the first to use it
                disable_pandas_import()
            track_runs(command)
        try:
            command(arguments, prog_name="tidelog")
        except SystemExit as leaving:
            if leaving.code:
                return leaving.code if isinstance(leaving.code, int) else EXIT_FAILED
        sys.stdout.flush()
    except OutputLostError as error:
        return output_lost(_from_command(arguments), error, has_run=changes.get())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the outermost boundary: everything becomes one line
        if "--debug" in arguments[: len(arguments) - len(_from_command(arguments))]:
            traceback.print_exception(error)
        note(f"tidelog: {describe(error)}")
        return exit_code_of(error)
    return 0


def build_app(parts: Iterable[EntryPoint] | None = None, own: Iterable[str] = tuple(OWN_COMMANDS)) -> typer.Typer:
    """Return the app with the sub-commands `own` and those of `parts`; None for all installed parts."""
    app = typer.Typer(
        name="tidelog",
        help="A clustered, durable message log whose unit of work is an Arrow record batch.",
        epilog=EXIT_CODES_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name in own:
        EntryPoint(name, OWN_COMMANDS[name], plugins.GROUP).load()(app)
    plugins.register_plugins(app, plugins.installed_entries() if parts is None else parts)
    return app


def parts_meant(arguments: Sequence[str]) -> list[EntryPoint]:
    """Return the installed parts that may have the command in `arguments`; all without a command."""
    command = next(iter(_from_command(arguments)), None)
    return [] if command in OWN_COMMANDS else plugins.entries_with(command)


def own_meant(arguments: Sequence[str]) -> list[str]:
    """Return the command in `arguments` if it is one of `OWN_COMMANDS`, and none if a part has it; otherwise all.

    The help and the hints about an unknown command list all of them.
    """
    command = next(iter(_from_command(arguments)), None)
    if command in OWN_COMMANDS:
        return [command]
    return [] if plugins.has_command(command) else list(OWN_COMMANDS)


def _from_command(arguments: Sequence[str]) -> Sequence[str]:
    before = [None, *arguments]  # The value of `--context` is not a command.
    start = (at for at, word in enumerate(arguments) if not word.startswith("-") and before[at] != "--context")
    return arguments[next(start, len(arguments)) :]


def _options(
    *,
    context: Annotated[
        str, typer.Option("--context", envvar=CONTEXT_VARIABLE, help="The cluster to use: see `tidelog context`.")
    ] = "",
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version_wanted: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    # `main` has handled both before parsing, so that they work in spite of other errors.
    del debug, version_wanted
    named_context.set(context or None)
