"""`opreplay mcp`, asked by the official client: every tool, the size of answers, and what it must not read or run."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.traces.samples import sample_path

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

import mcp
from mcp.client.stdio import StdioServerParameters

from opreplay.cli.assistant.answers import MAX_BYTES
from opreplay.cli.assistant.server import server_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

NAME = "transformer_infer.json.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    inside.mkdir()
    shutil.copy(sample_path("transformer_infer"), inside / NAME)
    return inside


class Answer:
    """What a tool answered."""

    def __init__(self, result: Any) -> None:
        self.failed: bool = result.is_error
        self.text: str = result.content[0].text
        self.value: dict[str, Any] = result.structured_content or {}


def ask(folder: Path, tool: str, allow_run: bool = False, **arguments: Any) -> Answer:
    async def call() -> Any:
        async with mcp.Client(server_of([str(folder)], allow_run=allow_run)) as client:
            return await client.call_tool(tool, arguments)

    return Answer(asyncio.run(call()))


def asked(folder: Path, tool: str, **arguments: Any) -> dict[str, Any]:
    """The value of an answer that is no error and small enough."""
    answer = ask(folder, tool, **arguments)
    assert not answer.failed, answer.text
    assert len(answer.text.encode()) <= arguments.get("max_bytes", MAX_BYTES)
    assert json.loads(answer.text) == answer.value
    return answer.value


def test_files_and_inspect(folder: Path) -> None:
    assert [row["name"] for row in asked(folder, "files")["files"]] == [NAME]
    value = asked(folder, "inspect", trace=NAME, by="category")
    assert value["dialect"] == "kineto"
    assert value["verdict"]
    assert sum(row["share"] for row in value["rows"]) == pytest.approx(1.0, abs=0.01)


def test_ids_of_top_ops_lead_to_details_and_sweeps(folder: Path) -> None:
    top = asked(folder, "top_ops", trace=NAME)
    assert top["ops"][0]["share"] >= top["ops"][-1]["share"]
    detail = asked(folder, "op_detail", trace=NAME, op=top["ops"][0]["id"], soc=["910b3"], max_bytes=20_000)
    assert detail["op"]["name"] == top["ops"][0]["name"]
    (predicted,) = detail["predictions"]
    assert predicted["low_us"] < predicted["time_us"] < predicted["high_us"]
    assert detail["arguments"]
    (row,) = asked(folder, "sweep", calls=[detail["call"]])["cases"]
    assert row["simulated_us"]["910b3"] == pytest.approx(predicted["time_us"], rel=0.01)
    swept = asked(folder, "sweep", calls=["aten::mm(bf16[64,n], bf16[n,32])"], vary=["n=64,128"], soc=["910b3"])
    assert [case["sizes"] for case in swept["cases"]] == [{"n": 64}, {"n": 128}]


def test_why_and_what_if(folder: Path) -> None:
    why = asked(folder, "why", trace=NAME)
    assert why["bound"] == "host alone"
    top = asked(folder, "top_ops", trace=NAME)["ops"][0]
    answer = asked(folder, "what_if", trace=NAME, changes=[f"{top['name']}=0.5x", "nosuch::op=0"])
    half, nothing = answer["changes"]
    assert 0 < half["gain_us"] < answer["step_us"]
    assert nothing["matched"] == 0


def test_predict_and_compare(folder: Path) -> None:
    (soc,) = asked(folder, "predict", trace=NAME, soc=["910b3"], max_bytes=20_000)["socs"]
    assert soc["low_us"] < soc["total_us"] < soc["high_us"]
    same = asked(folder, "compare", before=NAME, after=NAME)
    assert same["ratio"] == pytest.approx(1.0)
    assert not {row["verdict"] for row in same["ops"]} & {"slower", "faster", "lost", "gained"}


def test_check_runs_only_when_allowed(folder: Path) -> None:
    arguments = {"op": "aten::silu", "shapes": ["16x32"], "points": ["schema", "correctness"]}
    assert "--allow-run" in ask(folder, "check", **arguments).text
    value = asked(folder, "check", allow_run=True, **arguments)
    assert value["failed"] == []
    assert {point["point"]: point["verdict"] for point in value["points"]}["schema"] == "pass"


def test_a_small_answer_says_what_was_cut_and_a_larger_one_has_it(folder: Path) -> None:
    small = asked(folder, "top_ops", trace=NAME, max_bytes=2500)
    whole = asked(folder, "top_ops", trace=NAME, max_bytes=200_000)
    assert f"ops: {len(small['ops'])} of {len(whole['ops'])}" in small["cut"]
    assert "max_bytes=" in small["cut"]
    assert whole["cut"] == ""
    assert small["ops"] == whole["ops"][: len(small["ops"])]


def test_every_tool_is_described_with_its_parameters(folder: Path) -> None:
    async def listed() -> Any:
        async with mcp.Client(server_of([str(folder)])) as client:
            return (await client.list_tools()).tools

    tools = asyncio.run(listed())
    names = "files inspect top_ops why op_detail what_if predict compare sweep check"
    assert [tool.name for tool in tools] == names.split()
    assert all(tool.description and tool.output_schema for tool in tools)
    silent = [
        (tool.name, name)
        for tool in tools
        for name, schema in tool.input_schema["properties"].items()
        if name != "by" and "description" not in schema
    ]
    assert silent == []


def test_text_of_a_trace_is_escaped_and_shortened(folder: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 5, "args": {"Input Dims": [[2]]}}
    names = ["aten::relu\u001b[31m\u202e", "x" * 5000]
    events = [{**event, "name": name, "ts": 10 * at} for at, name in enumerate(names)]
    (folder / "odd.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    answer = ask(folder, "inspect", trace="odd.json")
    assert not answer.failed, answer.text
    assert len(answer.text.encode()) <= MAX_BYTES
    shown = [row["name"] for row in answer.value["rows"]]
    assert all(name.isprintable() and len(name) < 1000 for name in shown)
    assert "shortened" in answer.value["cut"]


# ---- what it must not read


@pytest.fixture
def secret(folder: Path) -> Path:
    """A good trace outside of the folder."""
    outside = folder.parent / "outside"
    outside.mkdir()
    return Path(shutil.copy(sample_path("cnn_train"), outside / "secret.json.gz"))


OPENERS = [
    ("inspect", "trace"),
    ("top_ops", "trace"),
    ("why", "trace"),
    ("op_detail", "trace"),
    ("what_if", "trace"),
    ("predict", "trace"),
    ("compare", "before"),
    ("compare", "after"),
]


@pytest.mark.parametrize(("tool", "parameter"), OPENERS)
def test_no_tool_opens_a_trace_elsewhere(tool: str, parameter: str, folder: Path, secret: Path) -> None:
    rest: dict[str, Any] = {"op_detail": {"op": "#1"}, "what_if": {"changes": ["aten::mm=0"]}}.get(tool, {})
    if tool == "compare":
        rest = {"before": NAME, "after": NAME}
    (folder / "link.json.gz").symlink_to(secret)
    (folder / "linked").symlink_to(secret.parent)
    names = [str(secret), "../outside/secret.json.gz", "link.json.gz", "linked/secret.json.gz"]
    names += [f"{folder}/../outside/*.gz", "*.json.gz", "-", "", ".", "/dev/stdin", "/proc/self/environ", "a\0b"]
    for name in names:
        answer = ask(folder, tool, **{**rest, parameter: name})
        assert answer.failed, name
        assert "does not exist" in answer.text, answer.text
    # Whether there is such a file outside is not told.
    there = ask(folder, tool, **{**rest, parameter: str(secret)}).text
    missing = ask(folder, tool, **{**rest, parameter: str(secret.with_name("nosuch.json.gz"))}).text
    assert there.replace("secret", "nosuch") == missing


def test_files_lists_no_links_to_elsewhere(folder: Path, secret: Path) -> None:
    (folder / "link.json.gz").symlink_to(secret)
    (folder / "linked").symlink_to(secret.parent)
    (folder / "also.json.gz").symlink_to(folder / NAME)
    assert [row["name"] for row in asked(folder, "files")["files"]] == ["also.json.gz", NAME]


def test_device_files_lie_in_the_folders(folder: Path) -> None:
    shown = CliRunner().invoke(opreplay, ["list", "devices", "910b3", "--format", "toml"])
    text = shown.output.replace('name = "910b3"', 'name = "mine"', 1)
    (folder / "mine.toml").write_text(text)
    outside = folder.parent / "mine.toml"
    outside.write_text(text)
    (folder / "link.toml").symlink_to(outside)
    calls = {"calls": ["aten::mm(bf16[64,64], bf16[64,32])"]}
    assert asked(folder, "sweep", soc=["mine.toml"], **calls)["socs"]
    for name in (str(outside), "../mine.toml", "link.toml", "/etc/hostname", "./../mine.toml"):
        for tool, rest in (("sweep", calls), ("predict", {"trace": NAME}), ("op_detail", {"trace": NAME, "op": "#1"})):
            answer = ask(folder, tool, soc=[name], **rest)
            assert answer.failed
            assert "does not exist" in answer.text


def test_a_kernel_table_beside_a_trace_that_is_a_link_to_elsewhere_is_not_read(
    folder: Path, shared_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opreplay.traces.joins import kernel_details

    opened: list[str] = []
    monkeypatch.setattr(kernel_details, "join_kernel_details", lambda trace, path, **_: opened.append(path) or trace)
    table = folder.parent / "kernel_details.csv"
    table.write_text("Name,Type\n")
    trace = Path(shutil.copy(shared_traces / "npu_alexnet_trace_view.json.gz", folder / "npu.json.gz"))
    (folder / "kernel_details.csv").symlink_to(table)
    (folder / "op_summary_1.csv").symlink_to(table)
    assert not ask(folder, "top_ops", trace=trace.name).failed
    assert opened == []
    (folder / "kernel_details.csv").unlink()
    (folder / "kernel_details.csv").write_text(table.read_text())
    os.utime(trace)
    assert not ask(folder, "top_ops", trace=trace.name).failed
    assert opened == [str(folder.resolve() / "kernel_details.csv")]


def test_a_capture_beside_a_trace_that_is_a_link_to_elsewhere_is_not_read(folder: Path, secret: Path) -> None:
    from opreplay.traces import read_trace
    from opreplay.traces.errors import TraceError
    from opreplay.traces.folders import only_in
    from opreplay.traces.joins.graph_capture import capture_candidates

    trace = read_trace(str(folder / NAME))
    (folder / "capture_outside.json.gz").symlink_to(secret)
    inside = Path(shutil.copy(secret, folder / "capture_inside.json.gz"))
    with only_in([str(folder)]):
        assert capture_candidates(trace) == [inside]
        with pytest.raises(TraceError):
            read_trace(str(folder / "capture_outside.json.gz"))
    assert len(capture_candidates(trace)) == 2


def test_a_plan_names_no_other_file(folder: Path, secret: Path) -> None:
    plan = folder / "plan.json"
    done = CliRunner().invoke(opreplay, ["plan", str(folder / NAME), "--output", str(plan)])
    assert done.exit_code == 0, done.output
    value = json.loads(plan.read_text())
    plan.write_text(json.dumps({**value, "source": str(secret)}))
    before = os.stat(secret).st_atime_ns
    assert asked(folder, "top_ops", trace="plan.json")["ops"]
    assert os.stat(secret).st_atime_ns == before
    assert ask(folder, "why", trace="plan.json").failed


# ---- what it must not run


def test_functions_and_plugins_of_check_lie_in_the_folders(folder: Path) -> None:
    code = "import torch, pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
    code += "def silu(x):\n    return x * torch.sigmoid(x)\n"
    (folder / "good.py").write_text(code)
    outside = folder.parent / "bad.py"
    outside.write_text(code)
    (folder / "link.py").symlink_to(outside)
    common: dict[str, Any] = {"shapes": ["16x32"], "points": ["correctness"], "allow_run": True}
    for name in (str(outside), "../bad.py", "link.py"):
        answers = [
            ask(folder, "check", op=f"{name}:silu", **common),
            ask(folder, "check", op="aten::silu", against=f"{name}:silu", **common),
            ask(folder, "check", op="aten::silu", plugins=[name], **common),
        ]
        assert all(answer.failed and "does not exist" in answer.text for answer in answers), name
    assert ask(folder, "check", op="aten::silu", plugins=["os"], **common).failed
    assert not outside.with_suffix(".ran").exists()
    value = asked(folder, "check", op="aten::silu", against="good.py:silu", **common)
    assert value["failed"] == []
    assert (folder / "good.ran").exists()


def test_installed_plugins_are_not_loaded_unless_it_may_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opreplay.initializers import user_code

    class Entry:
        name = value = "evil"

        @staticmethod
        def load() -> None:
            raise AssertionError("loaded")

    monkeypatch.setattr(user_code, "entry_points", lambda group: [Entry])
    for tool, rest in (("top_ops", {}), ("predict", {}), ("op_detail", {"op": "#1", "soc": ["910b3"]})):
        asked(folder, tool, trace=NAME, **rest)
    asked(folder, "sweep", calls=["aten::mm(bf16[64,64], bf16[64,32])"])


def test_a_file_of_options_that_was_found_cannot_allow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "opreplay.toml").write_text("[mcp]\nallow-run = true\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(opreplay, ["mcp", "."])
    assert done.exit_code == 2
    assert "trust" in done.output


def test_a_folder_that_is_none_is_refused() -> None:
    done = CliRunner().invoke(opreplay, ["mcp", "/nosuch"])
    assert done.exit_code == 2


@pytest.mark.parametrize("flags", [[], ["--allow-run"]])
def test_the_command_serves_on_stdio(flags: list[str], folder: Path) -> None:
    started = StdioServerParameters(
        command=sys.executable,
        args=["-c", "from opreplay.cli.main import main; main()", "mcp", str(folder), *flags],
        cwd=str(folder),
        env={**os.environ, "OPREPLAY_CONFIG": "none"},
    )

    async def call() -> Any:
        async with mcp.Client(started) as client:
            return await client.call_tool("inspect", {"trace": NAME})

    answer = Answer(asyncio.run(asyncio.wait_for(call(), 120)))
    assert not answer.failed, answer.text
    assert answer.value["dialect"] == "kineto"
    assert gzip.decompress((folder / NAME).read_bytes())  # still what it was


@pytest.mark.parametrize("name", ["huge.toml", "huge.json", "huge.jsonl", "fifo.toml", "fifo.json"])
def test_files_without_end_cost_nothing(name: str, folder: Path) -> None:
    """Sparse files of 20 GB and pipes, as devices, traces, plans and results: an error that says why, at once."""
    if name.startswith("fifo"):
        os.mkfifo(folder / name)
    else:
        with (folder / name).open("wb") as file:
            file.write(b'{"record": "header"}' if name.endswith("l") and "json" in name else b"")
            file.truncate(20 << 30)
    row = asked(folder, "top_ops", trace=NAME)["ops"][0]
    calls: list[tuple[str, dict[str, Any]]] = [("compare", {"before": NAME, "after": name})]
    if name.endswith(".toml"):
        calls = [
            ("op_detail", {"trace": NAME, "op": row["id"], "soc": [name]}),
            ("predict", {"trace": NAME, "soc": [name]}),
        ]
    calls.append(("inspect", {"trace": name}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for tool, arguments in calls:
        answer = ask(folder, tool, **arguments)
        assert answer.failed
        assert "Error executing" not in answer.text or len(answer.text) > 60, answer.text
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
