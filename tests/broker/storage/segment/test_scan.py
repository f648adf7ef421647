from __future__ import annotations

from tests.broker.storage.build import append, batch, stamp
from tests.broker.storage.logs import EPOCH, create, new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.segment.layout import SEGMENT_HEADER_BYTES, pack_mark, segment_path
from tidelog_broker.storage.segment.scan import WINDOW_BYTES, Window, examine_tail, read_segment_header, scan_segment

PATH = segment_path(EPOCH, 0)


def written() -> tuple[SimDisk, list[bytes]]:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"a" * 100, records=2)])
    log.sync()
    batches += append(log, [batch(b"b" * 100)])
    return sim, batches


def test_scan_finds_batches_and_marks_up_to_the_zero_magic() -> None:
    sim, _ = written()
    file = sim.open(PATH)
    scan = scan_segment(file, read_segment_header(file))
    assert (scan.end_offset, scan.records, scan.marks, scan.synced_offset) == (3, 3, 1, 2)
    assert (scan.stop.kind, scan.stop.position) == ("zero", scan.end_position)
    sim.node(PATH).current = sim.node(PATH).current[: scan.end_position]
    assert scan_segment(file, scan.header).stop.kind == "end"


def test_discontinuous_batch_is_bad_with_a_reason() -> None:
    def reason(group: list[bytearray]) -> str:
        sim, batches = written()
        at = SEGMENT_HEADER_BYTES + padded(len(batches[0])) + 64 + padded(len(batches[1]))
        sim.node(PATH).write(at, b"".join(group))
        file = sim.open(PATH)
        scan = scan_segment(file, read_segment_header(file))
        assert (scan.end_offset, scan.stop.kind, scan.stop.position) == (3, "bad", at)
        return scan.stop.reason

    assert "offset 4, expected 3" in reason(stamp([batch()], offset=4, digest=0))
    assert "epoch 1 in epoch 0" in reason(stamp([batch()], offset=3, digest=0, epoch=1))
    assert "digest" in reason(stamp([batch()], offset=3, digest=0))
    assert "magic" in reason([bytearray(b"garbage")])
    assert "mark" in reason([bytearray(pack_mark(nonce=1, position=2, synced_offset=3))])


def test_marks_in_bodies_and_of_other_positions_are_ignored() -> None:
    sim = new_disk()
    log = create(sim)
    nonce = read_segment_header(sim.open(PATH)).nonce
    forged = pack_mark(nonce=nonce ^ 1, position=256, synced_offset=999)
    moved = pack_mark(nonce=nonce, position=64, synced_offset=999)
    append(log, [batch(forged + moved * 3)])
    tail = examine_tail(sim.open(PATH), nonce=nonce, position=SEGMENT_HEADER_BYTES)
    assert tail.synced_offset is None
    assert tail.dirty
    sim.node(PATH).write(2048, pack_mark(nonce=nonce, position=2048, synced_offset=5))
    sim.node(PATH).write(4096, pack_mark(nonce=nonce, position=4096, synced_offset=4))
    assert examine_tail(sim.open(PATH), nonce=nonce, position=SEGMENT_HEADER_BYTES).synced_offset == 5


def test_a_clean_tail_is_clean() -> None:
    sim, _ = written()
    file = sim.open(PATH)
    scan = scan_segment(file, read_segment_header(file))
    assert examine_tail(file, nonce=scan.header.nonce, position=scan.end_position).dirty == []


def test_window_reads_across_its_borders() -> None:
    sim = new_disk()
    content = bytes(range(256)) * 40
    sim.open(EPOCH.parent / "f", create=True).pwritev([content], 0)
    window = Window(sim.open(EPOCH.parent / "f"), window_bytes=100)
    for position, length in ((0, 10), (90, 20), (95, 300), (96, 10), (50, 10), (len(content) - 5, 10), (20_000, 5)):
        assert bytes(window.get(position, length)) == content[position : position + length]
    assert WINDOW_BYTES % 64 == 0
