# pyright: strict
"""Device time and idle causes of every marked step of a trace. A timeline covers only one step."""

from __future__ import annotations

from opreplay.replay.timeline.categories import Categories, categories
from opreplay.replay.timeline.graph.build import step_graph
from opreplay.replay.timeline.timeline import recorded_schedule
from opreplay.traces import Trace
from opreplay.traces.links.steps import busy_steps

MOST_STEPS = 32
"""Maximum number of steps, because each takes as long to analyse as the step of a timeline."""


def categories_of_steps(trace: Trace) -> list[tuple[str, Categories]]:
    """Return (name, times) of the first marked steps that launch work, in time order; empty if fewer than two do."""
    chosen = busy_steps(trace)[:MOST_STEPS]
    if len(chosen) < 2:
        return []
    graphs = [step_graph(trace, step) for step in chosen]
    return [(graph.step.name, categories(graph, recorded_schedule(graph))) for graph in graphs]
