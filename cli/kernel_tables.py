"""The kernel table of an NPU's trace: the one that --kernel-details names, or the one beside it; narrates which."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opreplay.traces import Trace


def with_kernel_table(trace: Trace, named: str | None) -> Trace:
    """The trace with what the table says of its tasks; as it is where there is none.

    Raises what `join_kernel_details` does for a table that was named; one that merely lies there is told to be unused.
    """
    if named is None and trace.info.dialect != "ascend":
        return trace
    from opreplay.cli import console
    from opreplay.replay.report.npu import join_text
    from opreplay.traces.dialects.kernel_details import join_kernel_details, with_table_beside

    joined = with_table_beside(trace) if named is None else join_kernel_details(trace, named)
    found = joined.info.kernel_details
    if found is not None:
        console.narrate(f"opreplay: {join_text(found)}")
    return joined
