# pyright: strict
"""Print the report of a finished or interrupted `run`, and return its exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options.history import add_to_history, refuse_bad_history
from opreplay.cli.terminal import console
from opreplay.traces.names import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opreplay.cli.run_outputs import Outputs
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.execute.processes.lanes import Engine
    from opreplay.replay.job.job import Job
    from opreplay.replay.job.predicting import Faults
    from opreplay.replay.results.records import OpResult, Summary


def one_stdout(format_: str, output: Sequence[str]) -> None:
    """Raise UsageError if both the report and the result records would be written to stdout."""
    from opreplay.traces.errors import UsageError

    if format_ == "json" and "-" in output:
        raise UsageError("--format json and --output - cannot both write to stdout", hint="Leave one out.")


def show_json(outputs: Outputs) -> None:
    """Print the whole run as one JSON value to stdout, and its coverage to stderr.

    Prints nothing for a run that could not start.
    """
    from opreplay.replay.report.run import report
    from opreplay.replay.report.run.tables import run_of

    run = run_of(outputs.memory)
    if run is not None:
        console.narrate(run.first_line)
        console.show_view(report.view(run), "json")


def show_report(outputs: Outputs, *, everything: bool = True, all_rows: bool = True) -> None:
    """Print the coverage and the tables of a run.

    For a batch, tables of traces and jobs come before the table of ops. If the outputs already write the results to
    stdout, only the coverage is printed, to stderr.
    """
    from opreplay.replay.report.run import report
    from opreplay.replay.report.run.tables import run_of

    run = run_of(outputs.memory)
    if run is None:
        return
    if outputs.was_finished:
        console.narrate(
            f"opreplay: the resumed run was already complete; none of its {run.summary.ops:,} ops was measured again"
        )
    if outputs.to_stdout:
        console.narrate(run.first_line)
        return
    console.show_view(report.view(run, everything=everything, all_rows=all_rows), "table")


def outcome_code(outputs: Outputs, max_failed: int | None, faults: Faults) -> ExitCode:
    """Return the exit code of a run, and report the reason on stderr.

    It is 1 if more than `max_failed` ops were skipped or failed, if an op's process died, or if the run stopped at a
    failed op. Raises InternalError if opreplay's own code failed.
    """
    from opreplay.replay.results.outcome import is_lost
    from opreplay.replay.results.resume import is_out_of_time

    summary, results = outputs.memory.summary, outputs.memory.results
    late = sum(map(is_out_of_time, results))
    if summary is not None and summary.wall_s is not None:
        _tell_spent_time(outputs, summary.wall_s, late)
    if late and max_failed is not None:
        console.narrate(
            f"opreplay: not run because time ran out (--set total_time): {plural(late, 'op')}, counted as not replayed"
        )
    lost = sum(is_lost(result.reason) for result in results)
    if lost:
        console.narrate(f"opreplay: error: processes died while running {plural(lost, 'op')}; to retry, use --resume")
    stopped = False
    if summary is not None and summary.interrupted:
        stopped = True
        _tell_stop(results[-1], summary.ops - len(results))
    code = _code_of_results(results, summary, max_failed)
    faults.conclude()
    _refuse_internal_errors(results)
    return ExitCode.INCOMPLETE if (lost or stopped) and code == ExitCode.OK else code


def _tell_stop(result: OpResult, untried: int) -> None:
    """Report on stderr the op at which a run stopped because of --stop-on-error."""
    console.narrate(
        f"opreplay: error: stopped at {result.name} ({result.id}): {result.reason}; {plural(untried, 'op')} not tried "
        "(--stop-on-error). To retry it, use --resume; to continue after failed ops, leave out --stop-on-error"
    )


def _code_of_results(results: Sequence[OpResult], summary: Summary | None, max_failed: int | None) -> ExitCode:
    """Return the exit code that follows from the number of ops that were not replayed or have wrong results.

    Results are wrong if they differ from those of the op's own implementation.
    """
    missed = 0 if summary is None else summary.ops - summary.replayed
    wrong = sum(r.values is not None and r.values.status == "differs" for r in results)
    what = "not replayed or with wrong results" if wrong else "not replayed"
    return code_for(missed + wrong, max_failed, what, of=None if summary is None else summary.ops)


def _refuse_internal_errors(results: Sequence[OpResult]) -> None:
    """Raise InternalError for the first op that failed in opreplay's own code."""
    from opreplay.traces.errors import InternalError

    for result in results:
        if result.reason is not None and result.reason.kind == "internal error":
            raise InternalError(f"{result.name} ({result.id}): {result.reason.detail}")


def _tell_spent_time(outputs: Outputs, wall_s: float, late: int) -> None:
    """Report on stderr what used up the run's `wall_s` seconds: ops or start-up. `late` ops were not run."""
    from opreplay.replay.results.resume import is_ended_by_time

    for result in filter(is_ended_by_time, outputs.memory.results):
        if result.measure_s is not None:
            console.narrate(
                f"opreplay: {result.name} ({result.inputs or 'no tensors'}) took {result.measure_s:.0f} s of the run's "
                f"{wall_s:.0f} s without finishing (--set total_time); --resume retries it last, --set op_limit stops "
                "it earlier"
            )
    if late and not _measured_here(outputs):
        console.narrate(
            f"opreplay: no op was run, because startup took all of the {wall_s:.1f} s (--set total_time); run again "
            "with --resume and more time"
        )


def _measured_here(outputs: Outputs) -> bool:
    """Check whether this run tried an op that the run it resumes had not tried."""
    from opreplay.replay.results.resume import is_ended_by_time, is_out_of_time

    before = () if outputs.earlier is None else outputs.earlier.results
    earlier_ids = {result.id for result in before if not is_out_of_time(result)}
    return any(
        result.id not in earlier_ids and (is_ended_by_time(result) or result.measure_s is not None)
        for result in outputs.memory.results
    )


def code_for(missed: int, max_failed: int | None, what: str, *, of: int | None) -> ExitCode:
    """Return exit code 1, and report it on stderr, if `missed` ops are more than `max_failed`.

    `what` says in the report what is wrong with these ops. If `max_failed` is None, any number is allowed. `of` is the
    number of all ops, None if unknown. If it is 0, for example for an empty selection, nothing was tested; the exit
    code is then 2 if `max_failed` is given.
    """
    if max_failed is not None and of == 0:
        console.narrate("opreplay: there is no op to replay, so --max-failed tests nothing")
        return ExitCode.USAGE
    if max_failed is None or missed <= max_failed:
        return ExitCode.OK
    console.narrate(f"opreplay: {what}: {plural(missed, 'op')}, but --max-failed allows {max_failed}")
    return ExitCode.INCOMPLETE


def engine_of(options: RunOptions, *, engine: str, lanes: int | None, address: str | None) -> Engine | None:
    """Return an engine with workers on a Ray cluster; None stands for the default engine of the options."""
    if engine != "ray":
        return None
    from opreplay.replay.execute.engines import worker_config
    from opreplay.replay.execute.processes.ray import RayLanes

    return RayLanes(worker_config(options), limit_s=options.hard_limit_s(), lanes=lanes, address=address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """Output settings of a run: files, history, report and exit code."""

    output: tuple[str, ...]
    force: bool
    resume: bool
    format_: str
    history: str | None
    label: str | None
    max_failed: int | None
    dry_run: bool
    rows: bool | None = None
    """Where to print finished ops: True everywhere, False only on a terminal, None nowhere."""
    notes: bool = True
    all_rows: bool = True

    def refuse_unusable(self) -> None:
        """Raise UsageError for output settings that cannot work. Called before anything is read."""
        one_stdout(self.format_, self.output)
        refuse_bad_history(self.history, self.label, dry_run=self.dry_run)

    def conclude(self, outputs: Outputs, faults: Faults) -> ExitCode:
        """Add a finished run to the history; return the exit code of its results."""
        add_to_history(self.history, self.label, outputs)
        return outcome_code(outputs, self.max_failed, faults)


def run_and_show(
    job: Job, outputs: Outputs, showing: Showing, *, devices_held: Sequence[str], engine: Engine | None = None
) -> Faults:
    """Run a job, write it to the outputs, and show the results, even if the run is incomplete.

    `devices_held` are locked during the run. Returns the errors of predictions.
    """
    from opreplay.cli.options.measuring import lock_devices, tell_threads
    from opreplay.cli.terminal.progress import RunProgress
    from opreplay.replay.job.consumers import deliver, write_to
    from opreplay.replay.job.predicting import Faults
    from opreplay.traces.errors import UsageError

    faults, rows = Faults(), showing.rows
    try:
        with (
            lock_devices(devices_held, shared=job.settings.shared_device) as beside,
            RunProgress(rows=rows) as show_progress,
        ):
            events = job.run(engine, earlier=outputs.earlier, beside=beside)
            deliver(events, write_to(outputs), tell_threads, show_progress, faults)
    except UsageError:
        outputs.forget()  # refused: what the file holds is of another run
        raise
    finally:
        if showing.format_ == "json":
            show_json(outputs)
        else:
            show_report(outputs, everything=showing.notes, all_rows=showing.all_rows)
    return faults
