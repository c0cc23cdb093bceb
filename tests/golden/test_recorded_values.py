"""Plans, predictions and results of samples and public traces are those in values/.

A line an op: what is known of it, its time on the simulated device alone and in the step, and a fingerprint of its
record in the plan, the simulation and the results. Of public traces, which are beside the checkout, a line a trace.
`pytest tests/golden --update-golden` writes them; what changes needs a reason in the commit. Where a fingerprint is all
that changes, `benchmarks/predictions.py` says which value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.traces.samples import SAMPLES, sample_path

VALUES = Path(__file__).with_name("values")
MEASURED = frozenset(
    {
        *("measured_us", "measurement", "measure_s", "wall_s", "started_at", "environment", "identity"),
        *("opreplay_version", "max_op_bytes", "torch", "initializer", "suspicions", "attempts"),
    }
)
"""Keys of what a run measures, and of where and with what it ran."""

SOC = "910b3"
PUBLIC = (
    "h100_bert_small",
    "h100_qwen1.5_0.5b",
    "mi250_minitoy_train",
    "mi300_resnet_ddp_act_checkpoint",
    "mi300_sglang_prefilldecode",
    "mi300_torch_compile_triton",
    "npu_alexnet_trace_view",
    "nvidia_nccl_parser",
    "param_linear_et",
)
"""Traces of each kind and vendor that take a second or two."""

Record = dict[str, Any]


def fingerprint(record: Any) -> str:
    """A digest of all but the numbers with fractions, and a sum of the logarithms of these.

    The sum moves by as much as the share by which a number changes, however large the number is.
    """
    logarithms: list[float] = []

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in sorted(value.items()) if key not in MEASURED}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        if not isinstance(value, float) or not value or not math.isfinite(value):
            return value
        logarithms.append((1 + len(logarithms) % 5) * math.log(abs(value)))
        return "+" if value > 0 else "-"

    digest = hashlib.sha256(json.dumps(plain(record)).encode()).hexdigest()[:8]
    return f"{digest} {sum(logarithms):.10f}"


def recorded(path: Path) -> tuple[Record, Record, list[Record]]:
    """(plan, simulation, records of the results) of a trace, as files of the commands hold them."""
    common = ("--soc", SOC, "--set", "no_cache=true")
    _invoke("plan", path, *common, "-o", "plan.json", "--force")
    _invoke("simulate", path, *common, "-o", "simulated.json", "--force")
    _invoke("run", path, "--soc", SOC, "-o", "results.jsonl", "--force")
    plan, simulated = (json.loads(Path(name).read_text()) for name in ("plan.json", "simulated.json"))
    return plan, simulated, [json.loads(line) for line in Path("results.jsonl").read_text().splitlines() if line]


def _invoke(*arguments: object) -> None:
    done = CliRunner().invoke(opreplay, [str(argument) for argument in arguments])
    assert done.exit_code == 0, (arguments, done.stderr, done.exception)


def by_op(plan: Record, simulated: Record, results: list[Record]) -> Iterator[tuple[Record, Record, Record]]:
    """What each file says of each op."""
    predictions = {op["id"]: op for op in simulated["unique_ops"]}
    outcomes = {record["id"]: record for record in results if record["record"] == "op"}
    assert predictions.keys() == outcomes.keys() == {op["id"] for op in plan["ops"]}
    for op in plan["ops"]:
        yield op, predictions[op["id"]], outcomes[op["id"]]


def rows(plan: Record, simulated: Record, results: list[Record]) -> Iterator[str]:
    """The lines of a sample's file."""
    yield "# op: name ×calls resolved-by kinds-of-reasons | us-alone us-in-the-step | plan | simulation | result"
    whole = [{k: v for k, v in each.items() if k not in ("ops", "unique_ops")} for each in (plan, simulated)]
    outside = [record for record in results if record["record"] != "op"]
    yield f"whole | {' | '.join(fingerprint(each) for each in (*whole, outside))}"
    for op, predicted, result in by_op(plan, simulated, results):
        reason = (op["reason"] or {}).get("kind", "")
        times_us = [each["simulated"].get(SOC, {}).get("time_us", math.nan) for each in (result, predicted)]
        prints = " | ".join(fingerprint(each) for each in (op, predicted, result))
        head = f"{op['id']}: {op['name']} ×{op['count']} {op['resolved_by']} {reason}"
        yield f"{head} | {times_us[0]:.10g} {times_us[1]:.10g} | {prints}"


def summary(name: str, plan: Record, simulated: Record, results: list[Record]) -> str:
    """One line of a public trace: no name or size of its ops."""
    ops = list(by_op(plan, simulated, results))
    replayed = sum(result["status"] == "replayed" for *_, result in ops)
    prints = " | ".join(fingerprint(each) for each in (plan, simulated, results))
    total_us = simulated["socs"][SOC]["total_us"] or 0.0
    return f"{name} | {len(ops)} ops {replayed} replayed {total_us:.10g} us | {prints}"


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_values_of_a_sample(name: str, folder: Path, golden: Callable[..., None]) -> None:
    text = "\n".join(rows(*recorded(Path(sample_path(name).name)))) + "\n"
    golden(VALUES / f"{name}.txt", text, tolerance=1e-9)


@pytest.mark.slow
def test_values_of_public_traces(shared_traces: Path, folder: Path, golden: Callable[..., None]) -> None:
    lines = [summary(name, *recorded(shared_traces / f"{name}.json.gz")) for name in PUBLIC]
    golden(VALUES / "public_traces.txt", "\n".join(lines) + "\n", tolerance=1e-9)


def test_a_fingerprint_tells_what_changed() -> None:
    record = {"a": 1, "b": [0.5, "x"], "measured_us": 3.0}
    digest, number = fingerprint(record).split()
    assert fingerprint({**record, "measured_us": 4.0}) == f"{digest} {number}"
    assert fingerprint({**record, "a": 2}).split()[0] != digest
    moved = fingerprint({**record, "b": [0.5 * (1 + 1e-6), "x"]}).split()
    assert moved[0] == digest
    assert float(moved[1]) - float(number) == pytest.approx(1e-6, rel=1e-3)
    assert fingerprint({**record, "b": [-0.5, "x"]}).split()[0] != digest
