"""Build and run the `tidelog` command; errors become one line and an exit code.

The commands of an installed part, such as the gateway, are loaded only for one of these commands or for the help:
importing a web framework would double the time of every small command.
"""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint
from typing import Annotated, Final

import typer
from typer.core import TyperGroup

from tidelog.cluster.contexts import CONTEXT_VARIABLE
from tidelog_cli import plugins
from tidelog_cli.admin import contexts, deploy, groups, quotas, security, spark_bundle, users
from tidelog_cli.base.failures import EXIT_CODES_HELP, EXIT_FAILED, EXIT_INTERRUPTED, describe, exit_code_of
from tidelog_cli.base.interrupts import interrupts_end_quietly
from tidelog_cli.base.output import note
from tidelog_cli.base.session import named_context
from tidelog_cli.base.standard_output import changes, output_lost, track_runs
from tidelog_cli.certs import command as certs
from tidelog_cli.cluster import command as cluster
from tidelog_cli.doctor import command as doctor
from tidelog_cli.parquet import exporting, importing
from tidelog_cli.records import consume, get, produce
from tidelog_cli.sql import command as sql
from tidelog_cli.top import command as top
from tidelog_cli.topics import command as topics
from tidelog_cli.up import command as up
from tidelog_proto.process.arrow_without_pandas import disable_pandas_import
from tidelog_proto.process.garbage_collection import no_collections
from tidelog_proto.process.standard_streams import OutputLostError
from tidelog_proto.version import VERSION

OWN_COMMANDS: Final[dict[str, Callable[[typer.Typer], None]]] = {
    "up": up.register,
    "topic": topics.register,
    "produce": produce.register,
    "consume": consume.register,
    "get": get.register,
    "sql": sql.register,
    "export": exporting.register,
    "import": importing.register,
    "group": groups.register,
    "key": security.register_keys,
    "user": users.register,
    "acl": security.register_rules,
    "quota": quotas.register,
    "cluster": cluster.register,
    "certs": certs.register,
    "context": contexts.register,
    "spark": spark_bundle.register,
    "deploy": deploy.register,
    "doctor": doctor.register,
    "top": top.register,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (see `failures`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not __debug__:
        sys.stderr.write("tidelog: python -O is refused: assertions guard your data; run without -O\n")
        return EXIT_FAILED
    changes.set(False)
    try:
        with interrupts_end_quietly(), no_collections():
            disable_pandas_import()
            if "--version" in itertools.takewhile(lambda word: word != "--", arguments):
                sys.stdout.write(f"tidelog {VERSION}\n")  # accepted with any command
                sys.stdout.flush()
                return 0
            command = typer.main.get_command(build_app(parts_meant(arguments), own_meant(arguments)))
            assert isinstance(command, TyperGroup)
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
        OWN_COMMANDS[name](app)
    plugins.register_plugins(app, plugins.installed_entries() if parts is None else parts)
    return app


def parts_meant(arguments: Sequence[str]) -> list[EntryPoint]:
    """Return the installed parts that may have the command in `arguments`; all without a command."""
    command = next(iter(_from_command(arguments)), None)
    return [] if command in OWN_COMMANDS else plugins.entries_with(command)


def own_meant(arguments: Sequence[str]) -> list[str]:
    """Return the command in `arguments` if this package has it, none for a part's; else all, for help and hints."""
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
