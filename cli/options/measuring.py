# pyright: strict
"""Options of all commands that measure, and locking of devices while such a command measures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

import click

from opreplay.cli.options.settings import Renamed, is_default, setting
from opreplay.cli.options.shared import Command, seed_option, with_options
from opreplay.cli.options.types import ByteSize, Count, Duration, Names

if TYPE_CHECKING:
    from opreplay.replay.execute.options import RunOptions
    from opreplay.replay.job.events import Event
    from opreplay.replay.plan.selection import Selection
    from opreplay.replay.results.measurement import RunCache


_MEASURING = [
    setting(
        "--max-op-memory",
        type=ByteSize(),
        metavar="SIZE",
        help="Memory that an op may need, e.g. 1GB.  [default: half of the free memory]",
    ),
    setting(
        "--over-budget",
        type=click.Choice(("shrink", "skip")),
        default="shrink",
        show_default=True,
        help="If an op needs more memory, run it on part of its data, or skip it.",
    ),
    setting(
        "--op-time",
        type=Duration(),
        default="0.2s",
        show_default=True,
        metavar="TIME",
        help="Time to measure each op.",
    ),
    setting(
        "--op-limit",
        type=Duration(without_unit="write 60s for a timeout; to select the N heaviest ops, use --top N"),
        metavar="TIME",
        help="Timeout of one op.  [default: 60s, or 30 times op_time]",
    ),
    setting(
        "--repeats",
        former=["--visits"],
        type=Count(1, 16),
        metavar="N",
        help=(
            "Measure each op in N interleaved rounds within its op_time; 8 lets `compare` detect "
            "smaller changes on a busy CPU.  [default: 1, or 8 if CPUs are busy]"
        ),
    ),
    click.option(
        "--cache",
        type=click.Choice(["cold", "warm", "step"]),
        default="cold",
        show_default=True,
        help=(
            "Cache state of the arguments: cold, as in most models; warm, as in a loop; or step, as in the recorded "
            "step (CPU only)."
        ),
    ),
    setting(
        "--cuda-graph",
        is_flag=True,
        help=("If CUDA runs an op faster than the host can launch it, capture the op as a graph and time the graph."),
    ),
    setting(
        "--total-time",
        type=Duration(),
        metavar="TIME",
        help="Time for the whole run, e.g. 5min; ops beyond it are skipped.",
    ),
    setting(
        "--threads",
        type=Count(min=1),
        metavar="N",
        help="Threads that an op may use.  [default: torch's choice, fewer if CPUs are busy]",
    ),
    seed_option,
    setting(
        "--shared-device",
        is_flag=True,
        envvar="OPREPLAY_SHARED_DEVICE",
        show_envvar=True,
        help="Measure even if another opreplay measures on the same device.",
    ),
]
"""Options that `measuring_options` adds to a command."""


def measuring_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options for time, memory and seed of measurements. The command receives them as `measuring`, a RunOptions."""

    @wraps(command)
    def taking_measuring(
        *,
        max_op_memory: int | None,
        over_budget: Literal["shrink", "skip"],
        op_time: float,
        op_limit: float | None,
        repeats: int | None,
        cache: RunCache,
        cuda_graph: bool,
        total_time: float | None,
        threads: int | None,
        seed: int,
        shared_device: bool,
        **others: Any,
    ) -> Any:
        from opreplay.replay.execute.options import RunOptions

        measuring = RunOptions(
            max_op_bytes=max_op_memory,
            over_budget=over_budget,
            op_time_s=op_time,
            limit_s=op_limit,
            visits=repeats,
            cache=cache,
            cuda_graph=cuda_graph,
            total_time_s=total_time,
            threads=threads,
            seed=seed,
            shared_device=shared_device,
        )
        return command(measuring=measuring, **others)

    return with_options(taking_measuring, _MEASURING)


def quick_option(what: str) -> Callable[[Command], Command]:
    """Return a decorator that adds --quick; `what` completes its help text."""
    return click.option("--quick", is_flag=True, help=f"A first look: {what}.")


QUICK_TOP, QUICK_OP_TIME_S = 20, 0.02
QUICK_LIMIT_S = 10.0
"""Time limit per op with --quick, in seconds, including setup. By default, huge ops would take a minute each."""


def quick_look(selection: Selection, measuring: RunOptions) -> tuple[Selection, RunOptions]:
    """Apply --quick: select fewer ops and spend less time on each, unless the command line sets these options."""
    import msgspec

    measuring = quick_times(measuring)
    return (selection if selection.top is not None else msgspec.structs.replace(selection, top=QUICK_TOP)), measuring


def quick_times(measuring: RunOptions) -> RunOptions:
    """Apply the times of --quick, but not its selection of ops."""
    import msgspec

    if not is_default("op_time"):
        return measuring
    limit_s = QUICK_LIMIT_S if measuring.limit_s is None else measuring.limit_s
    return msgspec.structs.replace(measuring, op_time_s=QUICK_OP_TIME_S, limit_s=limit_s, visits=measuring.visits or 1)


dry_run_option = click.option(
    "--dry-run", is_flag=True, hidden=True, help="Show what would run, without running anything."
)
"""--dry-run: print what `opreplay plan` would print; run nothing."""


max_failed_option = click.option(
    "--max-failed", type=click.IntRange(min=0), metavar="N", help="Exit with 1 if over N ops are skipped or failed."
)
"""--max-failed: maximum number of skipped or failed ops for exit code 0."""


stop_on_error_option = setting(
    "--stop-on-error",
    flag_stays=True,
    is_flag=True,
    help="Stop the run after the first op that fails, with exit code 1.",
)
"""--stop-on-error: stop at the first failure."""


resume_option = click.option(
    "--resume",
    is_flag=True,
    help="Resume an interrupted run of the same ops and options from the .jsonl of --output.",
)
"""--resume: continue an interrupted run from its result file."""


CHECKS = ("work", "kernels", "values")


def checking_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --check, which compares replayed ops with recorded ones; its choices are stored in `measuring`."""

    @wraps(command)
    def taking_checks(
        *,
        check: tuple[str, ...],
        check_work: bool,
        check_kernels: bool,
        check_values: bool,
        measuring: RunOptions,
        **others: Any,
    ) -> Any:
        import msgspec

        old = {"work": check_work, "kernels": check_kernels, "values": check_values}
        chosen = {f"check_{name}": is_set or name in check for name, is_set in old.items()}
        return command(measuring=msgspec.structs.replace(measuring, **chosen), **others)

    return with_options(taking_checks, _CHECKING)


_CHECKING = [
    click.option(
        "--check",
        type=Names(*CHECKS),
        default=(),
        metavar="NAME,...",
        help=(
            "work: report data-dependent work, and warn about ops that do none. kernels: profile one call of each op, "
            "and compare its kernels or child ops with the recorded ones. values: compare results of substitute "
            "implementations with those of the op's own implementation."
        ),
    ),
    *(click.option(f"--check-{name}", is_flag=True, cls=Renamed, now=f"--check {name}") for name in CHECKS),
]


@contextlib.contextmanager
def lock_devices(devices: Sequence[str], *, shared: bool) -> Generator[bool, None, None]:
    """Lock the devices while ops are measured; yield whether another job is measuring on any of them.

    With `shared`, nothing is locked and False is yielded. Without it, raises EnvironmentRefused if an accelerator is in
    use.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.host.device_lock import hold_locks

    if shared:
        yield False
        return
    with hold_locks(devices, on_wait=lambda text: console.narrate(f"opreplay: {text}")) as beside:
        if beside:
            console.narrate(
                f"opreplay: warning: another job is measuring on {', '.join(beside)}: measured times may be too long"
            )
        yield bool(beside)


def tell_threads(event: Event) -> None:
    """Report on stderr, before anything is measured, if ops get fewer threads than torch would use by default."""
    from opreplay.cli.terminal import console
    from opreplay.replay.job.events import Started
    from opreplay.replay.report.doubts import busy_notes

    for note in busy_notes(event.environment) if isinstance(event, Started) else ():
        console.narrate(f"opreplay: {note}")
