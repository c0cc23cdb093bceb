# pyright: basic
"""One step of one tool on one trace, in the interpreter that has the tool; `benchmarks/peers.py` starts it.

    PYTHON benchmarks/peer_steps.py TOOL STEP TRACE

Prints one line of JSON: how many ops or calls there were (`of`) and how many the tool got done (`done`). STEP is list,
build or replay. Each tool is imported only where it is used. Replays take the heaviest `REPLAYED` ops and measure each
for `OP_TIME_S` after one call.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPLAYED = 20
OP_TIME_S = 0.02


def timed(call) -> None:
    """Call once, then again and again for the time of an op."""
    call()
    end = time.perf_counter() + OP_TIME_S
    while time.perf_counter() < end:
        call()


def done_of(calls, attempt) -> dict[str, int]:
    """Return how many calls `attempt` takes without an error."""
    done = 0
    for call in calls:
        try:
            attempt(call)
            done += 1
        except Exception:  # each tool has errors of its own
            continue
    return {"of": len(calls), "done": done}


def opreplay(step: str, path: str) -> dict[str, int]:
    """`frame` lists the recorded ops, `prepare` builds a call with its tensors, `opreplay run` replays."""
    if step == "replay":
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "r.jsonl"
            settings = [f"op_time={OP_TIME_S}s", "threads=1", "shared_device=true"]
            options = [text for setting in settings for text in ("--set", setting)]
            script = Path(sys.executable).parent / "opreplay"
            command = [script, "run", path, "--top", str(REPLAYED), "-o", output, *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            import opreplay

            results = opreplay.read_results(output).ops
            return {"of": len(results), "done": sum(result.status == "replayed" for result in results)}
    import opreplay

    trace = opreplay.open(path)
    if step == "list":
        count = len(trace.frame())
        return {"of": count, "done": count}
    return done_of(list(trace), lambda op: op.prepare())


def hta(step: str, path: str) -> dict[str, int]:
    """`TraceAnalysis` with the arguments of ops parsed; unique by name, shapes, types and strides."""
    from hta.configs.parser_config import ParserConfig  # pyright: ignore[reportMissingImports]
    from hta.trace_analysis import TraceAnalysis  # pyright: ignore[reportMissingImports]

    ParserConfig.set_default_cfg(ParserConfig([*ParserConfig.ARGS_DEFAULT, *ParserConfig.ARGS_INPUT_SHAPE]))
    events = TraceAnalysis(trace_files={0: path}).t.get_trace(0)
    arguments = ["name", *(column for column in ("input_dims", "input_type", "input_strides") if column in events)]
    ops = events[events["stream"] < 0].dropna(subset=arguments)
    unique = len(ops[arguments].astype(str).drop_duplicates())
    return {"of": unique, "done": unique}


SIZES = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "int": "int32"}
SIZES |= {"long int": "int64", "long": "int64", "bool": "bool", "unsigned char": "uint8", "signed char": "int8"}


def script(step: str, path: str) -> dict[str, int]:
    """What one writes by hand: orjson and pandas group the ops that launch kernels, `torch.ops` calls them by name."""
    import gzip

    import orjson
    import pandas

    data = gzip.decompress(Path(path).read_bytes()) if path.endswith(".gz") else Path(path).read_bytes()
    events = pandas.DataFrame(orjson.loads(data)["traceEvents"])
    kernels = events[events["cat"] == "kernel"]
    id_of = {"id": lambda rows: [args.get("External id") for args in rows["args"]]}
    device_us: Any = kernels.assign(**id_of).groupby("id")["dur"].sum()
    ops = events[(events["cat"] == "cpu_op") & (events["ph"] == "X")].assign(**id_of)
    ops = ops.assign(device_us=ops["id"].map(device_us)).dropna(subset=["device_us"])
    fields = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    ops = ops.assign(key=[orjson.dumps([args.get(field) for field in fields]).decode() for args in ops["args"]])
    unique = ops.groupby(["name", "key"]).agg(device_us=("device_us", "sum"), args=("args", "first")).reset_index()
    if step == "list":
        return {"of": len(unique), "done": len(unique)}
    calls = unique.sort_values("device_us", ascending=False)[["name", "args"]].to_records(index=False).tolist()
    if step == "build":
        return done_of(calls, lambda call: _by_hand(*call))
    return done_of(calls[:REPLAYED], lambda call: timed(_by_hand(*call)))


def _by_hand(name: str, args: dict):
    """Return a call of `torch.ops` with tensors of ones of the recorded sizes and with the recorded values."""
    import ast
    from functools import partial

    import torch

    values = []
    columns = (args["Input Dims"], args["Input type"], args["Input Strides"], args["Concrete Inputs"])
    for dims, kind, strides, text in zip(*columns, strict=True):
        if kind in SIZES and (dims or strides or not text):
            tensor = torch.empty_strided(dims, strides, dtype=getattr(torch, SIZES[kind])).fill_(1)
            values.append(tensor)
        elif kind == "TensorList":
            values.append([torch.ones(shape) for shape in dims])
        else:
            values.append(ast.literal_eval(text) if text else None)
    namespace, _, op = name.partition("::")
    return partial(getattr(getattr(torch.ops, namespace), op), *values)


TOOLS = {tool.__name__: tool for tool in (opreplay, hta, script)}

if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose files are no packages
    print(json.dumps(TOOLS[sys.argv[1]](*sys.argv[2:])))
