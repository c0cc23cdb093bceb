# pyright: strict
"""The step summary used by every command: the verdict as a sentence, the step in a few rows, and both as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from opreplay.replay.ir.step import IDLE_CAUSES, PYTHON, PythonTime, StepOnDevice, StepReport
from opreplay.replay.report.table import Fact
from opreplay.replay.report.text import doubt_lines, middle, quotient, ratio_text, safe, share_text, time_text
from opreplay.traces.losses import copies_text, without_copies

_HOST_ALONE = "On the host alone"
_NAME_WIDTH = 40
_LEAST_SHARE = 0.005
"""Minimum share of the step for a part of it, such as idle time of one cause, to be reported."""
_LEAST_NAMED = 0.2
"""Minimum time of a Python function, as a share of the idle time, for the verdict to name the function."""
_NAMED = 0.3
"""Minimum time of a Python function, as a share of all Python time, for the verdict to name the function."""
_UNEVEN = 1.25
"""Minimum ratio of the longest to the shortest step of a trace for which both lengths are shown."""


def verdict(step: StepReport) -> str:
    """Return a sentence on what bounds the step, and its length on simulated devices."""
    step_us = step.window.step_us
    took = f"{time_text(step_us)} {'a step' if step.marked else 'in all (the trace marks no steps)'}"
    device = f"the {step.accelerator}"
    idle = share_text(quotient(sum(step.idle_us.values()), step_us))
    busy = share_text(quotient(step.busy_us, step_us))
    function = named_function(step)
    if step.bound == "host alone" and without_copies(step.losses):
        text = f"No device work in the readable part of the trace: {took}, ops run {busy} of it on the host"
    elif step.is_untimed:
        text = f"No verdict on {took}: {' and '.join(doubt_lines(step.doubts))}"
    elif step.bound == "unknown":
        unknown = (
            ["no launch of its device work is recorded"] if step.launches_unknown and not step.doubts.shared_ids else []
        )
        reasons = " and ".join([*doubt_lines(step.doubts), *_lost_kernels(step), *unknown])
        text = f"{device[0].upper()}{device[1:]} is busy {busy} of {took}; {reasons}, so the bottleneck is uncertain"
    elif step.bound == "host alone" and step.launches_without_kernel:
        found = "is recorded"
        if step.doubts.collided_share:
            found = f"is known ({' and '.join(doubt_lines(step.doubts))})"
        text = f"No device work of this step {found}: {took}, ops run {busy} of it on the host"
        text += f"; {_lost_kernels(step)[0]}"
    elif step.bound == "host alone":
        text = f"{_HOST_ALONE}: {took}, ops run {busy} of it"
        text += "" if function is None else f", and {_function(function)} takes {time_text(function.us)}"
    elif step.bound == "host":
        text = f"Host-bound: {device} idles {idle} of {took}"
        text += "" if function is None else f" and waits {time_text(function.us)} for {_function(function)}"
    elif step.bound == "communication":
        share = share_text(quotient(step.communication_us, step_us))
        text = f"Communication-bound: {share} of {took} is communication not hidden by compute"
    elif step.bound == "device":
        text = f"Device-bound: {device} is busy {busy} of {took}"
    else:
        text = f"{device[0].upper()}{device[1:]} is busy {busy} of {took}: neither it nor the host alone bounds it"
    devices = [f"{safe(name)} {soc_text(on_device, step)}" for name, on_device in step.socs.items()]
    return "; ".join([text, *devices]) + "." + _largest(step) + _lost(step) + _of_process(step)


def named(name: str, text: str) -> str:
    """Prefix a verdict with the name of its trace: "step_7 is host-bound: the GPU idles 53.2 % of ..."."""
    bound, _, rest = text.partition(": ")
    if rest and bound.endswith("-bound"):
        return f"{safe(name)} is {bound.lower()}: {rest}"
    return f"{safe(name)} ran on the host alone: {rest}" if bound == _HOST_ALONE else f"{safe(name)}: {text}"


def idle_line(step: StepReport) -> str:
    """Return the idle time by cause: "idle 53.2 %: 41.6 % waiting for the host, 10.6 % before the first task"."""
    step_us = step.window.step_us
    causes = [(IDLE_CAUSES[cause], us) for cause, us in step.idle_us.items() if us >= _LEAST_SHARE * step_us]
    if step.bound == "host alone" or step.is_untimed or not causes:
        return ""
    shown = ", ".join(f"{share_text(quotient(us, step_us))} {cause}" for cause, us in sorted(causes, key=_us)[::-1])
    return f"idle {_share(sum(step.idle_us.values()), step_us)}: {shown}"


def _us(named_time: tuple[str, float]) -> float:
    return named_time[1]


def named_function(step: StepReport) -> PythonTime | None:
    """Return the Python function that the step waits for longest; None if it is short or not the main cause."""
    if step.bound not in ("host", "host alone") or not step.python or _lost_device_work(step) or step.is_untimed:
        return None
    (first, us), function = step.largest[0], step.python[0]
    is_large = function.us >= _NAMED * us and function.us >= _LEAST_NAMED * sum(step.idle_us.values())
    return function if first == PYTHON and is_large else None


def _function(function: PythonTime) -> str:
    return safe(middle(function.label, 2 * _NAME_WIDTH))


def _lost_kernels(step: StepReport) -> list[str]:
    """Return a note on how many launches of the step have no recorded kernel; [] if all have one."""
    without = step.launches_without_kernel
    have = "has" if without == 1 else "have"
    # Where ids collide, kernels are recorded that nobody knows the launch of.
    certain = "certain " if step.doubts.collided_share else ""
    return [f"{without:,} of its {step.launches:,} launches {have} no {certain}kernel"] if without else []


def _lost_device_work(step: StepReport) -> bool:
    """Check whether a step without recorded device work may have had device work that the host waited for."""
    return step.bound == "host alone" and bool(without_copies(step.losses) or step.launches_without_kernel)


def _lost(step: StepReport) -> str:
    """Return a note on the events that a damaged trace lost or contains twice; "" if there are none."""
    reasons = ", ".join(f"{safe(reason)} ({count:,})" for reason, count in without_copies(step.losses).items())
    lost = f" Not everything could be read: {reasons}." if reasons else ""
    copies = copies_text(step.losses)
    return f"{lost} {copies}." if copies else lost


def _of_process(step: StepReport) -> str:
    """Return which process of a merged file the step belongs to, and how to select another."""
    if step.process is None or step.processes < 2:
        return ""
    return (
        f" This is process {safe(step.process)}, one of {step.processes:,} in the file: select another with --process."
    )


def _largest(step: StepReport) -> str:
    """Return the host work that a host-bound step waited for; "" if the step is not host-bound."""
    if step.bound not in ("host", "host alone") or _lost_device_work(step) or step.is_untimed:
        return ""
    if step.bound == "host" and named_function(step) is not None:
        return ""
    causes = [(name, us / step.window.step_us) for name, us in step.largest[:2] if step.window.step_us]
    causes = [(name, share) for name, share in causes if share >= _LEAST_SHARE]
    if not causes:
        return ""
    ran = "" if step.bound == "host alone" else "dispatch of "
    named = [
        f"{'Python between ops' if name == PYTHON else ran + safe(middle(name, _NAME_WIDTH))} {share_text(share)}"
        for name, share in causes
    ]
    return f" Largest {'cause' if len(named) == 1 else 'causes'}: {', '.join(named)}."


NARROW = 0.1
"""If a step's band is narrower than this share of the step, most of the step must be copied from the recording.

No kernel prediction has such a narrow band. The errors of copied times are not part of the band.
"""


def soc_text(step: StepOnDevice, report: StepReport) -> str:
    """Return the step length on a simulated device: "would take 5.3 ms (3.3 ms to 10.3 ms), 0.18×"."""
    step_us = report.window.step_us
    if step.low_us is None or step.high_us is None:
        return f"is not predicted: only {share_text(step.predicted_share)} of the device time has a prediction"
    band = f"{time_text(step.low_us)} to {time_text(step.high_us)}"
    host = ""
    if step.host_bound:
        host = "; host-bound, and the band excludes errors of host time"
    elif step.high_us - step.low_us < NARROW * step.step_us:
        host = "; the band excludes errors of times copied from the recording, such as host time"
    lost = report.launches_without_kernel
    unknown = f"; without the unknown work of {lost:,} of {report.launches:,} launches" if lost else ""
    ratio = f"{ratio_text(step.step_us, step_us)} the recorded step"
    return f"would take {time_text(step.step_us)} ({band}{host}{unknown}), {ratio}"


def step_facts(step: StepReport) -> dict[str, Any]:
    """Return the `step` object of every JSON output."""
    return {"verdict": verdict(step), **msgspec.to_builtins(step)}


def step_rows(step: StepReport) -> list[Fact]:
    """Return the step as a few rows: its lengths, the device's activities, and how much is copied or unexplained."""
    window = step.window
    step_us = window.step_us
    lengths = f"{time_text(step_us)}{_chosen(step)}; on the host {time_text(window.host_us)}"
    if step.bound == "host alone" and not step.is_untimed:
        return [("step", lengths, ""), ("in ops", _share(step.busy_us, step_us), "")]
    if step.is_untimed:
        return [("step", lengths, ""), *(("times", line, "yellow") for line in doubt_lines(step.doubts))]
    if window.host_us > step_us and step.begin_us >= _LEAST_SHARE * step_us:
        lengths += f"; {step.accelerator} busy with the previous step for the first {time_text(step.begin_us)}"
    lengths += f"; {time_text(window.device_us)} from the first to the last device task"
    return [
        ("step", lengths, "yellow" if _is_uneven(step) else ""),
        ("busy", f"{_share(step.busy_us, step_us)} of the step; sum of task times {time_text(step.device_sum_us)}", ""),
        ("idle", idle_line(step).removeprefix("idle "), ""),
        ("known", _known(step), "yellow" if step.unknown_wait_us > 0.1 * step_us else ""),
        *(("times", line, "yellow") for line in doubt_lines(step.doubts)),
    ]


def page_facts(step: StepReport, line: str) -> list[tuple[str, str]]:
    """Return (name, text) of the coverage `line` and of the step's rows, for a page whose headline is the verdict."""
    return [("coverage", line), *((name, text) for name, text, _ in step_rows(step))]


def _share(us: float, step_us: float) -> str:
    return f"{time_text(us)} = {share_text(quotient(us, step_us))}"


def _chosen(step: StepReport) -> str:
    """Return which of the marked steps was chosen; "" if no step is marked."""
    if not step.marked:
        return ""
    text = f" for {safe(middle(step.name, _NAME_WIDTH))}"
    if step.steps > 1:
        text += f", 1 of {step.steps:,}" if step.asked else f", {_which(step)}"
    if step.all_host_us is not None and _is_uneven(step):
        text += f" ({time_text(step.all_host_us[0])} to {time_text(step.all_host_us[1])} on the host)"
    return text


def _is_uneven(step: StepReport) -> bool:
    return step.all_host_us is not None and step.all_host_us[1] > _UNEVEN * step.all_host_us[0]


def _which(step: StepReport) -> str:
    """Return how the step was chosen: by median length among the steps with work."""
    work = "ops" if step.bound == "host alone" else "device work"
    if step.steps_with_work in (0, step.steps):
        return f"median length of {step.steps:,} steps"
    if step.steps_with_work == 1:
        return f"the only one of {step.steps:,} with {work}"
    return f"median length of the {step.steps_with_work:,} of {step.steps:,} steps with {work}"


def _known(step: StepReport) -> str:
    """Return how much of the critical path is copied from the recording or unexplained."""
    parts = [f"{share_text(step.copied_host_share)} of the critical path is host time copied from the trace"]
    if step.unknown_wait_us >= _LEAST_SHARE * step.window.step_us:
        parts.append(f"{time_text(step.unknown_wait_us)} of unexplained waits")
    if step.blocked_us >= _LEAST_SHARE * step.window.step_us:
        parts.append(f"{time_text(step.blocked_us)} in blocking calls, treated as host work")
    return "; ".join(parts)
