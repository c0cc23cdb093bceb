"""Steps of large models captured from their config alone: processor time, memory, tokens/s, and public times.

    python -m benchmarks.steps_of_configs [--large | --exam] [--table ../shared/ascend/e2e.csv]

Needs transformers. Sizes of models are those of their public configs. `--exam` puts the rows of a table of public
end-to-end times, whose model, batch, context, ranks and type a config can state, beside `capture --vary --fused
ascend`: as one graph where the source tells of one, or of MindIE, else call by call; other rows are named with the
reason. A row that is the target of a recipe bounds its time from above: it is told apart and in no error. Bars: 20 s of
processor time and 0.5 GB for each large model; median error 20 %, 75 to 92 % within the band.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from benchmarks.exams.configs_of import layers_of
from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.timeline.served import ServedStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opreplay.replay.capture.serving.quantised import Weights
    from opreplay.replay.ir.model import ReplayPlan

TABLE = Path(__file__).resolve().parents[1].parent / "shared" / "ascend" / "e2e.csv"
CAPTURE = (sys.executable, "-c", "from opreplay.cli.main import main; main()", "capture")
QWEN3 = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936, "max_position_embeddings": 131072}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "vocab_size": 129280,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-3-405B": {
        "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256,
    },
    "DeepSeek-V3": DEEPSEEK_V3,
    "Qwen3-32B": {
        **QWEN3, "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
        "num_attention_heads": 64,
    },
    "Qwen3-30B-A3B": {
        **QWEN3, "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    },
    "Kimi-K2-Thinking": {
        **DEEPSEEK_V3, "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1, "vocab_size": 163840,
    },
    "Hunyuan-A13B-Instruct": {
        "model_type": "hunyuan_v1_moe", "hidden_size": 4096, "intermediate_size": 3072, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_experts": 64, "moe_topk": 8,
        "num_shared_expert": 1, "vocab_size": 128167, "max_position_embeddings": 32768,
    },
    "Qwen3-Next-80B-A3B": {
        "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 512, "num_experts_per_tok": 10,
        "vocab_size": 151936, "max_position_embeddings": 262144,
    },
    "Deepseek-R1": DEEPSEEK_V3,
    "Qwen3-8B": {
        **QWEN3, "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "Qwen3-235B-A22B": {
        **QWEN3, "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288,
        "moe_intermediate_size": 1536, "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    },
    "Qwen3-Coder-480B-A35B": {
        **QWEN3, "model_type": "qwen3_moe", "hidden_size": 6144, "intermediate_size": 8192,
        "moe_intermediate_size": 2560, "num_hidden_layers": 62, "num_attention_heads": 96, "num_experts": 160,
        "num_experts_per_tok": 8, "norm_topk_prob": True,
    },
}  # fmt: skip
LARGE = (
    ("Llama-3-405B", "train", 1, 4096, (), 1, "910b3", "-"),
    ("Llama-3-405B", "train", 1, 8192, ("--tensor-parallel", "8", "--pipeline-parallel", "16"), 128, "910b3",
     "Llama 3 (arXiv 2407.21783, table 4): 400 TFLOP/s a GPU on H100, about 160 tokens/s a GPU"),
    ("DeepSeek-V3", "decode", 32, 4096, ("--expert-parallel", "64"), 64, "910c", "-"),
    ("DeepSeek-V3", "decode", 96, 4096, ("--expert-parallel", "64", "--weights", "w8a8"), 64, "910c",
     "CloudMatrix384 (arXiv 2506.12708): 1,943 tokens/s a 910C of two dies, int8, 320 ranks of experts, batch 96, "
     "with a second token guessed"),
)  # fmt: skip
SOCS = {"910b": "910b3", "910b4": "910b4-1"}
"""Where the table names a family: the member of it that is taken. 65 GB of weights on two 910B4 need those of 64 GB."""


def main() -> None:
    """Print one table or both."""
    parser = argparse.ArgumentParser(description="Steps of configs: cost, tokens/s, and public end-to-end times.")
    parser.add_argument("--large", action="store_true", help="the large models alone")
    parser.add_argument("--exam", action="store_true", help="the public times alone")
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not options.exam:
            large(Path(folder))
        if not options.large:
            exam(options.table)


def step_of(
    folder: Path, model: str, phase: str, batch: int, context: int, options: tuple[str, ...], soc: str
) -> tuple[dict[str, Any], float, float]:
    """(the row of `--vary`, processor seconds, GB at most) of a process of its own."""
    config = folder / f"{model}.json"
    config.write_text(json.dumps(CONFIGS[model]))
    sizes = ("--vary", f"batch={batch}", f"context={context}", "--soc", soc)
    fused = () if phase == "train" else ("--fused", "ascend")
    command = [*CAPTURE, f"hf:{config}", "--phase", phase, *sizes, *options, *fused, "--format", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{model}: exit status {os.waitstatus_to_exitcode(status)}")
    (row,) = json.loads(text)["rows"]
    return row, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6


def large(folder: Path) -> None:
    """Processor time, memory and tokens/s of the large models."""
    for model, phase, batch, context, ranks, devices, soc, public in LARGE:
        row, seconds, gigabytes = step_of(folder, model, phase, batch, context, ranks, soc)
        print(
            f"{model} {phase} {batch} x {context} {' '.join(ranks) or 'whole'} on {soc}: {seconds:.1f} s CPU, "
            f"{gigabytes:.2f} GB; {row['token_ms']:.3f} ms a token (graph {row['graph_token_ms']:.3f}), "
            f"{row['graph_tokens_per_s'] / devices:,.1f} tokens/s a device, {row['memory_bytes'] / 1e9:.1f} GB "
            f"{'fit' if row['fits'] else 'do not fit'}; public: {public}",
            flush=True,
        )


class Times(NamedTuple):
    """ms a token with its 80 % band."""

    token: float
    low: float
    high: float


class Asked(NamedTuple):
    """A row of the table beside what is predicted of it."""

    row: dict[str, str]
    question: Question
    measured_ms: float
    is_target: bool
    """A recipe's bound from above, not a measurement."""
    is_fastest: bool
    """The recipe tells no batch: what is predicted is one sequence on as many ranks as may share a layer, the fastest
    that it can be without guessing tokens."""
    is_graph: bool
    """Whether the source tells of one graph; else the host launches call by call."""
    graph: Times
    calls: Times

    @property
    def times(self) -> Times:
        """Those of the form that was measured."""
        return self.graph if self.is_graph else self.calls


def whole_steps(table: Path = TABLE) -> list[Asked]:
    """The rows of a table of public times that can be asked, beside what is predicted: measured ones and targets."""
    return compared(table)[0]


def compared(table: Path) -> tuple[list[Asked], Counter[str], int]:
    """(rows that can be asked, why others cannot, rows of the table)."""
    with table.open() as file:
        rows = list(csv.DictReader(file))
    found: list[Asked] = []
    reasons: Counter[str] = Counter()
    steps: dict[Question, tuple[Times, Times]] = {}
    longest = _longest(rows)
    for row in rows:
        question, measured_ms = asked(row)
        is_target = "upper mark" in row["note"]
        is_fastest = isinstance(question, str) and is_target and question == NOT_TOLD
        if is_fastest:
            question = fastest(row, longest)
        if isinstance(question, str):
            reasons[f"{row['model']}: {question}"] += 1
            continue
        if question not in steps:
            steps[question] = whole_step(*question)
        graph, calls = steps[question]
        notes = [row["note"], row["parallelism"], *(o["note"] for o in rows if o["source"] == row["source"])]
        is_graph = "mindIE" in notes[0] or any(re.search("full.*graph", note, re.IGNORECASE) for note in notes)
        found.append(Asked(row, question, measured_ms, is_target, is_fastest, is_graph or is_fastest, graph, calls))
    return found, reasons, len(rows)


MOST_RANKS = 16
"""Ranks that share a layer at most: two servers of eight, or one of sixteen dies."""


def fastest(row: dict[str, str], longest: Mapping[tuple[str, ...], int]) -> Question | str:
    """One sequence of a recipe that tells no batch, at the longest context of those that are alike otherwise; why it
    cannot be asked."""
    config, weights = CONFIGS.get(row["model"]), WEIGHTS.get(row["dtype"].lower())
    if config is None:
        return "no config here, or no way of splitting it"
    if weights is None:
        return f"weights of {row['dtype']}"
    experts = config.get("num_experts") or config.get("n_routed_experts")
    ranks = min(MOST_RANKS, 1 << (int(row["n_devices"]).bit_length() - 1))
    options = ("--tensor-parallel", str(ranks), *(("--expert-parallel", str(ranks)) if experts else ()), *weights)
    soc = SOCS.get(row["soc"], row["soc"])
    return row["model"], "decode", 1, longest[_alike(row)], options, soc


def _alike(row: dict[str, str]) -> tuple[str, ...]:
    """What recipes have in common that are asked as one."""
    return row["model"], row["soc"], str(min(MOST_RANKS, int(row["n_devices"]))), row["dtype"]


def _longest(rows: Iterable[dict[str, str]]) -> dict[tuple[str, ...], int]:
    """The longest context of the recipes that are alike."""
    longest: dict[tuple[str, ...], int] = {}
    for row in rows:
        if "upper mark" in row["note"]:
            longest[_alike(row)] = max(longest.get(_alike(row), 0), context_of(row))
    return longest


def whole_step(
    model: str, phase: str, batch: int, context: int, options: tuple[str, ...], soc: str
) -> tuple[Times, Times]:
    """A token's time where the step is one graph, and call by call.

    A few layers are captured, and the last ones are repeated: what `capture --vary` says of all layers, to 1 %.
    """
    config = CONFIGS[model]
    few, more = layers_of(config)
    layers = config["num_hidden_layers"]
    step = captured_step(
        {**config, "num_hidden_layers": more}, phase=phase, batch=batch, context=context, options=options, soc=soc,
        repeated=(few, (layers - more) // (more - few)),
    )  # fmt: skip
    return (
        Times(step.graph_token_ms, step.graph_low_ms, step.graph_high_ms),
        Times(step.token_ms, step.low_ms, step.high_ms),
    )


def captured_step(
    config: dict[str, Any],
    *,
    phase: str,
    batch: int,
    context: int,
    options: tuple[str, ...],
    soc: str,
    repeated: tuple[int, int] = (0, 0),
) -> ServedStep:
    """What `capture hf:CONFIG --vary batch=.. context=..` says of one size on one device; of a plan whose layers from
    the first number of `repeated` on come as many times more as the second says."""
    from opreplay.replay.ascend.simulate.devices import simulate_plan
    from opreplay.replay.capture.capture import capture_target
    from opreplay.replay.capture.from_config import Shape
    from opreplay.replay.capture.serving.form import as_served
    from opreplay.replay.capture.target import target_of
    from opreplay.replay.ops.work.expected import expected_contents
    from opreplay.replay.timeline.served import served

    values = dict(zip(options[::2], options[1::2], strict=True))
    weights = cast("Weights | None", values.pop("--weights", None))
    ranks: dict[str, Any] = {name.removeprefix("--").replace("-", "_"): int(value) for name, value in values.items()}
    fields = {"phase": phase, "batch": batch, "context": context, **ranks}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        plan = as_served(capture_target(target_of(f"hf:{path}", fields)), weights=weights)
    steps = simulate_plan(PlannedStep(plan, expected_contents()), [load_device(soc)])
    shape = Shape(**fields)
    (step,) = served(
        [(with_layers(plan, *repeated), steps)] * shape.pipeline_parallel, batch=batch, context=context,
        decodes=phase == "decode", replicas=shape.expert_parallel if shape.spreads else 1,
    )  # fmt: skip
    return step


LAYER = re.compile(r"\blayers\.(\d+)\b")


def with_layers(plan: ReplayPlan, first: int, times: int) -> ReplayPlan:
    """The plan with the calls of its layers from `first` on so many times more, where they stand."""
    sequence = plan.sequence
    assert sequence is not None
    numbers = [-1, *(int(found[1]) if (found := LAYER.search(name)) else -1 for name in sequence.module_names)]
    places = [place for place, module in enumerate(sequence.modules) if numbers[module + 1] >= first]
    if not times or not places:
        return plan
    start, end = places[0], places[-1] + 1

    def repeated(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return values[:end] + values[start:end] * times + values[end:]

    names = ("calls", "memories", "host_us", "phases", "modules")
    return msgspec.structs.replace(
        plan,
        sequence=msgspec.structs.replace(sequence, **{name: repeated(getattr(sequence, name)) for name in names}),
    )


def exam(table: Path) -> None:
    """Predicted by measured times of the rows that can be asked, and by targets of recipes."""
    found, reasons, rows = compared(table)
    for one in found:
        told = ", ".join(
            f"as {name} {times.token:.1f} ({times.low:.1f} to {times.high:.1f})"
            for name, times in (("a graph", one.graph), ("call by call", one.calls))
        )
        print(
            f"{one.row['model']} {one.row['parallelism']} {one.question[2]} x {one.question[3]} on {one.question[5]}: "
            f"{'a graph' if one.is_graph else 'call by call'} {one.times.token / one.measured_ms:.2f}; "
            f"{'a target of' if one.is_target else 'measured'} {one.measured_ms:.1f} ms, {told}; {one.row['note']}",
            flush=True,
        )
    measured = [one for one in found if not one.is_target]
    if measured:
        error = statistics.median(abs(one.times.token / one.measured_ms - 1) for one in measured)
        inside = statistics.fmean(one.times.low <= one.measured_ms <= one.times.high for one in measured)
        print(f"{len(measured)} of {rows} rows: median error {error:.1%}, {inside:.0%} in the band")
    targets, kept, guessed = kept_targets(found)
    if targets:
        print(
            f"{targets} targets of recipes, which may guess tokens: {kept} are predicted to be met without, "
            f"{guessed} with {GUESSED} tokens a step within the band"
        )
    for reason, count in reasons.most_common():
        print(f"not asked, {count} x {reason}")


def kept_targets(found: Sequence[Asked]) -> tuple[int, int, int]:
    """(targets of recipes; those that are met as predicted; those that the band allows where `GUESSED` tokens come of a
    step)."""
    targets = [one for one in found if one.is_target]
    kept = sum(one.times.token <= one.measured_ms for one in targets)
    guessed = sum(one.times.low <= GUESSED * one.measured_ms for one in targets)
    return len(targets), kept, guessed


GUESSED = 4
"""Tokens that a step gives at most where three are guessed (NEXTN, EAGLE), as recipes of SGLang do."""
Question = tuple[str, str, int, int, tuple[str, ...], str]


def asked(row: dict[str, str]) -> tuple[Question | str, float]:
    """(what is captured of a row, or why it cannot be asked; measured ms a token)."""
    rate = re.search(r"1000/TPOT = (\d+) tok/s", row["note"])
    ms = float(row["ms"]) if row["ms"] else 1000 / float(rate.group(1)) if rate else 0.0
    ranks = re.search(r"\bTP(\d+)", row["parallelism"])
    replicas = re.search(r"\bDP(\d+)", row["parallelism"])
    requests = re.search(r"(\d+) requests|concurrency (\d+)", f"{row['note']}; {row['parallelism']}")
    batch = int(row["batch"] or (requests and (requests[1] or requests[2])) or 0)
    batch, context = running_batch(batch, row, ms), context_of(row)
    if not ms or row["phase"] != "decode":
        return "no time of a decode step", ms
    if not batch or not context or ranks is None:
        return NOT_TOLD, ms
    if row["model"] not in CONFIGS:
        return "no config here, or no way of splitting it", ms
    if row["dtype"].lower() not in WEIGHTS:
        return f"weights of {row['dtype'] or 'no type told'}", ms
    if replicas is not None and replicas.group(1) != ranks.group(1):
        return "ranks that share experts, of which some share their attention", ms
    # Ranks of a replica each attend to requests of their own, and exchange tokens for the experts.
    split = "--tensor-parallel" if replicas is None else "--expert-parallel"
    batch //= int(replicas.group(1)) if replicas else 1
    options = (split, ranks.group(1), *WEIGHTS[row["dtype"].lower()])
    return (row["model"], "decode", batch, context, options, SOCS.get(row["soc"], row["soc"])), ms


NOT_TOLD = "batch, context or ranks not told"


def tokens_of(row: dict[str, str]) -> list[float]:
    """Tokens in and out of a request, as far as they are told."""
    return [float(size) * (1024 if kilo else 1) for size, kilo in re.findall(r"([\d.]+)([kK]?)", row["context"])]


def context_of(row: dict[str, str]) -> int:
    """Tokens in and half of those out: what the cache holds on average; 0 where they are not told."""
    sizes = tokens_of(row)
    return round(sizes[0] + sum(sizes[1:]) / 2) if sizes else 0


def running_batch(requests: int, row: dict[str, str], ms: float) -> int:
    """Return how many of the requests that a server has at once decode on average, by Little's law: the others wait for
    their first token. All, where the wait or the tokens out are not told."""
    waiting, tokens = re.search(r"mean TTFT ([\d.]+) ms", row["note"]), tokens_of(row)
    if waiting is None or len(tokens) < 2 or not requests:
        return requests
    decoding_ms = tokens[1] * ms
    return max(1, round(requests * decoding_ms / (decoding_ms + float(waiting[1]))))


WEIGHTS: dict[str, tuple[str, ...]] = {
    "bf16": (), "w8a8": ("--weights", "w8a8"), "w4a16": ("--weights", "w4a16"),
}  # fmt: skip


if __name__ == "__main__":
    main()
