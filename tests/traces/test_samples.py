"""The bundled profiles: present, small, recorded as described, and silent about the machine they come from."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record_samples import scrub
from opreplay.traces import samples
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import SAMPLES, sample_path

EXPECTED_OPS = {
    "cnn_train": {"aten::conv2d", "aten::native_batch_norm", "aten::convolution_backward", "aten::cross_entropy_loss"},
    "transformer_infer": {"aten::mm", "aten::scaled_dot_product_attention", "aten::embedding", "aten::argmax"},
    "moe_block": {"aten::topk", "aten::sort", "aten::bincount", "aten::index_add_", "aten::mm"},
    "ddp_step_rank0": {"c10d::allreduce_", "aten::native_layer_norm", "aten::addmm", "aten::lerp_"},
    "ddp_step_rank1": {"c10d::allreduce_", "aten::native_layer_norm", "aten::addmm", "aten::lerp_"},
}


def load(name: str) -> dict[str, Any]:
    return json.loads(gzip.decompress(sample_path(name).read_bytes()))


def test_every_bundled_file_is_named_and_every_name_has_a_file() -> None:
    assert {path.name for path in Path(samples.__file__).parent.glob("*.gz")} == {f"{name}.json.gz" for name in SAMPLES}
    assert EXPECTED_OPS.keys() == SAMPLES.keys()


def test_an_unknown_sample_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        sample_path("../secret")
    assert all(name in caught.value.hint for name in SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_is_small_and_holds_the_ops_it_is_there_for(name: str) -> None:
    assert sample_path(name).stat().st_size < 300_000
    ops = [event for event in load(name)["traceEvents"] if event.get("cat") == "cpu_op"]
    assert EXPECTED_OPS[name] <= {event["name"] for event in ops}
    recorded = {"Input Dims", "Input type", "Input Strides", "Concrete Inputs"}
    aten = [event["args"].keys() for event in ops if event["name"].startswith("aten::")]
    assert sum(recorded <= keys for keys in aten) > 0.9 * len(aten)


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_says_nothing_about_the_machine(name: str) -> None:
    text = gzip.decompress(sample_path(name).read_bytes()).decode()
    assert not re.search(r"/(root|work|tmp|home|usr|opt)\b|[A-Za-z]:\\\\", text)
    assert re.findall(r'"host_?name"\s*:\s*"([^"]*)"', text) in ([], ["host"])
    assert "Call stack" not in text


def test_annotations_tell_prefill_from_decode() -> None:
    names = [e["name"] for e in load("transformer_infer")["traceEvents"] if e.get("cat") == "user_annotation"]
    assert names.count("execute_context_4(512)_generation_0(0)") == 1
    assert names.count("execute_context_0(0)_generation_4(4)") == 3


def test_ranks_of_one_run_agree_on_the_world() -> None:
    infos = [load(f"ddp_step_rank{rank}")["distributedInfo"] for rank in (0, 1)]
    assert [info["rank"] for info in infos] == [0, 1]
    assert {(info["backend"], info["world_size"]) for info in infos} == {("gloo", 2)}


def test_scrub_takes_out_host_and_path_and_nothing_else() -> None:
    text = '{"host_name": "vm-7.example", "traceEvents": [], "traceName": "/home/jo/trace.json" }'
    assert scrub(text, name="x.json") == '{"host_name": "host", "traceEvents": [], "traceName": "x.json" }'
