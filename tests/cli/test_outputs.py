"""The files of --output."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.outputs import check_writable, write_file
from opreplay.cli.run_outputs import Outputs
from opreplay.replay.results.reading import read_results
from opreplay.replay.results.records import Header, OpResult, Summary
from opreplay.traces.errors import EnvironmentRefused, UsageError

HEADER = Header(opreplay_version="0", started_at="2026-01-01T00:00:00Z", trace={}, environment={}, options={})
OP = OpResult(id="0" * 12, name="aten::mm", count=2, status="replayed", measured_us=3.0, recorded_host_us=1.0)
SUMMARY = Summary(
    ops=1,
    replayed=1,
    skipped=0,
    failed=0,
    reasons={},
    covered_share=1.0,
    recorded_us=2.0,
    measured_us=6.0,
    simulated_us={},
    wall_s=0.1,
)


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave 4 KiB free."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=4096))


def test_each_suffix_has_its_format(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("r.jsonl", "r.csv", "r.md", "R.NDJSON")]
    with Outputs(names, force=False) as outputs:
        for record in (HEADER, OP, SUMMARY):
            outputs.write(record)
    assert read_results(names[0]) == (HEADER, [OP], SUMMARY) == read_results(names[3])
    assert Path(names[1]).read_text().splitlines()[1].startswith("000000000000,aten::mm,2,replayed")
    assert "`aten::mm`" in Path(names[2]).read_text()


def test_a_full_disk_is_told_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(monkeypatch)
    with (
        pytest.raises(EnvironmentRefused, match="4 KiB are free"),
        Outputs([str(tmp_path / "r.csv")], force=False) as o,
    ):
        o.write(HEADER)
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_is_to_be_replaced_stays_until_the_new_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a run that is killed, must not cost the report of an earlier run."""
    page = tmp_path / "r.csv"
    page.write_text("earlier")
    with Outputs([str(page)], force=True) as outputs:
        outputs.write(HEADER)
        assert page.read_text() == "earlier"
        outputs.write(OP)
        outputs.write(SUMMARY)
    written = page.read_text()
    assert "aten::mm" in written
    fill_disk(monkeypatch)
    with pytest.raises(EnvironmentRefused, match="4 KiB are free"), Outputs([str(page)], force=True) as outputs:
        outputs.write(HEADER)
    assert page.read_text() == written


def test_a_report_that_cannot_be_replaced_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """The measurements were made, and then lost."""
    page = tmp_path / "r.csv"
    page.symlink_to(tmp_path / "missing" / "r.csv")
    with pytest.raises(UsageError, match="cannot write"), Outputs([str(page)], force=True) as outputs:
        outputs.write(HEADER)


def test_one_file_with_two_names_is_refused_and_kept(tmp_path: Path) -> None:
    """The first of the two emptied the earlier results, and the second found them locked."""
    page = tmp_path / "r.jsonl"
    page.write_text("earlier\n")
    (tmp_path / "link.jsonl").symlink_to(page)
    for other in (tmp_path / "." / ".." / tmp_path.name / "r.jsonl", tmp_path / "link.jsonl"):
        with pytest.raises(UsageError, match="given twice"):
            Outputs([str(page), str(other)], force=True)
    assert page.read_text() == "earlier\n"


def test_an_op_that_no_file_has_room_for_is_in_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was counted in a part of the covered share and not in the sum."""
    with Outputs([str(tmp_path / "r.jsonl")], force=False) as outputs:
        outputs.write(HEADER)
        monkeypatch.setattr("os.fdatasync", no_room)
        with pytest.raises(EnvironmentRefused, match="No space") as caught:
            outputs.write(OP)
        monkeypatch.undo()
        assert "--resume" in caught.value.hint
        assert outputs.memory.results == []
        outputs.write(SUMMARY)
    assert read_results(tmp_path / "r.jsonl") == (HEADER, [], SUMMARY)


def no_room(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_interrupt_before_the_first_record_says_that_there_is_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), Outputs([str(tmp_path / "r.jsonl")], force=False):
        raise KeyboardInterrupt
    assert "nothing was measured yet, and no file was written" in capsys.readouterr().err


def write_all(outputs: Outputs) -> None:
    for record in (HEADER, OP, SUMMARY):
        outputs.write(record)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
@pytest.mark.parametrize(("suffix", "hint"), [(".jsonl", "Nothing was written"), (".csv", "opreplay show")])
def test_what_cannot_be_written_says_what_is_left(tmp_path: Path, suffix: str, hint: str) -> None:
    full, lines = tmp_path / f"full{suffix}", tmp_path / "r.ndjson"
    full.symlink_to("/dev/full")
    with (
        pytest.raises(EnvironmentRefused, match="No space left") as caught,
        Outputs([str(full), str(lines)], force=True) as o,
    ):
        write_all(o)
    assert hint in caught.value.hint


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_file_that_does_not_take_it_all_is_no_fault_of_usage(tmp_path: Path, size: int) -> None:
    """What is buffered fails as the file is closed, more of it as it is written."""
    full = tmp_path / "plan.json"
    full.symlink_to("/dev/full")
    with pytest.raises(EnvironmentRefused, match="No space left") as caught:
        write_file(full, "x" * size, force=True)
    assert caught.value.exit_code == ExitCode.ENVIRONMENT
    with pytest.raises(UsageError):
        write_file(tmp_path, "x", force=True)


def test_json_lines_are_there_before_the_run_ends(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Outputs([str(path)], force=False) as outputs:
        outputs.write(HEADER)
        outputs.write(OP)
        assert read_results(path) == (HEADER, [OP], None)


def test_a_run_that_cannot_start_leaves_no_file(tmp_path: Path) -> None:
    with Outputs([str(tmp_path / "r.jsonl"), str(tmp_path / "r.csv")], force=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_files_are_not_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists") as caught:
        Outputs([str(path)], force=False)
    assert "--force" in caught.value.hint
    with Outputs([str(path)], force=True) as outputs:
        for record in (HEADER, OP, SUMMARY):
            outputs.write(record)
    assert "aten::mm" in path.read_text()


@pytest.mark.parametrize(
    "names", [["r.txt"], ["r"], ["r.json"], ["a.csv", "a.csv"], ["-", "-"], ["nowhere/at/all.csv"]]
)
def test_names_without_sense_are_refused(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        Outputs(names, force=False)


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        check_writable(tmp_path / "d.csv", force=True)
    with pytest.raises(UsageError, match="cannot write"):
        write_file(tmp_path / "d.csv", "x", force=True)
