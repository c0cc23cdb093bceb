# pyright: strict
"""Physical bounds of steps that are captured from configs: what memory and cubes need at least, and not much more.

Needs transformers. A step is captured with a few layers twice, and its time and sizes are carried on to all layers:
layers are alike, so that this gives what a capture of all does (Llama-3-8B's decode of 32 x 8,192 to 0.01 %).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.exams.configs_of import config_of, layers_of
from benchmarks.exams.scoring import Figures, Result
from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.devices import simulate_plan
from opreplay.replay.ascend.simulate.step_residency import PlannedStep

DECODE, PREFILL = 2.2, 2.5
"""Times the bound that a step may take: of batches of 8 and contexts of 2,048 tokens or more, and of 4,096 tokens."""
SMALL, LARGE = ("910b3", "910b4", "910c"), ("910b3", "910b4-1", "910c")
"""Devices of 34 and of 69 GB at least."""


class Case(NamedTuple):
    """A configuration on as many ranks as its memory needs."""

    config: str
    batch: int
    """Sequences of a decode."""
    context: int
    """Tokens of each in the cache; of a prefill 4,096 of one sequence."""
    ranks: Mapping[str, int] = {}
    socs: tuple[str, ...] = SMALL


def split(ranks: int, *, experts: bool = False) -> dict[str, int]:
    """Tensor ranks, which have whole experts of a mixture."""
    return {"tensor_parallel": ranks, **({"expert_parallel": ranks} if experts else {})}


CASES = (
    Case("llama-3-8b", 32, 8192, socs=LARGE),
    Case("llama-3-70b", 32, 4096, split(8)),
    Case("qwen2.5-7b", 32, 4096),
    Case("qwen3-32b", 16, 8192, split(4)),
    Case("qwen3-30b-a3b", 32, 4096, split(2, experts=True), LARGE),
    Case("qwen2-57b-a14b", 16, 2048, split(2, experts=True), LARGE),
    Case("deepseek-v3", 32, 4096, {"expert_parallel": 64}, LARGE),
    Case("gemma-3-27b", 16, 4096, split(2), LARGE),
    Case("mistral-small-24b", 16, 4096, split(2)),
    Case("phi-4", 16, 4096, socs=LARGE),
    Case("glm-4-9b", 32, 4096),
    Case("gpt-oss-20b", 16, 4096, socs=LARGE),
)


class Captured(NamedTuple):
    """What one rank holds and does in a step, and what it takes."""

    parameters: float
    """Bytes of weights."""
    cache: float
    """Bytes of what there is of earlier tokens."""
    memory: float
    """Bytes of tensors at the worst moment."""
    flops: float
    times_us: tuple[float, ...]
    """By device, without communication."""

    def carried_on(self, other: Captured, by: float) -> Captured:
        """What it is by as many times the difference to another one more."""

        def carried(here: float, there: float) -> float:
            return here + by * (there - here)

        return Captured(
            parameters=carried(self.parameters, other.parameters),
            cache=carried(self.cache, other.cache),
            memory=carried(self.memory, other.memory),
            flops=carried(self.flops, other.flops),
            times_us=tuple(map(carried, self.times_us, other.times_us)),
        )


def captured(config: Mapping[str, Any], shape: Mapping[str, Any], devices: Sequence[DeviceProfile]) -> Captured:
    """A step of a config, fused, captured and simulated on devices. Raises as `capture_target` does."""
    from opreplay.replay.capture.capture import capture_target
    from opreplay.replay.capture.serving.form import as_served
    from opreplay.replay.capture.target import target_of
    from opreplay.replay.ops.work.expected import expected_contents

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        plan = as_served(capture_target(target_of(f"hf:{path}", dict(shape))), "ascend")
    assert plan.capture is not None
    (peak,) = plan.capture.peaks
    steps = simulate_plan(PlannedStep(plan, expected_contents()), devices)
    return Captured(
        parameters=peak.by_kind["parameter"],
        cache=peak.by_kind.get("input", 0),
        memory=peak.peak_bytes,
        flops=sum(plan.capture.flops.values()),
        times_us=tuple(step.total_us - step.by_family.get("Collective", 0.0) for step in steps),
    )


def whole(case: Case, config: Mapping[str, Any], phase: str, devices: Sequence[DeviceProfile]) -> Captured:
    """The step of all layers."""
    sizes = {"batch": case.batch, "context": case.context} if phase == "decode" else {"batch": 1, "context": 4096}
    few, more = layers_of(config)
    make = partial(captured, shape={"phase": phase, **sizes, **case.ranks}, devices=devices)
    ends = [make({**config, "num_hidden_layers": layers}) for layers in (few, more)]
    return ends[0].carried_on(ends[1], (config["num_hidden_layers"] - few) / (more - few))


def unread_bytes(case: Case, config: Mapping[str, Any]) -> float:
    """Of one rank's weights, those that a decode does not read: the embeddings of other tokens, where the head has
    weights of its own, and experts that no token is expected to be routed to."""
    tensor, expert = case.ranks.get("tensor_parallel", 1), case.ranks.get("expert_parallel", 1)
    hidden, is_tied = config["hidden_size"], config["model_type"].startswith("gemma")
    unread = 0.0 if is_tied else 2.0 * config["vocab_size"] * hidden / tensor
    experts = config.get("num_experts") or config.get("n_routed_experts") or config.get("num_local_experts") or 0
    if experts:
        tokens = case.batch * (expert if tensor == 1 else 1)
        untouched = (1 - config["num_experts_per_tok"] / experts) ** tokens
        layers = config["num_hidden_layers"] - config.get("first_k_dense_replace", 0)
        width = config.get("moe_intermediate_size", config["intermediate_size"])
        unread += untouched * layers * experts / expert * 3 * 2 * hidden * width
    return unread


def bound_us(case: Case, config: Mapping[str, Any], phase: str, step: Captured, device: DeviceProfile) -> float:
    """Microseconds that a device needs at least: of a decode to read weights and cache, of a prefill to multiply."""
    if phase == "decode":
        read = step.parameters - unread_bytes(case, config) + step.cache
        return read / device.hbm_bytes_per_s * 1e6
    return step.flops / (2 * device.macs_per_cycle["bfloat16"] * device.aic_cores * device.freq_hz) * 1e6


class Checked(NamedTuple):
    """A step of a case on one device beside its bound."""

    name: str
    phase: str
    device: str
    time_us: float
    least_us: float
    most: float
    """Times `least_us` that it may take."""
    memory: float
    fits: bool

    @property
    def ratio(self) -> float:
        """Time over bound."""
        return self.time_us / self.least_us

    @property
    def holds(self) -> bool:
        """Whether it is within its bounds and the memory."""
        return self.fits and 1 <= self.ratio <= self.most

    def __str__(self) -> str:
        return (
            f"{'' if self.holds else 'FAILS '}{self.ratio:.2f} x the bound (at most {self.most}): {self.name} on the "
            f"{self.device}: {self.time_us / 1e3:.2f} ms, at least {self.least_us / 1e3:.2f}"
            f"{'' if self.fits else f'; {self.memory / 1e9:.1f} GB do not fit'}"
        )


def checked(case: Case) -> list[Checked]:
    """Both phases of a case on its devices."""
    config = config_of(case.config)
    devices = [load_device(name) for name in case.socs]
    found: list[Checked] = []
    for phase, most, sizes in (("decode", DECODE, f"{case.batch} x {case.context}"), ("prefill", PREFILL, "1 x 4096")):
        step = whole(case, config, phase, devices)
        ranks = max(case.ranks.values(), default=1)
        name = f"{case.config} {phase} {sizes}{f', {ranks} ranks' if ranks > 1 else ''}"
        for device, time_us in zip(devices, step.times_us, strict=True):
            least_us = bound_us(case, config, phase, step, device)
            fits = phase == "prefill" or step.memory <= device.hbm_bytes  # the peak of one layer tells nothing of many
            found.append(Checked(name, phase, device.name, time_us, least_us, most, step.memory, fits))
    return found


def exam(tables: Path) -> Result:
    """All cases, both phases, three devices each; the tables are not needed.

    `failing` counts steps out of their bounds, or that do not fit the memory; `llama_decode_ms` is that of Llama-3-8B,
    32 x 8,192, on a 910B3.
    """
    del tables
    found = [one for case in CASES for one in checked(case)]
    llama = next(one for one in found if one.name.startswith("llama-3-8b decode") and one.device == "910b3")
    figures: Figures = {
        "checked": len(found),
        "failing": sum(not one.holds for one in found),
        "llama_decode_ms": round(llama.time_us / 1e3, 1),
    }
    details = {
        one.name: {"ms": round(one.time_us / 1e3, 1), "bound_ms": round(one.least_us / 1e3, 1)}
        for one in found
        if one.device == "910b3"
    }
    ordered = sorted(found, key=lambda one: (one.holds, -one.ratio / one.most))
    return Result(figures, tuple(map(str, ordered)), details)
