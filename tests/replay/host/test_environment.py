from __future__ import annotations

import getpass
import json
import socket
import sys
from pathlib import Path

import pytest

from opreplay.replay.host import environment


def test_facts_are_json_and_name_nobody() -> None:
    facts = environment.host_facts()
    text = json.dumps(facts)
    assert {"opreplay", "python", "cpu", "cpus", "memory_bytes"} <= set(facts)
    assert str(Path.home()) not in text
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4
    assert f'"{getpass.getuser()}"' not in text
    assert sys.prefix not in text


def test_half_of_the_free_memory_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: 1000)
    assert environment.default_op_bytes() == 500
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: None)
    assert environment.default_op_bytes() == 10**9


def test_control_group_limits_the_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("4000000\n")
    monkeypatch.setattr(environment, "CGROUP", tmp_path)
    assert environment.free_memory_bytes() == 1_000_000
    assert environment.total_memory_bytes() == 5_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert (environment.free_memory_bytes() or 0) > 5_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_own_memory_is_known() -> None:
    used = environment.process_bytes("VmRSS")
    assert used is not None
    assert 1_000_000 < used < 10**12
