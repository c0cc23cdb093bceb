# pyright: strict
"""--mode and related options: replay the calls of a step in order, instead of each unique op once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

import click

from opreplay.cli.options.settings import refuse_given, setting
from opreplay.cli.options.shared import with_options
from opreplay.cli.options.types import ByteSize

if TYPE_CHECKING:
    from opreplay.replay.execute.options import RunOptions

MEANINGLESS = {
    "cache": "earlier calls determine what is in the caches",
    "cuda_graph": "each call of a sequence is timed individually",
    "over_budget": "a partial op does not produce the full inputs of the next op",
    "check": "only single ops are checked",
    "check_kernels": "only single ops are checked",
    "check_values": "only single ops are checked",
    "check_work": "only single ops are checked",
}
"""Parameter of `run` → why it has no effect with --mode sequence."""


def sequence_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --mode and the setting `max_live_memory` to a command. Their values are stored in `measuring`."""

    @wraps(command)
    def taking_mode(
        *, mode: Literal["unique", "sequence"], max_live_memory: int | None, measuring: RunOptions, **others: Any
    ) -> Any:
        import msgspec

        check_mode(mode, max_live_memory)
        measuring = msgspec.structs.replace(measuring, mode=mode, max_live_bytes=max_live_memory)
        return command(measuring=measuring, **others)

    return with_options(taking_mode, _OPTIONS)


_OPTIONS = [
    click.option(
        "--mode",
        type=click.Choice(("unique", "sequence")),
        default="unique",
        show_default=True,
        help=("Measure each unique op, or all calls of one recorded step in order, keeping tensors alive."),
    ),
    setting(
        "--max-live-memory",
        type=ByteSize(),
        metavar="SIZE",
        help=("Memory for all tensors of a sequence together.  [default: half of the device's free memory]"),
    ),
]


def check_mode(mode: str, max_live_memory: int | None) -> None:
    """Raise UsageError for options that have no effect in this mode."""
    from opreplay.traces.errors import UsageError

    if mode == "unique":
        if max_live_memory is not None:
            raise UsageError(
                "--set max_live_memory needs --mode sequence", hint="To limit single ops, use --set max_op_memory."
            )
        return
    for name, why in MEANINGLESS.items():
        refuse_given([name], f"{{}} cannot be combined with --mode sequence: {why}", environment=True)
