"""One file of a batch read and planned: by this process, by one of several, or by a worker of a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from opreplay.cli.planning import Selection

if TYPE_CHECKING:
    from opreplay.replay.batch import TracePlan
    from opreplay.replay.batch_reading import ReadOne
    from opreplay.traces import Trace


class HowToRead(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides what plan a file gives, beside the file."""

    selection: Selection
    device: str
    limits: tuple[tuple[str, str], ...] = ()
    plugins: tuple[str, ...] = ()
    execution_traces: Mapping[str, str] = {}
    """Trace → its ExecutionTrace."""
    children: bool = False
    """Whether plans have the ops recorded below each op."""

    def reader(self) -> ReadOne:
        """What reads one file; can be sent to another process."""
        return partial(_read, how=self)

    def settings(self) -> str:
        """A text that is the same where plans of the same files are: options, users' code, versions of packages."""
        from importlib.metadata import distributions

        from opreplay.replay.resume import digest, file_digest

        installed = sorted(f"{one.metadata['Name']} {one.version}" for one in distributions())
        code = [file_digest(plugin) if os.path.isfile(plugin) else plugin for plugin in self.plugins]
        # The pairs of ExecutionTraces are not among them: they are among the files of each plan.
        mine = msgspec.structs.replace(self, execution_traces={})
        return digest(msgspec.json.encode([mine, code, installed], order="deterministic"))

    def files(self, path: str, tables: dict[str, str | None] | None = None) -> list[str]:
        """The file and all that is read with it. `tables` keeps what was found out of folders, for many files."""
        folder = os.path.dirname(path)
        known = {} if tables is None else tables
        if folder not in known:
            known[folder] = _table_beside(path)
        return [path, *(file for file in (self.execution_traces.get(path), known[folder]) if file is not None)]


def _table_beside(path: str) -> str | None:
    from opreplay.traces.dialects.kernel_details import table_beside
    from opreplay.traces.errors import UsageError

    try:
        return table_beside(path)
    except UsageError:  # several, of which none is used
        return None


def _read(path: str, *, how: HowToRead) -> bytes:
    """A TracePlan, or Unreadable for a file that is refused, as msgpack."""
    from opreplay.replay.batch_reading import Unreadable, encoded
    from opreplay.replay.plugins import load_plugins
    from opreplay.traces.errors import OpReplayError
    from opreplay.traces.stamps import stamps_of

    before = stamps_of(how.files(path))
    try:
        load_plugins(how.plugins)
        made = _planned(path, how)
    except OpReplayError as error:
        return encoded(Unreadable(path=path, message=str(error), hint=error.hint, exit_code=error.exit_code))
    unchanged = before is not None and before == stamps_of(how.files(path))
    return encoded(msgspec.structs.replace(made, sources=before if before is not None and unchanged else ()))


def _planned(path: str, how: HowToRead) -> TracePlan:
    from opreplay.cli.inputs import kind_of_file, plan_of, with_recorded_children
    from opreplay.replay.batch import TracePlan
    from opreplay.replay.plan_file import load_plan
    from opreplay.replay.tracelens_ir import read_tracelens_ir

    kind = kind_of_file(path)
    if kind != "trace":
        read = load_plan(path) if kind == "plan" else read_tracelens_ir(path)
        plan = plan_of(read, how.selection, device=how.device)
        return TracePlan(path=path, plan=msgspec.structs.replace(plan, sequence=None))
    trace, notes = _trace(path, how)
    plan = plan_of(trace, how.selection, device=how.device)
    if how.children:
        plan = with_recorded_children(plan, trace)
    info = trace.info
    return TracePlan(
        path=path, plan=msgspec.structs.replace(plan, sequence=None), rank=info.rank, world_size=info.world_size,
        notes=tuple(notes),
    )  # fmt: skip


def _trace(path: str, how: HowToRead) -> tuple[Trace, list[str]]:
    """The trace, completed by its ExecutionTrace and the kernel table beside it, and what they gave it."""
    from opreplay.cli.inputs import join_notes
    from opreplay.cli.planning import parse_limits
    from opreplay.replay.report.graphs import join_text as graphs_text
    from opreplay.replay.report.npu import join_text
    from opreplay.traces import read_trace
    from opreplay.traces.dialects.kernel_details import with_table_beside
    from opreplay.traces.graph_capture import with_captures_beside
    from opreplay.traces.shape_donor import join_shapes

    limits, donor = parse_limits(how.limits), how.execution_traces.get(path)
    trace = read_trace(path, limits=limits, record_function_ids=donor is not None)
    notes: list[str] = []
    if donor is not None:
        trace = join_shapes(trace, read_trace(donor, limits=limits, record_function_ids=True))
        notes += join_notes(trace)
    trace = with_captures_beside(with_table_beside(trace), limits)
    table, graphs = trace.info.kernel_details, trace.info.graphs
    if table is not None:
        notes.append(join_text(table))
    if graphs is not None:
        notes.append(graphs_text(graphs))
    return trace, notes
