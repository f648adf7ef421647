"""`tidelog spark bundle`: the connector as one zip, for the executors of a Spark cluster (`--py-files`).

The zip holds the packages that a task imports, as source and compiled for the Python that makes it: no interpreter
writes compiled files into a zip, and each Python worker of Spark would compile a hundred modules anew. Another Python
takes the source. Libraries with native code cannot be imported from a zip and are not in it; the command names them.

The same packages give the same bytes. A zip is whole under its name, or not there. See docs/adr/0102.
"""

from __future__ import annotations

import os
import py_compile
import re
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.output import JsonOption, bytes_text, print_json
from tidelog_proto.version import VERSION

PACKAGES: Final = ("pyspark_tidelog", "tidelog", "tidelog_proto")
"""What a task of Spark imports of the project."""
LIBRARIES: Final = ("crc32c", "mmh3", "numpy", "protobuf", "pyarrow")
"""What these packages import of others, besides pyspark: native code, or needed by it."""

_DISTRIBUTION: Final = "tidelog"
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Of every file in the zip: the first that a zip can tell."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A zip that was made: where it is, of which version, how many modules, and how large."""

    path: Path
    version: str
    modules: int
    size_bytes: int


def register(app: typer.Typer) -> None:
    """Add `spark` and its sub-commands to the command."""
    spark_app = typer.Typer(help="What a Spark cluster needs to read and write topics.", no_args_is_help=True)
    spark_app.callback()(lambda: None)  # else typer takes the only sub-command for the command itself
    spark_app.command("bundle")(bundle)
    app.add_typer(spark_app, name="spark")


def bundle(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to.")] = Path("tidelog.zip"),
    replace: Annotated[bool, typer.Option("--replace", help="Instead of the file of that name.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a zip of the connector for `spark-submit --py-files`, and say what executors must have besides."""
    made = write_bundle(output, replace=replace)
    needed = needed_libraries()
    if as_json:
        print_json(
            {
                "file": str(made.path),
                "version": made.version,
                "modules": made.modules,
                "size_bytes": made.size_bytes,
                "executors_need": needed,
            }
        )
        return
    sys.stdout.write(
        f"{made.path}: tidelog {made.version}, {made.modules} modules, {bytes_text(made.size_bytes)}\n"
        f"give it to spark-submit with --py-files; executors must have {shlex.join(needed)}\n"
    )


def write_bundle(path: Path, *, replace: bool) -> Bundle:
    """Write the zip, and return what it is.

    Args:
        path: its name, which ends in `.zip`: Spark goes by that.
        replace: whether a file of that name may go.

    Raises:
        CommandFailed: the name is no zip's, or is there already, or the packages are not installed as files.
        OSError: the zip cannot be written. What was there before is still there then.
    """
    if path.suffix != ".zip":
        raise CommandFailed(f"{path} must end in .zip: Spark imports from nothing else")
    if not path.absolute().parent.is_dir():
        raise CommandFailed(f"there is no directory {path.parent}; make it first")
    if path.exists() and not replace:
        raise CommandFailed(f"{path} is there already; say --replace for a new one")
    sources = [source for package in PACKAGES for source in _sources(package)]
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with partial.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, tempfile.TemporaryDirectory() as scratch:
                for name, source in sources:
                    _add(archive, name, source.read_bytes())
                    _add(archive, f"{name}c", _compiled(source, name, Path(scratch)))
                _add(archive, f"{_DISTRIBUTION}-{VERSION}.dist-info/METADATA", _metadata())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return Bundle(path, VERSION, len(sources), path.stat().st_size)


def needed_libraries() -> list[str]:
    """Return what executors must have besides pyspark and the zip, as pip takes it: `pyarrow>=22`."""
    return [each for each in requires(_DISTRIBUTION) or () if _name_of(each) in LIBRARIES and ";" not in each]


def _name_of(requirement: str) -> str:
    match = _NAME.match(requirement)
    return match[0].lower() if match else ""


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    """Yield a package's modules: the name in the zip, and the file."""
    spec = find_spec(package)  # imports nothing: pyspark need not be here
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    if folder is None or not folder.is_dir():
        raise CommandFailed(f"package {package} is not installed as files here; run: pip install --force tidelog")
    for path in sorted(folder.rglob("*.py")):
        yield f"{package}/{path.relative_to(folder).as_posix()}", path


def _compiled(source: Path, name: str, scratch: Path) -> bytes:
    """Return a module compiled. It does not name its source's time, which an importer would compare."""
    target = scratch / "module.pyc"
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), str(target), name, doraise=True, optimize=0, invalidation_mode=mode)
    return target.read_bytes()


def _metadata() -> bytes:
    """Return what makes the version known where the zip is all there is."""
    return f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {VERSION}\n".encode()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
