from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog_proto.process.standard_streams import QueuedStream, QueuedWriter, dropped_writes

PIPE_BYTES = 4096
PATIENCE_S = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Yield the reading and the writing end of a pipe that holds little."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    yield reading, writing
    for descriptor in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """Return what comes up to `wanted`; a stream that never has it ends the test by its timeout."""
    said = b""
    while wanted not in said:
        said += os.read(descriptor, 1 << 16)
    return said


def test_writes_arrive_in_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = QueuedWriter(writing)
    for number in range(100):
        writer.put(b"%d\n" % number)
    assert read_until(reading, b"99\n") == b"".join(b"%d\n" % number for number in range(100))
    writer.close(PATIENCE_S)
    assert writer.dropped == 0


def test_writes_to_a_full_pipe_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    before = dropped_writes()
    writer = QueuedWriter(writing, bytes_max=8 * PIPE_BYTES)
    line = b"x" * 99 + b"\n"
    for _ in range(1000):
        writer.put(line)
    assert writer.dropped > 0
    assert dropped_writes() - before == writer.dropped
    dropped = writer.dropped
    said = read_until(reading, b"%d writes were dropped here" % dropped)
    assert said.count(line) >= 8 * PIPE_BYTES // len(line) // 2
    writer.put(b"the last line\n")
    said += read_until(reading, b"the last line\n")
    assert said.count(line) == 1000 - dropped
    writer.close(PATIENCE_S)
    assert dropped_writes() - before == dropped


def test_lines_that_wait_are_written_together(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = pipe
    writes, write = list[int](), os.write

    def counted(descriptor: int, data: bytes) -> int:
        writes.append(len(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    writer = QueuedWriter(writing)
    writer.put(b"x" * 2 * PIPE_BYTES)  # the thread waits for a reader
    for number in range(2_000):
        writer.put(b"line %04d\n" % number)
    said = read_until(reading, b"line 1999\n")
    assert said.lstrip(b"x") == b"".join(b"line %04d\n" % number for number in range(2_000))
    assert len(writes) < 2_000 * 10 / PIPE_BYTES + 20
    writer.close(PATIENCE_S)


def test_lines_written_one_after_the_other_share_writes(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = pipe
    writes, write = list[float](), os.write

    def counted(descriptor: int, data: bytes) -> int:
        writes.append(time.monotonic())
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    writer = QueuedWriter(writing)
    began_s = time.monotonic()
    for _ in range(200):
        writer.put(b"line\n")
        time.sleep(0.0005)
    took_s = time.monotonic() - began_s
    writer.put(b"end\n")
    read_until(reading, b"end\n")
    assert len(writes) <= took_s / 0.005 + 2
    writer.close(PATIENCE_S)


def test_close_waits_for_a_full_pipe_until_its_timeout(pipe: tuple[int, int]) -> None:
    _, writing = pipe
    writer = QueuedWriter(writing)
    for _ in range(10):
        writer.put(b"x" * PIPE_BYTES)
    writer.close(0.01)
    assert writer.dropped > 0


def test_a_pipe_without_a_reader_drops_and_counts(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    writer = QueuedWriter(writing)
    writer.put(b"a line\n")
    writer.close(PATIENCE_S)
    assert writer.dropped == 1


def test_a_pipe_that_is_set_not_to_block_is_waited_for(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)
    writer = QueuedWriter(writing)
    for _ in range(3):
        writer.put(b"x" * PIPE_BYTES)
    writer.put(b"end\n")
    assert read_until(reading, b"end\n").count(b"x") == 3 * PIPE_BYTES
    writer.close(PATIENCE_S)
    assert writer.dropped == 0


def test_lone_surrogates_are_escaped(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    stream = QueuedStream(QueuedWriter(writing))
    print("ä\udc80", file=stream)
    assert read_until(reading, b"\n") == "ä\\udc80\n".encode()
    stream.writer.close(PATIENCE_S)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_descriptors_are_occupied_and_fail_as_closed_ones(closed: tuple[int, ...], tmp_path: Path) -> None:
    report = tmp_path / "report"
    program = f"""
import os, sys
from tidelog_proto.process.standard_streams import open_closed_streams
open_closed_streams()
file = open({str(report)!r}, "w")
said = [str(file.fileno() > 2)]
for descriptor in {closed!r}:
    try:
        os.read(0, 1) if descriptor == 0 else os.write(descriptor, b"x")
    except OSError as error:
        said.append(str(error.errno))
said += [str(None in (sys.stdin, sys.stdout, sys.stderr))]
file.write(" ".join(said))
"""
    redirections = " ".join(f"{descriptor}{'<' if descriptor == 0 else '>'}&-" for descriptor in closed)
    command = ["/bin/sh", "-c", f'exec "$0" -c "$1" {redirections}', sys.executable, program]
    subprocess.run(command, check=True, timeout=60)
    assert report.read_text() == " ".join(["True", *["9"] * len(closed), "False"])


def test_the_streams_of_a_process_do_not_block_it() -> None:
    program = """
import sys
from tidelog_proto.process.standard_streams import queued_streams
with queued_streams():
    for number in range(3000):
        print("x" * 1000, file=sys.stderr)
        print("y" * 1000)
"""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=writing, stderr=writing)
        os.close(writing)
        assert process.wait(60) == 0
    finally:
        os.close(reading)


def test_queued_lines_are_written_before_the_process_ends() -> None:
    program = """
import sys
from tidelog_proto.process.standard_streams import queued_streams
with queued_streams():
    print("out")
    print("err", file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert (ended.stdout, ended.stderr) == (b"out\n", b"err\n")


def test_lines_of_several_processes_in_one_pipe_stay_whole() -> None:
    reading, writing = os.pipe()
    writers = [QueuedWriter(writing) for _ in range(2)]
    text = [b"".join(letter * length + b"\n" for length in range(50, 3000, 7)) for letter in (b"a", b"b")]
    for writer, lines in zip(writers, text, strict=True):
        writer.put(lines)
    received = b""
    while len(received) < sum(map(len, text)):
        received += os.read(reading, 1 << 16)
    assert all(len(set(line)) == 1 for line in received.splitlines())
    assert sorted(received.splitlines()) == sorted(b"".join(text).splitlines())
    for writer in writers:
        writer.close(PATIENCE_S)
    os.close(reading)
    os.close(writing)
