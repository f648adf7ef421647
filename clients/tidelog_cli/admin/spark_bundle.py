"""`tidelog spark bundle`: the connector as one zip for the executors of a Spark cluster (`--py-files`).

The zip contains the packages that a task imports, as source and compiled for the Python that creates it: interpreters
do not write compiled files into a zip, so each Python worker would compile a hundred modules again. Other Python
versions use the source. Libraries with native code cannot be imported from a zip; the command prints their names.

The zip of equal packages has equal bytes. The zip is replaced atomically. See docs/adr/0102.
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
"""Packages of the project that a Spark task imports."""
LIBRARIES: Final = ("crc32c", "mmh3", "numpy", "protobuf", "pyarrow")
"""Libraries with native code that these packages import besides pyspark."""

_DISTRIBUTION: Final = "tidelog"
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Time of every file in the zip: the earliest that the format supports."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A created zip: path, version, number of modules, size."""

    path: Path
    version: str
    modules: int
    size_bytes: int


def register(app: typer.Typer) -> None:
    """Add `spark` and its sub-commands to the command."""
    spark_app = typer.Typer(help="Package the Spark connector.", no_args_is_help=True)
    spark_app.callback()(lambda: None)  # Without a callback, typer merges a single sub-command with its command.
    spark_app.command("bundle")(bundle)
    app.add_typer(spark_app, name="spark")


def bundle(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Path of the zip.")] = Path(
        "tidelog.zip"
    ),
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a zip of the connector for `spark-submit --py-files`, and list the libraries that executors need."""
    created = write_bundle(output, replace=replace)
    needed = needed_libraries()
    if as_json:
        print_json(
            {
                "file": str(created.path),
                "version": created.version,
                "modules": created.modules,
                "size_bytes": created.size_bytes,
                "executors_need": needed,
            }
        )
        return
    sys.stdout.write(
        f"{created.path}: tidelog {created.version}, {created.modules} modules, {bytes_text(created.size_bytes)}\n"
        f"pass it to spark-submit with --py-files; executors need {shlex.join(needed)}\n"
    )


def write_bundle(path: Path, *, replace: bool) -> Bundle:
    """Write the zip, and return its description.

    Args:
        path: path of the zip, which must end in `.zip` for Spark.
        replace: overwrite an existing file.

    Raises:
        CommandFailed: the path is invalid or exists, or the packages are not installed as files.
        OSError: the zip cannot be written; an existing file is unchanged.
    """
    if path.suffix != ".zip":
        raise CommandFailed(f"the file name must end in .zip, or Spark does not import from it; got {path}")
    if not path.absolute().parent.is_dir():
        raise CommandFailed(f"directory {path.parent} does not exist; create it first")
    if path.exists() and not replace:
        raise CommandFailed(f"{path} already exists; overwrite it with --replace")
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
    """Return the libraries that executors need besides pyspark and the zip, as pip requirements: `pyarrow>=22`."""
    return [each for each in requires(_DISTRIBUTION) or () if _name_of(each) in LIBRARIES and ";" not in each]


def _name_of(requirement: str) -> str:
    match = _NAME.match(requirement)
    return match[0].lower() if match else ""


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    """Yield a package's modules: name in the zip, and file."""
    spec = find_spec(package)  # The modules are found without importing them, because pyspark need not be installed.
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    if folder is None or not folder.is_dir():
        raise CommandFailed(
            f"package {package} is not installed as files here; run: pip install --force-reinstall tidelog"
        )
    for path in sorted(folder.rglob("*.py")):
        yield f"{package}/{path.relative_to(folder).as_posix()}", path


def _compiled(source: Path, name: str, scratch: Path) -> bytes:
    """Return the bytecode of a module, marked so that importers do not compare it with the source."""
    target = scratch / "module.pyc"
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), str(target), name, doraise=True, optimize=0, invalidation_mode=mode)
    return target.read_bytes()


def _metadata() -> bytes:
    """Return package metadata, from which `importlib.metadata` reads the version on executors."""
    return f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {VERSION}\n".encode()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
