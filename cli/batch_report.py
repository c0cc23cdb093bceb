"""What `batch` runs its ops with, and what it prints when it is done or interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opreplay.cli.outputs import Outputs
    from opreplay.replay.results import MemorySink, ResultFile
    from opreplay.replay.run import RunOptions
    from opreplay.replay.schedule import Engine


def engine_of(options: RunOptions, *, engine: str, lanes: int | None, address: str | None) -> Engine | None:
    """Lanes of a Ray cluster, or None for what the options say."""
    if engine != "ray":
        return None
    from opreplay.replay.run import worker_config
    from opreplay.replay.schedule_ray import RayLanes

    return RayLanes(worker_config(options), limit_s=options.hard_limit_s(), lanes=lanes, address=address)


def show_batch(outputs: Outputs) -> None:
    """Coverage of all traces, how much they share, then traces, jobs and ops; only the former where stdout is taken."""
    from rich.console import Group

    from opreplay.cli import console
    from opreplay.cli.reporting import show_report
    from opreplay.replay.report.facts import coverage_line

    memory = outputs.memory
    if memory.summary is None:
        return
    if outputs.to_stdout or not memory.traces:
        show_report(outputs)
        return
    console.show_line(coverage_line(memory.header, memory.results, memory.summary))
    console.show_fitted(lambda width: Group(*batch_tables(memory, width=width)))
    show_report(outputs, coverage=False)


def batch_tables(run: MemorySink | ResultFile, *, width: int) -> list[RenderableType]:
    """How much the traces share, then one row a trace and a job; nothing for a run of one trace."""
    from rich.text import Text

    from opreplay.replay.report import batch as view

    if not run.traces:
        return []
    shared = Text(view.sharing_line(run.traces, len(run.results)))
    return [shared, view.render(run.traces, run.jobs, width=width)]
