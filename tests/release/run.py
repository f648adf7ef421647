"""Build a release and check it: `make release`.

    python -m tests.release.run [--dirty]

`dist/` then holds the wheel, the source distribution, the bill of materials (`make sbom` writes it) and SHA256SUMS. The
wheel of the source distribution has to equal the wheel, and the wheel has to work in a bare environment. No network is
used but the package index. Nothing is published: the last line says which tag to push.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from tests.release.installed import ReleaseError, check_wheel

from tidelog_proto.version import VERSION

ROOT: Final = Path(__file__).parents[2]
DIST: Final = ROOT / "dist"
SBOM: Final = ROOT / "sbom.json"
DEVELOPMENT: Final = ".dev" in VERSION
"""Whether these are sources between two releases."""


def build(sources: Path, directory: Path, *targets: str) -> None:
    """Build distributions of sources."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(directory)]
    for target in targets:
        command += ["-t", target]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"hatchling build failed in {sources}: {done.stdout}{done.stderr}")


def contents(wheel: Path) -> dict[str, str]:
    """Return the digest of each file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def check_source_distribution(sdist: Path, wheel: Path, directory: Path) -> None:
    """Build the wheel of a source distribution; it has to have the same files.

    Raises:
        ReleaseError: it differs.
    """
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (sources,) = directory.iterdir()
    build(sources, directory / "dist", "wheel")
    (again,) = (directory / "dist").glob("*.whl")
    one, other = contents(wheel), contents(again)
    differing = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    if differing:
        raise ReleaseError(f"the wheel of {sdist.name} differs from {wheel.name} in {', '.join(differing[:10])}")


def check_sources(*, dirty: bool) -> None:
    """Refuse sources whose version does not say what they are.

    Raises:
        ReleaseError: files are not committed, or the first heading of the changelog does not belong to the version: a
            release has its own, and a development build has `[Unreleased]`.
    """
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False)
    if status.stdout and not dirty:
        raise ReleaseError(f"commit these files first, or try it with DIRTY=1:\n{status.stdout}")
    heads = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    expected = "Unreleased" if DEVELOPMENT else VERSION
    if heads[:1] != [expected]:
        raise ReleaseError(
            f"CHANGELOG.md begins with [{heads[0]}], and proto/tidelog_proto/version.py has {VERSION}: "
            f"begin the changelog with [{expected}], or change the version (X.Y.Z.dev0 while changes are unreleased)"
        )


def sums(files: list[Path]) -> str:
    """Return the lines of SHA256SUMS, which `sha256sum --check` reads."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files))


def release(*, dirty: bool) -> None:
    """Build, check and sum.

    Raises:
        ReleaseError: something is not as it should be; `dist/` has no SHA256SUMS then.
    """
    check_sources(dirty=dirty)
    shutil.rmtree(DIST, ignore_errors=True)
    build(ROOT, DIST, "sdist", "wheel")
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    print(f"built {wheel.name} and {sdist.name}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        check_source_distribution(sdist, wheel, Path(scratch))
    print(f"{sdist.name} builds the same wheel", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        check_wheel(wheel, VERSION, Path(scratch))
    print("the wheel was installed, published to, consumed from, and uninstalled", flush=True)
    sbom = DIST / f"tidelog-{VERSION}.cdx.json"
    shutil.copyfile(SBOM, sbom)
    (DIST / "SHA256SUMS").write_text(sums([wheel, sdist, sbom]))
    for file in sorted(DIST.iterdir()):
        print(f"  {file.relative_to(ROOT)}  {file.stat().st_size:,} bytes")
    if dirty:
        print("files are not committed: this is a trial, and nothing to tag")
    elif DEVELOPMENT:
        print(f"{VERSION} is a development build, and nothing to tag: docs/contributing.md says how to make a release")
    else:
        print(f"to release it:  git tag -a v{VERSION} -m 'Tidelog {VERSION}' && git push origin v{VERSION}")


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dirty", action="store_true", help="build although files are not committed")
    options = parser.parse_args()
    try:
        release(dirty=options.dirty)
    except ReleaseError as failed:
        print(f"no release: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
