"""`run --check work` from the outside: what the batch of an annotated iteration makes attention and MoE ops do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.results.reading import read_results
from opreplay.replay.results.records import OpResult
from tests.forked_children import opreplay_here

CACHE = [512, 2, 2, 16, 8]

pytestmark = pytest.mark.slow


def event(name: str, ts: int, dims: list[Any], types: list[str], values: list[str]) -> dict[str, Any]:
    args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values, "External id": ts}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 5, "args": args}


def trace(path: Path) -> Path:
    """Decoding of 4 sequences that see 900 tokens together, and a layer of 8 experts."""
    decode = event(
        "_C::paged_attention_v1",
        10,
        [
            [4, 4, 16],
            [4, 4, 16],
            CACHE,
            [512, 2, 16, 16],
            [],
            [],
            [4, 32],
            [4],
            [],
            [],
            [],
            [],
            [1],
            [1],
            [],
            [],
            [],
            [],
            [],
        ],
        [
            "c10::BFloat16",
            "c10::BFloat16",
            "c10::BFloat16",
            "c10::BFloat16",
            "Scalar",
            "Scalar",
            "int",
            "int",
            "Scalar",
            "Scalar",
            "",
            "",
            "float",
            "float",
            "Scalar",
            "Scalar",
            "Scalar",
            "Scalar",
            "Scalar",
        ],
        ["", "", "", "", "2", "0.25", "", "", "16", "512", "", "", "", "", "0", "0", "0", "64", "0"],
    )
    lookup = event(
        "aten::embedding",
        30,
        [[1000, 16], [4], [], [], []],
        ["c10::BFloat16", "long int", "Scalar", "Scalar", "Scalar"],
        ["", "", "-1", "False", "False"],
    )
    note = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk900sqsq4sqsk900)",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 100,
    }
    path.write_text(json.dumps({"traceEvents": [note, decode, lookup]}))
    return path


def run(tmp_path: Path, *flags: str) -> tuple[str, dict[str, OpResult]]:
    out = tmp_path / "r.jsonl"
    done = opreplay_here("run", trace(tmp_path / "t.json"), "--set", "op_time=5ms", "--output", out, "--force", *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout, {result.name: result for result in read_results(out)[1]}


def test_the_batch_is_attended_to_in_full(tmp_path: Path) -> None:
    text, results = run(tmp_path, "--check", "work")
    found = results["_C::paged_attention_v1"].work
    assert found is not None
    assert results["_C::paged_attention_v1"].status == "replayed"
    amounts = {a.what: (a.done, a.most) for a in found.amounts}
    assert amounts["context tokens"] == (900, 4 * 32 * 16)
    assert amounts["query tokens"] == (4, 4)
    assert "900 of 2,048 context tokens" in " ".join(text.split())
    assert results["aten::embedding"].work is not None
    assert "no work done by" not in text


def test_supplied_lengths_are_those_counted_and_simulated(tmp_path: Path) -> None:
    name = "_C::paged_attention_v1"
    _, told = run(tmp_path)
    header = {f"{name}.seq_lens": {"dtype": "I32", "shape": [4], "data_offsets": [0, 16]}}
    text = json.dumps(header).encode()
    values = tmp_path / "v.safetensors"
    lengths = b"".join(n.to_bytes(4, "little") for n in (512, 512, 512, 500))
    values.write_bytes(len(text).to_bytes(8, "little") + text + lengths)
    _, given = run(tmp_path, "--check", "work", "--set", f"values={values}")
    found = given[name].work
    assert found is not None
    assert found.amounts[0].done == 2036
    assert given[name].simulated["910b3"].time_us > told[name].simulated["910b3"].time_us


def test_without_the_flag_nothing_is_counted(tmp_path: Path) -> None:
    _, results = run(tmp_path)
    assert all(result.work is None for result in results.values())


def test_an_op_without_work_is_flagged(tmp_path: Path) -> None:
    module = tmp_path / "lazy.py"
    module.write_text(
        "from opreplay.initializers.base import CustomInit, InitReport\n"
        "from opreplay.initializers.extensions import register_initializer\n"
        "@register_initializer\n"
        "class Lazy(CustomInit):\n"
        "    name = 'lazy'\n"
        "    op_patterns = ('_C::paged_attention_v1',)\n"
        "    priority = 9\n"
        "    def initialize(self, context):\n"
        "        context.need('seq_lens').zero_()\n"
        "        return InitReport(summary='everything is attended to')\n"
    )
    text, results = run(tmp_path, "--check", "work", "--plugin", str(module))
    found = results["_C::paged_attention_v1"].work
    assert found is not None
    assert found.idle
    assert "warning: no work done by 1 op: _C::paged_attention_v1" in " ".join(text.split())
