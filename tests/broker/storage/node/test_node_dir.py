from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import PowerCutError

from tidelog_broker.core.incarnation import BOOT_COUNTER_MAX, NONCE_BITS
from tidelog_broker.storage.io.errors import DamagedError, NodeDirError, NodeDirLockedError
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.node import node_dir
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.journal import Journal
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.node_dir import is_new_dir, open_node_dir
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb

HOLDER = """
import sys
from pathlib import Path
from tidelog_broker.storage.node.node_dir import open_node_dir
directory = open_node_dir(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_new_directory_is_created_and_keeps_its_identity(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    assert is_new_dir(path)
    first = open_node_dir(path)
    assert not is_new_dir(path)
    first.close()
    second = open_node_dir(path)
    assert (second.node_id, second.cluster_id) == (first.node_id, first.cluster_id)
    assert second.incarnation >> NONCE_BITS == (first.incarnation >> NONCE_BITS) + 1 == 2
    assert second.partitions.is_dir()
    assert second.meta_journal.parent == second.fences.parent
    assert second.meta_journal.parent.is_dir()
    second.close()
    second.close()


def test_node_id_may_be_given_once(tmp_path: Path) -> None:
    open_node_dir(tmp_path / "d", node_id="alpha").close()
    assert json.loads((tmp_path / "d" / "node.json").read_text())["node_id"] == "alpha"
    open_node_dir(tmp_path / "d", node_id="alpha").close()
    with pytest.raises(NodeDirError, match="belongs to the node 'alpha', not to 'beta'"):
        open_node_dir(tmp_path / "d", node_id="beta")


def test_directory_of_another_process_is_refused(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(NodeDirLockedError, match=f"process {holder.pid};"):
            open_node_dir(tmp_path)
        holder.kill()
    open_node_dir(tmp_path).close()


def test_a_foreign_directory_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(NodeDirError, match=r"thesis\.tex"):
        open_node_dir(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.tex"]
    with pytest.raises(NodeDirError, match="not a directory"):
        open_node_dir(tmp_path / "thesis.tex")


def change(path: Path, **fields: object) -> None:
    record = json.loads((path / "node.json").read_text())
    (path / "node.json").write_text(json.dumps({**record, **fields}))


def test_another_version_is_refused_and_unchanged(tmp_path: Path) -> None:
    open_node_dir(tmp_path).close()
    for version, age in ((4, "newer"), (0, "older")):
        change(tmp_path, format_version=version)
        before = (tmp_path / "node.json").read_bytes()
        with pytest.raises(
            NodeDirError, match=f"format version {version}; this build reads 1 to 3; use the {age} build"
        ):
            open_node_dir(tmp_path)
        assert (tmp_path / "node.json").read_bytes() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"cluster_id": "abc"},
        {"cluster_id": "00"},
        {"boot_counter": 0},
        {"boot_counter": "x"},
        {"node_id": ""},
        {"boot_counter": BOOT_COUNTER_MAX},
        {"directory_id": "00"},
        {"bound": {"beta": "xy"}},
        {"bound": {"beta": ""}},
        {"bound": ["beta"]},
    ],
)
def test_damaged_fields_are_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    open_node_dir(tmp_path).close()
    change(tmp_path, **fields)
    with pytest.raises(NodeDirError, match="damaged"):
        open_node_dir(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_a_damaged_record_is_refused(tmp_path: Path, content: bytes) -> None:
    open_node_dir(tmp_path).close()
    (tmp_path / "node.json").write_bytes(content)
    with pytest.raises(NodeDirError, match="damaged"):
        open_node_dir(tmp_path)


def test_missing_part_is_refused(tmp_path: Path) -> None:
    open_node_dir(tmp_path).close()
    (tmp_path / "meta").rename(tmp_path / "lost+found")
    with pytest.raises(NodeDirError, match="meta"):
        open_node_dir(tmp_path)


@pytest.mark.parametrize("has", ["a partition", "metadata", "promises"])
def test_directory_with_data_but_without_node_json_is_refused(tmp_path: Path, has: str) -> None:
    directory = open_node_dir(tmp_path)
    directory.close()
    if has == "a partition":
        (directory.partitions / "events.00-0").mkdir()
    elif has == "promises":
        fences = TypedJournal.open(RealFileSystem(), directory.fences, FENCES)
        fences.append([pb.FenceEntry(topic_id=bytes(16), promised=pb.Ballot(round=9))])
        fences.close()
    else:
        directory.meta_state.touch()
    (tmp_path / "node.json").unlink()
    with pytest.raises(NodeDirError, match=r"has data but no node.json \(.*(events|state|entries).*--replace"):
        open_node_dir(tmp_path)
    assert not (tmp_path / "node.json").exists()


def test_journals_are_created_before_node_json(tmp_path: Path) -> None:
    directory = open_node_dir(tmp_path)
    directory.close()
    for magic, path in ((FENCES.magic, directory.fences), (CHAINS.magic, directory.meta_journal)):
        path.unlink()
        again = open_node_dir(tmp_path)
        again.close()
        assert not path.exists(), "a lost directory is not recreated"
        with pytest.raises(DamagedError, match="missing"):
            Journal.open(RealFileSystem(), path, magic)


def test_full_disk_for_the_journals_leaves_no_node_json() -> None:
    sim = new_disk()
    sim.free_bytes = 100
    with pytest.raises(NodeDirError, match="no space"):
        open_node_dir(Path("/home/data"), fs=sim)
    sim.free_bytes = None
    open_node_dir(Path("/home/data"), fs=sim).close()


def test_a_reboot_counts_only_after_an_unclean_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot_id = tmp_path / "boot_id"
    monkeypatch.setattr(node_dir, "BOOT_ID", boot_id)
    path = tmp_path / "data"

    def reopened(boot: str, *, clean: bool, noted: bool = True) -> bool:
        boot_id.write_text(boot + "\n")
        directory = open_node_dir(path)
        if noted:
            directory.mark_reboot_noted()
        if clean:
            directory.mark_clean()
        directory.close()
        return directory.machine_rebooted

    assert not reopened("one", clean=False)
    assert not reopened("one", clean=False)
    assert reopened("two", clean=True)
    assert not reopened("three", clean=False)
    assert reopened("four", clean=False, noted=False)
    assert reopened("four", clean=True, noted=False), "that start ended before the logs were opened"
    assert reopened("four", clean=False)
    assert not reopened("four", clean=False)


CLUSTER = bytes(range(16))


def test_founder_and_joiner_have_the_given_cluster_id(tmp_path: Path) -> None:
    founder = open_node_dir(tmp_path / "f", node_id="alpha", cluster_id=CLUSTER)
    joiner = open_node_dir(tmp_path / "j", cluster_id=CLUSTER)
    single = open_node_dir(tmp_path / "s")
    assert (founder.node_id, founder.cluster_id, joiner.cluster_id) == ("alpha", CLUSTER, CLUSTER)
    assert single.cluster_id != CLUSTER
    assert joiner.node_id not in {"alpha", single.node_id}
    assert [one.admitted for one in (founder, joiner, single)] == [False, False, True]
    for one in (founder, joiner, single):
        one.close()
        again = open_node_dir(one.path)
        assert (again.node_id, again.cluster_id, again.admitted) == (one.node_id, one.cluster_id, one.admitted)
        again.close()


def test_directory_of_another_cluster_is_refused_and_unchanged(tmp_path: Path) -> None:
    open_node_dir(tmp_path).close()
    before = (tmp_path / "node.json").read_bytes()
    with pytest.raises(NodeDirError, match=f"belongs to the cluster [0-9a-f]{{32}}, not to {CLUSTER.hex()}"):
        open_node_dir(tmp_path, cluster_id=CLUSTER)
    assert (tmp_path / "node.json").read_bytes() == before


def test_admission_survives_crashes_and_repeated_starts_do_not_admit(tmp_path: Path) -> None:
    for _ in range(3):
        directory = open_node_dir(tmp_path, node_id="alpha", cluster_id=CLUSTER)
        assert not directory.admitted
        directory.mark_clean()
        directory.close()
    directory = open_node_dir(tmp_path)
    directory.mark_admitted()
    directory.mark_admitted()
    assert directory.admitted
    directory.close()
    directory = open_node_dir(tmp_path)
    assert directory.admitted
    directory.mark_clean()
    directory.close()
    record = json.loads((tmp_path / "node.json").read_text())
    assert (record["admitted"], record["stopped_cleanly"]) == (True, True)


def test_directory_older_than_clusters_is_admitted(tmp_path: Path) -> None:
    open_node_dir(tmp_path).close()
    record = json.loads((tmp_path / "node.json").read_text())
    for key in ("admitted", "directory_id", "bound"):
        del record[key]
    (tmp_path / "node.json").write_text(json.dumps(record | {"format_version": 1}))
    directory = open_node_dir(tmp_path)
    assert directory.admitted
    directory.close()


def test_directory_id_is_unique_and_permanent(tmp_path: Path) -> None:
    one = open_node_dir(tmp_path / "one", node_id="alpha", cluster_id=CLUSTER)
    other = open_node_dir(tmp_path / "other", node_id="alpha", cluster_id=CLUSTER)
    assert len(one.directory_id) == 16
    assert one.directory_id != other.directory_id
    for directory in (one, other):
        directory.close()
    again = open_node_dir(tmp_path / "one")
    assert again.directory_id == one.directory_id
    again.close()


def test_directory_of_version_1_gets_an_id_and_keeps_its_admission(tmp_path: Path) -> None:
    for admitted in (True, False):
        path = tmp_path / str(admitted)
        open_node_dir(path, node_id="alpha", cluster_id=CLUSTER).close()
        record = json.loads((path / "node.json").read_text())
        del record["directory_id"], record["bound"]
        (path / "node.json").write_text(json.dumps(record | {"format_version": 1, "admitted": admitted}))
        first = open_node_dir(path)
        first.close()
        assert first.admitted == admitted
        second = open_node_dir(path)
        second.close()
        assert second.directory_id == first.directory_id
        assert json.loads((path / "node.json").read_text())["format_version"] == 3


def test_founder_binding_is_permanent(tmp_path: Path) -> None:
    directory = open_node_dir(tmp_path, node_id="alpha", cluster_id=CLUSTER)
    assert directory.bound("beta") == b""
    assert directory.bind("beta", b"1" * 16) == b"1" * 16
    assert directory.bind("beta", b"2" * 16) == b"1" * 16
    directory.mark_admitted()
    directory.mark_clean()
    directory.close()
    with pytest.raises(NodeDirError, match="is closed"):
        directory.bind("gamma", b"1" * 16)
    again = open_node_dir(tmp_path)
    assert (again.bound("beta"), again.bound("gamma"), again.admitted) == (b"1" * 16, b"", True)
    again.close()


def test_concurrent_writes_of_threads_are_all_kept(tmp_path: Path) -> None:
    directory = open_node_dir(tmp_path, node_id="alpha", cluster_id=CLUSTER)
    founders = [f"founder-{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        bound = list(threads.map(lambda name: directory.bind(name, name.encode().ljust(16)), founders))
        threads.submit(directory.mark_admitted).result()
    assert bound == [name.encode().ljust(16) for name in founders]
    directory.close()
    again = open_node_dir(tmp_path)
    assert [again.bound(name) for name in founders] == bound
    assert again.admitted
    again.close()


def test_number_of_bindings_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_dir, "NODES_MAX", 1)
    directory = open_node_dir(tmp_path, node_id="alpha", cluster_id=CLUSTER)
    directory.bind("beta", b"1" * 16)
    with pytest.raises(NodeDirError, match="already lists 1, the maximum"):
        directory.bind("gamma", b"1" * 16)
    assert directory.bind("beta", b"2" * 16) == b"1" * 16
    directory.close()


def test_returned_binding_survives_power_loss() -> None:
    """Before that, the answer was not given: the next question may bind another directory."""
    for cut in range(40):
        sim = new_disk()
        path = Path("/home/data")
        first = open_node_dir(path, fs=sim, node_id="alpha", cluster_id=CLUSTER)
        sim.cut_at = sim.steps + cut
        done = False
        with suppress(PowerCutError):
            first.bind("beta", b"1" * 16)
            done = True
        again = open_node_dir(path, fs=sim.power_cut(Random(cut)), node_id="alpha", cluster_id=CLUSTER)
        assert again.directory_id == first.directory_id
        assert again.bound("beta") in {b"", b"1" * 16}
        if done:
            assert again.bind("beta", b"2" * 16) == b"1" * 16
            break
    else:
        raise AssertionError("it was never bound")


def test_replacement_gets_a_new_id_and_needs_an_empty_directory(tmp_path: Path) -> None:
    open_node_dir(tmp_path / "old", node_id="alpha", cluster_id=CLUSTER).close()
    with pytest.raises(NodeDirError, match="'alpha' itself: start it without --replace"):
        open_node_dir(tmp_path / "old", node_id="alpha", cluster_id=CLUSTER, replaces=True)
    new = open_node_dir(tmp_path / "new", node_id="alpha", cluster_id=CLUSTER, replaces=True)
    assert new.node_id != "alpha"
    new.close()
    again = open_node_dir(tmp_path / "new", node_id="alpha", cluster_id=CLUSTER, replaces=True)
    assert (again.node_id, again.incarnation > new.incarnation) == (new.node_id, True)
    again.close()


def test_power_loss_around_an_admission_loses_nothing_else() -> None:
    for cut in range(40):
        sim = new_disk()
        path = Path("/home/data")
        first = open_node_dir(path, fs=sim, node_id="alpha", cluster_id=CLUSTER)
        sim.cut_at = sim.steps + cut
        done = False
        with suppress(PowerCutError):
            first.mark_admitted()
            done = True
        again = open_node_dir(path, fs=sim.power_cut(Random(cut)), node_id="alpha", cluster_id=CLUSTER)
        assert again.incarnation > first.incarnation
        if done:
            assert again.admitted
            break
    else:
        raise AssertionError("it never was admitted")


def test_power_loss_never_loses_or_repeats_an_incarnation() -> None:
    for cut in range(40):
        sim = new_disk()
        path = Path("/home/data")
        first = open_node_dir(path, fs=sim)
        first.close()
        sim.cut_at = sim.steps + cut
        seen = [first.incarnation >> NONCE_BITS]
        with suppress(PowerCutError):
            second = open_node_dir(path, fs=sim)
            seen.append(second.incarnation >> NONCE_BITS)
            second.mark_clean()
            break
        again = open_node_dir(path, fs=sim.power_cut(Random(cut)))
        assert again.node_id == first.node_id
        assert again.incarnation >> NONCE_BITS > max(seen)
    else:
        raise AssertionError("it never opened")


def test_power_loss_during_creation_leaves_an_openable_directory() -> None:
    for cut in range(40):
        sim = new_disk()
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            open_node_dir(Path("/home/data"), fs=sim)
            break
        sim = sim.power_cut(Random(cut))
        directory = open_node_dir(Path("/home/data"), fs=sim)
        sim = sim.power_cut(Random(cut))
        TypedJournal.open(sim, directory.fences, FENCES).close()
        TypedJournal.open(sim, directory.meta_journal, CHAINS).close()
    else:
        raise AssertionError("it never opened")


def test_killed_first_start_leaves_only_durable_names() -> None:
    """The second start finds names that it did not create, so it must sync them before it relies on them."""
    path = Path("/home/of/nodes/data")
    for cut in range(60):
        sim = new_disk()
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            open_node_dir(path, fs=sim)
            break
        sim = sim.restart()
        first = open_node_dir(path, fs=sim)
        for seed in range(8):
            again = open_node_dir(path, fs=sim.power_cut(Random(seed)))
            assert again.directory_id == first.directory_id
    else:
        raise AssertionError("it never opened")


def test_directory_of_the_second_version_gets_a_journal_of_incarnations(tmp_path: Path) -> None:
    open_node_dir(tmp_path).close()
    (tmp_path / "meta" / "lives").unlink()
    change(tmp_path, format_version=2)
    with contextlib.closing(open_node_dir(tmp_path)) as directory:
        assert directory.incarnations.exists()
    assert json.loads((tmp_path / "node.json").read_text())["format_version"] == 3


def test_refused_directory_is_refused_at_every_later_start(tmp_path: Path) -> None:
    with contextlib.closing(open_node_dir(tmp_path)) as directory:
        directory.mark_refused("it is an older copy")
    for _ in range(2):
        with pytest.raises(NodeDirError, match="it is an older copy"):
            open_node_dir(tmp_path)


def test_refusal_is_not_written_over_another_process_that_opened_the_directory(tmp_path: Path) -> None:
    """As on a file system without locks, where two processes may have one directory open."""
    with contextlib.closing(open_node_dir(tmp_path)) as directory:
        change(tmp_path, boot_counter=7)
        directory.mark_refused("it is an older copy")
    open_node_dir(tmp_path).close()


def test_refusal_in_a_directory_that_was_moved_away_is_reported(tmp_path: Path) -> None:
    """An operator has moved it from under its process, which ends all the same: see `Broker`."""
    with contextlib.closing(open_node_dir(tmp_path / "data")) as directory:
        (tmp_path / "data").rename(tmp_path / "moved")
        with pytest.raises(NodeDirError, match="cannot be read"):
            directory.mark_refused("it is an older copy")
