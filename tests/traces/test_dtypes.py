"""The tables of element types against the installed torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from opreplay.traces.dtypes import ITEMSIZE_BYTES, SCALAR_TYPE_CODES, torch_dtype_name

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]

DTYPES = {str(found).removeprefix("torch."): found for found in vars(torch).values() if isinstance(found, torch.dtype)}


def test_every_dtype_of_torch_has_a_size_and_a_code() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == ITEMSIZE_BYTES
    assert sorted(SCALAR_TYPE_CODES) == sorted(DTYPES)


def test_codes_and_names_are_those_that_the_profiler_records(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for dtype in DTYPES.values():
            torch.empty(4, dtype=dtype).view(4)
    file = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(file))
    events = json.loads(file.read_bytes())["traceEvents"]
    codes = [int(e["args"]["Concrete Inputs"][1]) for e in events if e.get("name") == "aten::empty"]
    types = [e["args"]["Input type"][0] for e in events if e.get("name") == "aten::view"]
    assert [SCALAR_TYPE_CODES[code] for code in codes] == list(DTYPES)
    assert [torch_dtype_name(spelled) for spelled in types] == list(DTYPES)
