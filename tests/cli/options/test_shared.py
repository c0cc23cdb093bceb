"""Option values: sizes, times, shares, assignments."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.cli.options.types import Assignments, ByteSize, Duration, Share
from opreplay.traces.samples import sample_path


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GB", 10**9),
        ("1 GB", 10**9),
        ("512MiB", 512 << 20),
        ("800k", 800_000),
        ("1.5G", 1_500_000_000),
        ("7", 7),
        ("800K", 800_000),
        ("2KiB", 2048),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert ByteSize().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1 parsec", "0", "nan", "1e999x"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        ByteSize().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.2", 0.2), ("200ms", 0.2), ("2min", 120.0), ("1s", 1.0), ("50us", 5e-5)]
)
def test_times(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0", "-1s", "1 fortnight", "soon"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(("text", "share"), [("0.1%", 0.001), ("0.001", 0.001), ("100%", 1.0), ("0", 0.0)])
def test_shares(text: str, share: float) -> None:
    assert Share().convert(text, None, None) == pytest.approx(share)


@pytest.mark.parametrize("text", ["101%", "2", "-1%", "x"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a share"):
        Share().convert(text, None, None)


def test_assignments_fit_their_patterns() -> None:
    kind = Assignments(re.compile("[a-z]+"), re.compile("[a-z.]+"), "ns=module")
    assert kind.convert("myops=my.ops", None, None) == ("myops", "my.ops")
    for text in ("myops", "=x", "a=", "a=b c", "A=b"):
        with pytest.raises(click.BadParameter, match="write it like ns=module"):
            kind.convert(text, None, None)


def test_custom_op_files_run_before_the_trace_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('read me')\n")
    for command in ("run", "plan", "simulate"):
        result = CliRunner().invoke(opreplay, [command, "nowhere.json", "--plugin", str(tmp_path)])
        assert result.exit_code == 2
        assert f"{tmp_path}/mine.py:1: RuntimeError: read me" in result.stderr


@pytest.mark.parametrize("way", ["options", "variable", "file", "library"])
def test_every_custom_op_folder_counts(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opreplay.replay.ascend.custom.estimators import clear_registrations
    from opreplay.replay.plugins import load_plugins, registrations

    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / "mine.py").write_text(
            "from opreplay import register_op_estimator\n"
            f"@register_op_estimator('mylib::{folder.name}', None)\n"
            "def estimate(op, device):\n    return 1e-3\n"
        )
    clear_registrations()
    try:
        if way == "library":
            load_plugins([str(folder) for folder in folders], installed=False)
            ops = {op for entry in registrations() for op in entry.ops}
        else:
            given = [part for folder in folders for part in ("--plugin", str(folder))]
            (tmp_path / "o.toml").write_text(f"custom-op-dir = {[str(folder) for folder in folders]}\n")
            before = ["--config", str(tmp_path / "o.toml")] if way == "file" else []
            after = given if way == "options" else []
            if way == "variable":
                monkeypatch.setenv("OPREPLAY_CUSTOM_OP_DIR", os.pathsep.join(map(str, folders)))
            done = CliRunner().invoke(opreplay, [*before, "list", "plugins", *after, "--format", "json"])
            assert done.exit_code == 0, done.output
            ops = {op for entry in json.loads(done.stdout) for op in entry["ops"]}
        assert {"mylib::first", "mylib::second"} <= ops
    finally:
        clear_registrations()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("--op", "aten::silu"), ("--include", "aten::silu")),
        (("--check-work",), ("--check", "work")),
        (("--check-kernels",), ("--check", "kernels")),
        (("--check-values",), ("--check", "values")),
        (("--seed", "3"), ("--set", "seed=3")),
    ],
)
def test_names_of_before_work_and_say_what_they_are_called_now(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    trace = str(sample_path("transformer_infer"))
    answers = [
        CliRunner().invoke(opreplay, ["run", trace, *flags, "--dry-run", "--format", "json"]) for flags in (old, new)
    ]
    assert [answer.exit_code for answer in answers] == [0, 0], answers[1].stderr
    assert answers[0].stdout == answers[1].stdout
    assert f"{old[0]} is now {' '.join(new[:1])}" in answers[0].stderr
    assert "is now" not in answers[1].stderr


@pytest.mark.slow
def test_an_op_filter_takes_ids_and_places() -> None:
    trace = str(sample_path("transformer_infer"))

    def ops(*flags: str) -> list[dict[str, Any]]:
        answer = CliRunner().invoke(opreplay, ["plan", trace, *flags, "--format", "json"])
        assert answer.exit_code == 0, answer.output
        listed: list[dict[str, Any]] = json.loads(answer.stdout)["unique_ops"]
        return listed

    every = ops()
    assert [op["id"] for op in ops("--include", "#2")] == [every[1]["id"]]
    assert [op["id"] for op in ops("--include", every[3]["id"][:8])] == [every[3]["id"]]
    filtered = ops("--include", "aten::silu", "--include", "#1")
    assert [op["name"] for op in filtered] == ["aten::silu"]
