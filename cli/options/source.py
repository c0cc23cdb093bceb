# pyright: strict
"""TRACE and the options for reading it, shared by all commands that open one trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from opreplay.cli.options.many import is_many, refuse_options_of_one
from opreplay.cli.options.shared import (
    Command,
    capture_option,
    execution_trace_option,
    execution_traces_option,
    kernel_details_option,
    limit_option,
    process_option,
    trace_argument,
    with_options,
)
from opreplay.cli.options.types import FileName

if TYPE_CHECKING:
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.traces import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """File that a command reads, and the files that add data to it."""

    trace: str
    execution_trace: str | None
    kernel_details: str | None
    capture: str | None
    process: str | None
    limit: tuple[tuple[str, str], ...]
    one_process: bool = False
    """Whether to use only the busiest process of a merged trace."""

    def open(self, *, activity: bool = False) -> Trace | ReplayPlan:
        """Open the file with `opreplay.cli.opening.open_input`; `activity` also reads event times and collectives."""
        from opreplay.cli.opening import busiest_of, open_input
        from opreplay.traces.model import Trace

        read = open_input(
            self.trace,
            self.limit,
            execution_trace=self.execution_trace,
            kernel_details=self.kernel_details,
            capture=self.capture,
            process=self.process,
            activity=activity,
        )
        return busiest_of(read) if self.one_process and isinstance(read, Trace) else read


def source_options(*, execution_traces: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds TRACE, the options for files that add data to it, and the limits of the reader.

    The command receives them as `source`, a `Source`.
    """

    def add(command: Command) -> Command:
        @wraps(command)
        def taking_source(
            *,
            trace: str,
            execution_trace: str | None = None,
            kernel_details: str | None,
            capture: str | None,
            process: str | None,
            limit: tuple[tuple[str, str], ...],
            **others: Any,
        ) -> Any:
            source = Source(
                trace=trace,
                execution_trace=execution_trace,
                kernel_details=kernel_details,
                capture=capture,
                process=process,
                limit=limit,
            )
            return command(source=source, **others)

        options = [trace_argument, *([execution_trace_option] if execution_traces else [])]
        options += [process_option, kernel_details_option, capture_option, limit_option]
        taking: Any = with_options(taking_source, options)
        return taking

    return add


def sources_options(command: Command) -> Command:
    """Add TRACE..., the options for files that add data to them, and the limits of the reader.

    For a single trace, the command receives them as `source`, a `Source`. For many traces, `source` is None and the
    command receives `traces`, `execution_trace`, `process` and `limit`.
    """

    @wraps(command)
    def taking_sources(
        *,
        traces: tuple[str, ...],
        execution_trace: tuple[str, ...],
        kernel_details: str | None,
        capture: str | None,
        process: str | None,
        limit: tuple[tuple[str, str], ...],
        **others: Any,
    ) -> Any:
        source = None
        if is_many(traces):
            refuse_options_of_one()
        else:
            if len(execution_trace) > 1:
                raise click.UsageError("--execution-trace can be given only once for one trace")
            source = Source(
                trace=traces[0],
                execution_trace=next(iter(execution_trace), None),
                kernel_details=kernel_details,
                capture=capture,
                process=process,
                limit=limit,
            )
        return command(
            source=source, traces=traces, execution_trace=execution_trace, process=process, limit=limit, **others
        )

    options = [
        click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=FileName()),
        execution_traces_option,
        process_option,
        kernel_details_option,
        capture_option,
        limit_option,
    ]
    taking: Any = with_options(taking_sources, options)
    return taking
