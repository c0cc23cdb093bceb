# pyright: strict
"""--ranks and the settings backend and no_check, for running collectives on real process groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

import click

from opreplay.cli.options.settings import setting
from opreplay.cli.options.shared import with_options
from opreplay.cli.options.types import Count

if TYPE_CHECKING:
    from opreplay.replay.execute.options import RunOptions


def ranks_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options for the number of ranks that replay collectives and for their backend, stored in `measuring`."""

    @wraps(command)
    def taking_ranks(
        *,
        ranks: int | None,
        backend: Literal["gloo", "nccl", "hccl"] | None,
        no_check: bool,
        device: str,
        measuring: RunOptions,
        **others: Any,
    ) -> Any:
        import msgspec

        check_ranks(ranks, backend, no_check=no_check, device=device, mode=measuring.mode)
        measuring = msgspec.structs.replace(measuring, ranks=ranks, backend=backend, check_results=not no_check)
        return command(measuring=measuring, device=device, **others)

    return with_options(taking_ranks, _OPTIONS)


_OPTIONS = [
    click.option(
        "--ranks",
        type=Count(min=1, max=1024),
        metavar="N",
        help=(
            "Replay collectives and point-to-point messages with N processes on this machine, or "
            "with the processes that torchrun, Slurm or Ray started."
        ),
    ),
    setting(
        "--backend",
        type=click.Choice(("gloo", "nccl", "hccl")),
        help="Process group backend.  [default: gloo on the CPU, nccl on CUDA, hccl on an NPU]",
    ),
    setting("--no-check", is_flag=True, help="Do not check the results of collectives."),
]


def served_as_rank(ranks: int) -> bool:
    """Serve as a rank if a launcher started this process as rank 1 or higher.

    Returns True when rank 0 is done, and False at once if the process is rank 0 or was not started by a launcher.
    Raises UsageError if the launcher did not start `ranks` ranks, EnvironmentRefused if rank 0 is lost.
    """
    from opreplay.replay.execute.ranks.launched import launcher_settings
    from opreplay.traces.errors import UsageError

    place = launcher_settings()
    if place is None:
        return False
    if place.world != ranks:
        raise UsageError(
            f"--ranks is {ranks}, but the launcher started {place.world} processes", hint=f"Use --ranks {place.world}."
        )
    if place.rank == 0:
        return False
    from opreplay.replay.execute.ranks.joined import serve_joined

    serve_joined(place)
    return True


def check_ranks(ranks: int | None, backend: str | None, *, no_check: bool, device: str, mode: str) -> None:
    """Raise UsageError for rank options that cannot be combined."""
    from opreplay.replay.execute.ranks.launched import launcher_settings
    from opreplay.traces.errors import UsageError

    if ranks is None:
        if backend is not None or no_check:
            name = "--set backend" if backend is not None else "--set no_check"
            raise UsageError(f"{name} needs several ranks", hint="Give the number of ranks with --ranks N.")
        return
    kind = device.partition(":")[0]
    if mode == "sequence" and kind != "cpu":
        raise UsageError(
            f"--mode sequence with --ranks supports only the CPU, not {device}",
            hint="To measure collectives one by one, leave out --mode sequence.",
        )
    if mode == "sequence" and launcher_settings() is not None:
        raise UsageError(
            "--mode sequence with --ranks starts its own ranks, but this process was started by a launcher",
            hint="Run it without the launcher, or leave --mode sequence out.",
        )
    needed = {"nccl": "cuda", "hccl": "npu"}.get(backend or "")
    if needed is not None and kind != needed:
        raise UsageError(f"{backend} needs --device {needed}, not {device}", hint="Or --set backend=gloo.")
    if ":" in device:
        raise UsageError(
            f"{ranks} ranks cannot share {device}: each rank needs its own device", hint=f"Use --device {kind}."
        )
