"""Options from files: which file counts, what its names mean, the command line wins, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import COMMANDS, opreplay

RELU = "aten::relu(f32[8])"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(opreplay, list(arguments), env={"COLUMNS": "120"})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OPREPLAY_CONFIG", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    monkeypatch.chdir(folder / "sub")
    return folder


def test_a_file_above_counts_and_the_command_line_wins(project: Path) -> None:
    (project / "opreplay.toml").write_text('soc = ["910b4", "910c"]\n[op]\nmeasure = false\nformat = "json"\n')
    done = invoke("op", RELU)
    assert done.exit_code == 0, done.stderr
    assert list(json.loads(done.stdout)["cases"][0]["simulated_us"]) == ["910b4", "910c"]
    assert "opreplay: options soc, op.measure, op.format are from " in done.stderr
    assert list(json.loads(invoke("op", RELU, "--soc", "910b1").stdout)["socs"]) == ["910b1"]
    assert list(
        json.loads(invoke("--config", "none", "op", RELU, "--no-measure", "--format", "json").stdout)["socs"]
    ) == ["910b3"]


@pytest.mark.slow
def test_a_table_of_pyproject_and_the_console_script(project: Path) -> None:
    plugin = project / "own.py"
    plugin.write_text(
        "from opreplay import register_executor\n\n\n"
        "@register_executor('settings_test::twice')\ndef twice(x):\n    return x * 2\n"
    )
    (project / "pyproject.toml").write_text('[tool.opreplay]\nplugin = "own.py"\n[tool.opreplay.op]\nop-time = "2ms"\n')
    script = Path(sys.executable).with_name("opreplay")
    assert invoke("trust").exit_code == 0
    done = subprocess.run(
        [str(script), "op", "settings_test::twice(f32[4])", "--format", "json"],
        cwd=project / "sub",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "OPREPLAY_SHARED_DEVICE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cases"][0]["measured_us"] > 0, "a file named from the folder of the settings"
    (project / "pyproject.toml").write_text("[tool.other]\nsoc = 3\n")
    assert invoke("list", "devices").exit_code == 0


@pytest.mark.slow
def test_a_name_of_one_command_goes_before_that_of_all(project: Path) -> None:
    (project / "opreplay.toml").write_text(
        'soc = "910b4"\n[simulate]\nsoc = "910b1"\nlosers = 3\n[run]\nop_time = "1s"\n'
    )
    shown = {one["name"]: one["found"] for one in json.loads(invoke("doctor", "--format", "json").stdout)["settings"]}
    assert shown["soc"] == f"910b4 ({project / 'opreplay.toml'})"
    assert shown["simulate.losers"] == f"3 ({project / 'opreplay.toml'})"
    assert shown["run.op-time"] == f"1s ({project / 'opreplay.toml'})", "as --set takes it"
    assert list(json.loads(invoke("op", RELU, "--no-measure", "--format", "json").stdout)["socs"]) == ["910b4"]


@pytest.mark.slow
def test_doctor_says_where_there_is_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".git").mkdir()
    monkeypatch.setenv("OPREPLAY_SHARED_DEVICE", "1")
    found = json.loads(invoke("doctor", "--format", "json").stdout)["settings"]
    assert {"name": "OPREPLAY_SHARED_DEVICE", "found": "1 (environment)"}.items() <= found[0].items()
    monkeypatch.delenv("OPREPLAY_SHARED_DEVICE")
    (one,) = json.loads(invoke("doctor", "--format", "json").stdout)["settings"]
    assert "no opreplay.toml" in one["note"]


def test_the_search_ends_at_a_repository(project: Path) -> None:
    (project / "opreplay.toml").write_text('soc = "911"\n')
    (project / "sub" / ".git").mkdir()
    assert invoke("op", RELU, "--no-measure").exit_code == 0


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("socs = 'x'", "no command has an option 'socs'", "Did you mean soc?"),
        ("[runn]\nsoc = 'x'", "there is no command 'runn'", "Did you mean run?"),
        ("[run]\nop-tme = 1", "run has no option 'op-tme'", "Did you mean op-time?"),
        ("[run]\nop-time = 'long'", "is not a time", "--op-time"),
        ("[run]\nop-time = [1, 2]", "is not a text or number", "--op-time"),
        ("[run]\ncuda-graph = 1", "is not true or false", "--cuda-graph"),
        ("[run]\ncache = 'lukewarm'", "lukewarm", "--cache"),
        ("[run]\nop-time = '1s'\nop_time = '2s'", "op-time is given twice", "once"),
        ("[run", "is not valid TOML", "soc"),
        ("[[run]]\nop-time = '1s'", "run is a command, but its value is not a table of options", "in one table [run]"),
        ("run = 3", "run is a command, but its value is not a table of options", "in one table [run]"),
        ("set = ['op_time=1s']", "no command has an option 'set'", "by its own name: op_time = "),
        ("[run]\nset = 'op_time=1s'", "run has no option 'set'", "by its own name: op_time = "),
        ("version = true", "no command has an option 'version'", "Give --version on the command line only"),
    ],
)
def test_what_makes_no_sense_ends_every_command(project: Path, text: str, why: str, hint: str) -> None:
    (project / "opreplay.toml").write_text(text)
    done = invoke("list", "devices")
    assert done.exit_code == 2
    assert why in done.stderr
    assert hint in done.stderr
    assert invoke("--config", "none", "list", "devices").exit_code == 0


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "dangling link"])
def test_what_is_no_regular_file_is_said_not_to_be_read(project: Path, kind: str) -> None:
    path = project / "opreplay.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere.toml")
    done = invoke("list", "devices")
    assert done.exit_code == 0
    assert f"{path} was ignored: it is not a regular file" in done.stderr
    assert "was ignored" not in invoke("--config", "none", "list", "devices").stderr
    (project / "sub" / "opreplay.toml").write_text("soc = '910b3'\n")
    assert "was ignored" not in invoke("list", "devices").stderr


def test_two_files_that_speak_are_refused(project: Path) -> None:
    (project / "opreplay.toml").write_text("soc = '910b3'\n")
    (project / "pyproject.toml").write_text("[tool.opreplay]\nsoc = '910b4'\n")
    assert "both have options" in invoke("list", "devices").stderr


def test_another_users_file_is_not_followed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "opreplay.toml").write_text("plugin = 'evil.py'\n")
    owner = (project / "opreplay.toml").stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner != 0:
        assert "belongs to another user" in invoke("list", "devices").stderr
    else:
        os.chown(project / "opreplay.toml", 12345, -1)
        assert "belongs to another user" in invoke("list", "devices").stderr


def test_every_option_may_stand_in_a_file(project: Path) -> None:
    """What a default is, a file may say as well: names and types of all flags."""
    import click

    lines: list[str] = []
    for name in COMMANDS:
        command = opreplay.get_command(click.Context(opreplay), name)
        assert command is not None
        lines.append(f"[{name}]")
        for option in command.params:
            if isinstance(option, click.Option) and option.is_flag:
                lines.append(f"{option.opts[-1].removeprefix('--')} = false")
    (project / "opreplay.toml").write_text("\n".join(lines))
    assert invoke("trust").exit_code == 0
    assert invoke("list", "devices").exit_code == 0, invoke("list", "devices").stderr


@pytest.mark.slow
def test_doctor_reports_a_file_that_stops_every_other_command(project: Path) -> None:
    (project / "opreplay.toml").write_text("sock = '910b3'\n")
    assert invoke("list", "devices").exit_code == 2
    found = invoke("doctor", "--format", "json")
    assert found.exit_code == 4
    (told,) = json.loads(found.stdout)["settings"]
    assert "no command has an option 'sock'" in told["found"]
    assert told["ok"] is False


def _needing_trust() -> dict[str, list[str]]:
    """Command → its flags that count in a trusted file alone."""
    import click

    from opreplay.cli.settings import needs_trust

    flags: dict[str, list[str]] = {}
    for name in COMMANDS:
        command = opreplay.get_command(click.Context(opreplay), name)
        assert command is not None
        options = [option for option in command.params if isinstance(option, click.Option) and needs_trust(option)]
        flags[name] = [option.opts[0].removeprefix("--") for option in options]
    return flags


def test_what_reaches_beyond_a_run_needs_trust() -> None:
    needing = {flag for flags in _needing_trust().values() for flag in flags}
    code = {"plugin", "init-module", "custom-op-dir", "allow-import", "against", "trust"}
    assert needing >= code | {"output", "force", "overwrite", "limit", "op-limit", "max-op-memory", "address", "values"}
    assert not needing & {"soc", "cluster", "format", "seed", "top", "op-time", "device", "select", "l2", "dry-run"}


@pytest.mark.parametrize("command", [name for name, flags in _needing_trust().items() if flags])
def test_a_found_file_reaches_nothing_without_trust(project: Path, command: str) -> None:
    """Each setting alone is refused before the command begins, and before its value is used for anything."""
    for flag in _needing_trust()[command]:
        for value in ('"x"', "true", '"a=1"', '"a=b"', '"1GB"', '"1s"', "1"):
            (project / "opreplay.toml").write_text(f"[{command}]\n{flag} = {value}\n")
            refused = invoke(command, "x", "y")
            assert refused.exit_code == 2, flag
            if "only a trusted file" in refused.stderr:
                break
        else:
            pytest.fail(f"{command}.{flag} needs no trust: {refused.stderr}")


def doctor_on(name: str) -> bool:
    """Whether doctor finds a setting in order."""
    return next(
        one["ok"] for one in json.loads(invoke("doctor", "--format", "json").stdout)["settings"] if one["name"] == name
    )


@pytest.mark.slow
def test_trust_is_for_one_content_at_one_place(project: Path) -> None:
    ran, file = project / "ran", project / "opreplay.toml"
    (project / "own.py").write_text(f"import os\nos.mkdir({str(ran)!r})\n")
    file.write_text("plugin = 'own.py'\n")
    assert invoke("list", "plugins").exit_code == 2
    assert doctor_on("plugin") is False
    assert invoke("completion", "bash").exit_code == 0, "which has no such option"
    assert invoke("--config", "none", "list", "plugins").exit_code == 0
    assert not ran.exists()
    assert invoke("trust", str(file)).exit_code == 0
    marks = list((project.parent / "state" / "opreplay" / "trusted").iterdir())
    assert [mark.stat().st_mode & 0o777 for mark in (*marks, marks[0].parent)] == [0o600, 0o700]
    assert doctor_on("plugin") is True
    assert invoke("list", "plugins").exit_code == 0
    assert ran.exists()
    ran.rmdir()
    (project / "sub" / "opreplay.toml").write_text(file.read_text())
    assert invoke("list", "plugins").exit_code == 2, "the same content elsewhere"
    (project / "sub" / "opreplay.toml").unlink()
    file.write_text(file.read_text() + "# edited\n")
    assert invoke("list", "plugins").exit_code == 2
    marks[0].parent.chmod(0o777)
    file.write_text("plugin = 'own.py'\n")
    assert invoke("list", "plugins").exit_code == 2, "others could have put the mark there"
    assert not ran.exists()


def test_a_named_file_is_trusted(project: Path) -> None:
    (project / "own.py").write_text("")
    (project / "opreplay.toml").write_text("plugin = 'own.py'\n")
    assert invoke("--config", str(project / "opreplay.toml"), "list", "plugins").exit_code == 0


def test_trust_of_nothing_is_an_error(project: Path) -> None:
    assert invoke("trust").exit_code == 2
    assert invoke("trust", "absent.toml").exit_code == 2


def test_the_size_of_a_device_file_is_the_same_for_whoever_names_it() -> None:
    from opreplay.cli.settings import MOST_DEVICE_BYTES
    from opreplay.replay.ascend.devices.file import MAX_FILE_BYTES

    assert MOST_DEVICE_BYTES == MAX_FILE_BYTES
