# pyright: strict
"""`opreplay export`: chosen ops as a bundle that replays them with nothing but torch installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opreplay.cli.options.shared import (
    device_option,
    execution_trace_option,
    force_option,
    init_options,
    limit_option,
    plugin_option,
    selection_options,
    trace_argument,
)
from opreplay.cli.options.types import ByteSize

if TYPE_CHECKING:
    from opreplay.replay.plan.selection import Selection


@click.command("export", short_help="Write ops with a script that replays them with torch alone.")
@trace_argument
@execution_trace_option
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="DIR|FILE.zip",
    help="Where to: a folder that is new or empty, or an archive.",
)
@device_option
@selection_options
@plugin_option
@click.option("--keep-names", is_flag=True, help="Keep names of the trace, its device and kernels, and of private ops.")
@click.option(
    "--max-op-memory",
    type=ByteSize(),
    metavar="SIZE",
    help="Leave out ops whose inputs must be made here and need more.  [default: half of the free memory]",
)
@init_options
@force_option
@limit_option
def command(
    trace: str,
    execution_trace: str | None,
    output: str,
    device: str,
    selection: Selection,
    plugin: tuple[str, ...],
    keep_names: bool,
    max_op_memory: int | None,
    init_module: tuple[str, ...],
    init_arg: tuple[str, ...],
    force: bool,
    limit: tuple[tuple[str, str], ...],
) -> None:
    """Write the ops of TRACE as a bundle: ops.json, a script replay.py that needs nothing but torch, and a README.

    The bundle names neither the model nor its files, machine or kernels, unless --keep-names is given. Ops that a
    script cannot replay with torch alone are left out and listed.
    """
    from opreplay.cli.opening import open_input
    from opreplay.cli.setup import refuse_unused_initializers, use_plugins
    from opreplay.cli.terminal import console
    from opreplay.initializers.extensions import open_registry
    from opreplay.replay.export import check_target, make_bundle, write_bundle
    from opreplay.replay.export.files import left_out_lines
    from opreplay.replay.host.environment import default_op_bytes
    from opreplay.replay.plan.inputs import plan_of
    from opreplay.replay.resolve.policy import Policy
    from opreplay.traces.errors import UsageError

    check_target(Path(output), force=force)
    use_plugins(plugin)
    registry = open_registry(init_module, init_arg)
    plan = plan_of(open_input(trace, limit, execution_trace=execution_trace), selection, device=device)
    bundle = make_bundle(
        plan,
        registry,
        policy=Policy(allow_imports=selection.allow_imports),
        memory_bytes=max_op_memory or default_op_bytes(),
        keep_names=keep_names,
    )
    if not bundle.plan.ops:
        raise UsageError(
            f"nothing to export: none of {len(plan.ops)} ops can be replayed by a script",
            hint="; ".join(left_out_lines(bundle, private=False)[:3]) or "The trace holds no ops.",
        )
    refuse_unused_initializers(registry, plan.ops, init_module, init_arg)
    write_bundle(bundle, Path(output), force=force)
    left = len(bundle.left_out)
    console.show_line(f"exported {len(bundle.plan.ops)} of {len(plan.ops)} ops to {output}; {left} left out")
    for line in left_out_lines(bundle, private=False):
        console.show_line(line)
