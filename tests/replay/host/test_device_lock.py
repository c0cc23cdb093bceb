from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opreplay.replay.host.device_lock import hold_locks, lock_folder, physical_device
from opreplay.traces.errors import EnvironmentRefused

linux = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX file locks")


@pytest.mark.parametrize(
    ("device", "environ", "name"),
    [
        ("cpu", {}, "cpu"),
        ("cuda", {}, "cuda-0"),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": "3, 5"}, "cuda-5"),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-a/../b"}, "cuda-GPU-a____b"),
        ("cuda:2", {"CUDA_VISIBLE_DEVICES": "3"}, "cuda-2"),
        ("cuda", {"HIP_VISIBLE_DEVICES": "7"}, "cuda-7"),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4,6"}, "npu-6"),
    ],
)
def test_physical_device_follows_what_renumbers_it(device: str, environ: dict[str, str], name: str) -> None:
    assert physical_device(device, environ) == name


@linux
def test_an_accelerator_has_one_job_and_the_next_gets_it_afterwards(tmp_path: Path) -> None:
    told: list[str] = []
    with hold_locks(["cuda:0"], folder=tmp_path) as beside:
        assert beside == ()
        with hold_locks(["cuda:1"], folder=tmp_path, wait_s=0):
            pass
        with (
            pytest.raises(EnvironmentRefused, match=rf"cuda-0 is in use by another opreplay \(process {os.getpid()}\)"),
            hold_locks(["cuda"], folder=tmp_path, wait_s=0.2, on_wait=told.append),
        ):
            pass
    waiting = f"waiting up to 0.2 s for another opreplay (process {os.getpid()}) on cuda-0"
    assert told == [f"{waiting}; --set shared_device=true does not wait"]
    with hold_locks(["cuda"], folder=tmp_path, wait_s=0):
        pass


@linux
def test_a_cpu_is_waited_for_and_then_shared(tmp_path: Path) -> None:
    with hold_locks(["cpu"], folder=tmp_path), hold_locks(["cpu"], folder=tmp_path, wait_s=0.0) as beside:
        assert beside == ("cpu",)


@linux
def test_a_killed_job_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom opreplay.replay.host.device_lock import hold_locks\n"
        "with hold_locks(['cuda'], folder=Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(EnvironmentRefused), hold_locks(["cuda"], folder=tmp_path, wait_s=0):
            pass
        holder.kill()
    with hold_locks(["cuda"], folder=tmp_path, wait_s=5):
        pass


@linux
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert lock_folder().stat().st_mode & 0o777 == 0o700
    lock_folder().rmdir()
    (tmp_path / f"opreplay-{os.getuid()}").symlink_to("/tmp")
    with pytest.raises(EnvironmentRefused, match="is not a folder of this user"):
        lock_folder()
