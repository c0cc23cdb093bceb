"""Names of ops that tests go over."""

from __future__ import annotations

from opreplay.replay.ops.table import counter_of, rows


def costed_ops() -> list[str]:
    """Return the ops that have a cost rule, sorted."""
    return [row.name for row in rows() if row.cost is not None]


def counted_ops() -> list[str]:
    """Return the ops whose work can be counted, sorted."""
    return [row.name for row in rows() if counter_of(row.name) is not None]
