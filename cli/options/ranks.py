# pyright: strict
"""--ranks, and the settings backend and no_check: collectives on real process groups."""

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
    """How many ranks replay collectives, and by what: they complete the `measuring` that the command gets."""

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
        help="Replay collectives and point-to-point on N processes here; under torchrun, Slurm or Ray on those that "
        "were started.",
    ),
    setting(
        "--backend",
        type=click.Choice(("gloo", "nccl", "hccl")),
        help="Process group backend.  [default: gloo on the CPU, nccl on CUDA, hccl on an NPU]",
    ),
    setting("--no-check", is_flag=True, help="Do not check the results of collectives."),
]


def served_as_rank(ranks: int) -> bool:
    """Where a launcher started this process as a rank other than 0: be that until rank 0 is done, and True.

    Raises UsageError for another number of ranks than were started, EnvironmentRefused where rank 0 is lost.
    """
    from opreplay.replay.execute.ranks.launched import launched
    from opreplay.traces.errors import UsageError

    place = launched()
    if place is None:
        return False
    if place.world != ranks:
        raise UsageError(f"--ranks {ranks}, but {place.world} were started", hint=f"Say --ranks {place.world}.")
    if place.rank == 0:
        return False
    from opreplay.replay.execute.ranks.joined import serve_joined

    serve_joined(place)
    return True


def check_ranks(ranks: int | None, backend: str | None, *, no_check: bool, device: str, mode: str) -> None:
    """Raises UsageError for options of ranks that do not go together."""
    from opreplay.replay.execute.ranks.launched import launched
    from opreplay.traces.errors import UsageError

    if ranks is None:
        if backend is not None or no_check:
            name = "--set backend" if backend is not None else "--set no_check"
            raise UsageError(f"{name} is for collectives on several ranks", hint="Say how many with --ranks N.")
        return
    kind = device.partition(":")[0]
    if mode == "sequence" and kind != "cpu":
        raise UsageError(
            f"--mode sequence with --ranks is for the CPU, not for {device}: overlap was never tried on devices",
            hint="Leave --mode sequence out: then collectives are measured one by one.",
        )
    if mode == "sequence" and launched() is not None:
        raise UsageError(
            "--mode sequence with --ranks starts its ranks here, and a launcher started this process",
            hint="Start it by itself, or leave --mode sequence out.",
        )
    needed = {"nccl": "cuda", "hccl": "npu"}.get(backend or "")
    if needed is not None and kind != needed:
        raise UsageError(f"{backend} needs --device {needed}, not {device}", hint="Or --set backend=gloo.")
    if ":" in device:
        raise UsageError(f"{ranks} ranks on {device}: each has a device of its own", hint=f"Say --device {kind}.")
