"""Plans kept beside a batch's results: given back as they were, dropped when anything about them has changed."""

from __future__ import annotations

import os
import sqlite3
import time
import tracemalloc
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opreplay.replay.batch.merge import TracePlan
from opreplay.replay.batch.plan_store import PlanStore
from opreplay.replay.batch.stamps import stamps_of
from opreplay.replay.host.own_database import MAGIC
from opreplay.replay.ir.model import Recorded, RecordedKernel, ReplayArg, ReplayOp, ReplayPlan
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta


def op_of(size: int, count: int) -> ReplayOp:
    recorded = Recorded(
        host_us_total=1.5 * count,
        host_us_median=1.5,
        device_us_total=0.5,
        device_us_median=0.5,
        kernels=(RecordedKernel(name=f"k{count}", count=count, total_us=0.5),),
        children=("aten::empty",),
    )
    meta = TensorMeta(shape=(size, 4), dtype="float32")
    args = (ReplayArg(name="self", type="Tensor", tensors=(meta,)),)
    return ReplayOp(
        id=f"{size:012x}", name="aten::relu", count=count, recorded=recorded, args=args, overload="", resolved_by="jit"
    )


def trace_of(path: Path, sizes: list[int], rank: int = 0) -> TracePlan:
    """A planned file of these sizes of ops, called as often as the rank says and once more."""
    path.write_text(f"{path.name} {sizes}")
    ops = tuple(op_of(size, rank + 1) for size in dict.fromkeys(sizes))
    plan = ReplayPlan(source=path.name, device_us_total=3.0, host_us_total=9.0, ops=ops)
    sources = stamps_of([str(path)])
    assert sources is not None
    return TracePlan(path=str(path), plan=plan, rank=rank, world_size=8, sources=sources, notes=("a note",))


def filled(folder: Path, traces: list[TracePlan], name: str = "s.plans") -> Path:
    store = PlanStore(folder / name, "how")
    for trace in traces:
        store.add(trace)
    store.close()
    return folder / name


def held(path: Path, traces: list[TracePlan], settings: str = "how") -> list[TracePlan]:
    store = PlanStore(path, settings)
    found = [store.load(trace.path) for trace in traces if store.holds(trace.path, [trace.path])]
    store.close()
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=5), st.data())
def test_plans_survive_and_a_cut_costs_the_last(tmp_path: Path, sizes: list[list[int]], data: st.DataObject) -> None:
    (tmp_path / "s.plans").unlink(missing_ok=True)
    traces = [trace_of(tmp_path / f"rank{n}.json", ops, n) for n, ops in enumerate(sizes)]
    path = filled(tmp_path, traces)
    whole = path.read_bytes()
    assert held(path, traces) == traces
    path.write_bytes(whole[: round(data.draw(st.floats(0, 1)) * len(whole))])
    found = held(path, traces)
    assert found == traces[: len(found)]
    filled(tmp_path, traces[len(found) :])
    assert held(path, traces) == traces


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.data())
def test_a_damaged_byte_gives_no_other_plan(tmp_path: Path, data: st.DataObject) -> None:
    (tmp_path / "s.plans").unlink(missing_ok=True)
    traces = [trace_of(tmp_path / f"rank{n}.json", [1, 2, 3 + n], n) for n in range(3)]
    path = filled(tmp_path, traces)
    whole = bytearray(path.read_bytes())
    at = len(MAGIC) + round(data.draw(st.floats(0, 1)) * (len(whole) - len(MAGIC) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    assert all(one in traces for one in held(path, traces))


def test_damaged_names_and_schemas_give_no_other_plan(tmp_path: Path) -> None:
    traces = [trace_of(tmp_path / f"rank{n}.json", [1, 2, 3 + n], n) for n in range(3)]
    path = filled(tmp_path, traces)
    whole = path.read_bytes()
    for text in (b"rank1.json", b"settings", b"TABLE ops (id", b"how"):
        for at in (i for i in range(len(whole)) if whole.startswith(text, i)):
            path.write_bytes(whole[:at] + b"\xf4" + whole[at + 1 :])
            assert all(one in traces for one in held(path, traces))


def test_each_op_is_written_once(tmp_path: Path) -> None:
    traces = [trace_of(tmp_path / f"rank{n}.json", list(range(1, 400)), n) for n in range(6)]
    one = filled(tmp_path, traces[:1], "one.plans").stat().st_size
    assert filled(tmp_path, traces, "all.plans").stat().st_size < 4 * one


def test_a_trace_that_changed_is_not_held(tmp_path: Path) -> None:
    traces = [trace_of(tmp_path / f"rank{n}.json", [n + 1], n) for n in range(3)]
    path = filled(tmp_path, traces)
    (tmp_path / "rank1.json").write_text("another")
    (tmp_path / "rank2.json").unlink()
    assert held(path, traces) == traces[:1]
    store = PlanStore(path, "how")
    assert not store.holds(traces[0].path, [traces[0].path, "a table beside it"])
    again = trace_of(tmp_path / "rank1.json", [7], 1)
    store.add(again)
    assert store.load(again.path) == again
    store.close()
    assert held(path, [again]) == [again]


def test_other_settings_begin_anew_and_other_files_are_left_alone(tmp_path: Path) -> None:
    traces = [trace_of(tmp_path / "rank0.json", [1])]
    path = filled(tmp_path, traces)
    assert held(path, traces, settings="other") == []
    assert held(path, traces) == []
    path.write_text("somebody's notes")
    with pytest.raises(UsageError, match="holds no plans"):
        PlanStore(path, "how")
    assert path.read_text() == "somebody's notes"
    PlanStore(path, "how", force=True).close()
    assert path.read_bytes().startswith(MAGIC)
    with pytest.raises(UsageError, match="cannot write"):
        PlanStore(tmp_path / "no" / "folder", "how")


def test_one_run_at_a_time(tmp_path: Path) -> None:
    first = PlanStore(tmp_path / "s.plans", "how")
    with pytest.raises(UsageError, match="another run"):
        PlanStore(tmp_path / "s.plans", "how")
    first.close(remove=True)
    assert not (tmp_path / "s.plans").exists()


def test_files_without_stamps_and_a_full_disk(tmp_path: Path) -> None:
    traces = [trace_of(tmp_path / f"rank{n}.json", [n + 1, 9], n) for n in range(2)]
    store = PlanStore(tmp_path / "s.plans", "how")
    bare = TracePlan(path=traces[0].path, plan=traces[0].plan)
    store.add(bare)
    assert len(store) == 0
    store.add(traces[0])

    (pages,) = store.connection.execute("PRAGMA page_count").fetchone()
    store.connection.execute(f"PRAGMA max_page_count = {pages}")
    large = trace_of(tmp_path / "rank1.json", list(range(1, 200)), 1)
    store.add(large)
    assert store.problem == "database or disk is full"
    assert [store.holds(trace.path, [trace.path]) for trace in traces] == [True, False]
    store.close()
    assert held(tmp_path / "s.plans", traces) == traces[:1]


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i"
FOREIGN = {
    "view in place of ops": f"DROP TABLE ops; CREATE VIEW ops AS {ENDLESS} AS id, 1 AS crc, x'00' AS body FROM n",
    "view in place of settings": f"DROP TABLE settings; CREATE VIEW settings AS {ENDLESS} AS text, 1 FROM n",
    "one more view": f"CREATE VIEW v AS {ENDLESS} FROM n",
    "trigger": "CREATE TRIGGER t AFTER INSERT ON ops BEGIN INSERT INTO ops (key, crc, body) "
    "SELECT key || 'x', crc, zeroblob(1000000) FROM ops; END",
    "index of an expression": "CREATE INDEX i ON ops (length(body))",
    "one more column": "ALTER TABLE ops ADD COLUMN more TEXT",
    "generated column": "DROP TABLE traces; CREATE TABLE traces (path TEXT PRIMARY KEY, crc INTEGER NOT NULL, "
    "body BLOB AS (zeroblob(1000000000)))",
    "other type": "DROP TABLE traces; CREATE TABLE traces (path, crc, body)",
    "one more table": "CREATE TABLE more (a)",
    "missing table": "DROP TABLE traces",
    "two settings": "INSERT INTO settings SELECT * FROM settings",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_planted_schema_is_not_run(tmp_path: Path, name: str) -> None:
    """What this module would not have made is dropped before any query on it, and never ends up in the new file."""
    traces = [trace_of(tmp_path / "a.json", [1, 2])]
    path = filled(tmp_path, traces)
    with sqlite3.connect(path) as connection:
        connection.executescript(FOREIGN[name])
    connection.close()
    size = path.stat().st_size
    started = time.process_time()
    assert held(path, traces) == []
    filled(tmp_path, traces)
    assert time.process_time() - started < 2.0
    assert path.stat().st_size <= size + 65_536
    assert held(path, traces) == traces


def test_a_planted_pipe_or_journal_is_refused(tmp_path: Path) -> None:
    traces = [trace_of(tmp_path / "a.json", [1])]
    path = filled(tmp_path, traces)
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    journal = path.with_name(path.name + "-journal")
    journal.write_bytes(
        b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" * 200 + str(precious).encode() + b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    )
    with pytest.raises(UsageError, match="names another file"):
        PlanStore(path, "how")
    journal.unlink()
    os.mkfifo(journal)
    with pytest.raises(UsageError, match="regular"):
        PlanStore(path, "how")
    journal.unlink()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="regular"):
        PlanStore(path, "how")
    assert precious.read_text() == "mine"


def test_a_body_that_unpacks_to_much_more_counts_as_damaged(tmp_path: Path) -> None:
    traces = [trace_of(tmp_path / "a.json", [1])]
    path = filled(tmp_path, traces)
    bomb = zlib.compress(msgspec.msgpack.encode({"trace": "a" * (64 << 20)}))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE traces SET crc = ?, body = ?", (zlib.crc32(bomb), bomb))
    connection.close()
    tracemalloc.start()
    assert held(path, traces) == []
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
