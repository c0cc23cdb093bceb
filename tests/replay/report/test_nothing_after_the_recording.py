"""Pictures of a step show no recorded work after the last event of the recording, whichever format they are in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.report.page import of_timeline
from opreplay.replay.report.step.tracks import processes
from opreplay.replay.timeline.timeline import timeline
from opreplay.traces import read_trace
from opreplay.traces.samples import sample_path

pytestmark = pytest.mark.slow

SAMPLES = ("cnn_train", "moe_block", "ddp_step_rank0", "ddp_step_rank1", "transformer_infer")
PUBLIC = ("h100_bert_small", "h100_timesformer", "mi300_resnet_ddp_act_checkpoint", "nvidia_sampled_rank0")
CLOCK_US = 1.0


def recording_us(path: Path) -> tuple[float, float]:
    """First start and last end of the complete events of a file, read apart from opreplay; microseconds."""
    text = gzip.decompress(path.read_bytes()).decode(errors="replace")
    events = [e for e in json.loads(text, strict=False)["traceEvents"] if e.get("ph") == "X" and "ts" in e]
    return min(float(e["ts"]) for e in events), max(float(e["ts"]) + float(e.get("dur", 0)) for e in events)


def check(path: Path, tmp_path: Path) -> None:
    first, last = recording_us(path)
    trace = read_trace(str(path), activity=True)
    study = timeline(trace)
    recorded = processes(study)[0]
    until = last - study.graph.step.start_ns / 1e3 + CLOCK_US
    assert 0 < until <= last - first + 2 * CLOCK_US
    assert float(np.max(recorded.end_us)) <= until
    stretches = [one for lane in of_timeline.lanes(recorded) for one in lane.stretches]
    assert stretches
    assert max(one.end_us for one in stretches) <= until
    target = tmp_path / "t.json"
    made = CliRunner().invoke(opreplay, ["timeline", str(path), "--soc", "910b3", "--timeline", str(target)])
    assert made.exit_code == 0, made.output
    tasks = [e for e in json.loads(target.read_text())["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert tasks
    assert max(e["ts"] + e["dur"] for e in tasks) <= until


@pytest.mark.parametrize("name", SAMPLES)
def test_no_sample_has_work_after_its_end(name: str, tmp_path: Path) -> None:
    check(Path(str(sample_path(name))), tmp_path)


@pytest.mark.parametrize("name", PUBLIC)
def test_no_public_trace_has_work_after_its_end(name: str, tmp_path: Path, shared_traces: Path) -> None:
    check(shared_traces / f"{name}.json.gz", tmp_path)
