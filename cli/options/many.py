# pyright: strict
"""Options for a run of many traces: number of workers, engine, address of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from opreplay.cli.options.settings import Named, is_given, refuse_given, setting
from opreplay.cli.options.shared import with_options
from opreplay.cli.options.types import Count

OF_ONE_TRACE = {
    "mode": "Replay the step of one rank with --mode sequence; `opreplay timeline FOLDER --ranks` times the steps of "
    "all ranks together.",
    "ranks": "Replay the collectives of one rank with --ranks; "
    "recorded collectives of several ranks are matched automatically.",
    "max_live_memory": "This option belongs to --mode sequence.",
    "backend": "This option belongs to --ranks.",
    "no_check": "This option belongs to --ranks.",
    "cluster": "`opreplay simulate TRACE --cluster ...` predicts one trace on a cluster.",
    "l2": "With many traces, predictions use the cache state of --cache.",
    "kernel_details": "A kernel table next to each trace is found automatically.",
    "capture": "Capture recordings next to each trace are found automatically.",
    "rows": "To write all results of many traces, use --output.",
    "notes": "`opreplay show FILE --notes` prints the notes of a file of results.",
}
"""Parameter of `opreplay run` that works with only one trace → what to do instead."""


def many_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --engine, --workers, and the settings `address` and `allow_damaged` to a command."""
    return with_options(command, _OPTIONS)


_OPTIONS = [
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help=(
            "Run many traces on this machine, or on a Ray cluster, where each worker reserves CPUs, a GPU or an NPU."
        ),
    ),
    click.option(
        "--workers",
        cls=Named,
        former=["--lanes"],
        type=Count(min=1),
        metavar="N",
        help=(
            "How many traces to read and ops to measure at the same time.  [default: read with all "
            "CPUs, measure one op; with Ray, as many as fit]"
        ),
    ),
    setting("--address", metavar="ADDRESS", help="Ray cluster to use, e.g. auto.  [default: one on this machine]"),
    setting(
        "--allow-damaged",
        is_flag=True,
        help="Accept traces that are cut short or damaged, and use what can be read of them.",
    ),
]


def is_many(traces: Sequence[str]) -> bool:
    """Return whether to run many traces.

    This is the case for several arguments, a folder or a glob that matches several files, and for --engine or
    --workers. Raises TraceError for a glob that matches no file.
    """
    if is_given("engine") or is_given("workers"):
        return True
    from opreplay.replay.plan.inputs import names_several

    return names_several(traces)


def refuse_options_of_one() -> None:
    """Raise UsageError if an option that works with only one trace is given on the command line."""
    for name, hint in OF_ONE_TRACE.items():
        refuse_given([name], "{} works with only one trace", hint)
