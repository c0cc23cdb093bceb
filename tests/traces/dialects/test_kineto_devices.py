"""What a recorded device is: by its name, else by its properties where these leave but one."""

from __future__ import annotations

import json

import pytest

from opreplay.traces.dialects.kineto import run_facts
from opreplay.traces.times.peaks import peak_of

CDNA3 = {"name": "", "computeMajor": 9, "computeMinor": 4, "numSms": 304, "warpSize": 64}


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        (CDNA3 | {"totalGlobalMem": 206141652992}, "MI300X"),
        (CDNA3 | {"totalGlobalMem": 274743689216}, "MI325X"),
        (CDNA3 | {"totalGlobalMem": 206141652992, "numSms": 80}, None),
        (CDNA3 | {"totalGlobalMem": 206141652992, "name": "AMD Instinct MI210"}, "MI210"),
        (CDNA3 | {"totalGlobalMem": "192 GiB"}, None),
        (CDNA3, None),
    ],
    ids=["192 GiB", "256 GiB", "other compute units", "a name goes first", "text", "no memory"],
)
def test_a_device_without_a_name(device: dict[str, object], peak: str | None) -> None:
    keys = {"deviceProperties": json.dumps([device, device]).encode()}
    facts = run_facts(keys, set(), has_kernels=True, ascend=False)
    known = peak_of(facts.device_names)
    assert (known and known.device) == peak
    assert facts.vendor == "amd"
