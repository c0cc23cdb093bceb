"""`opreplay man`: every command and option of the click tree is on the page, and troff takes it."""

from __future__ import annotations

import shutil
import subprocess

import click
import pytest
from click.testing import CliRunner

from opreplay.cli.main import COMMANDS, opreplay


@pytest.fixture(scope="module")
def page() -> str:
    done = CliRunner().invoke(opreplay, ["man"])
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_is_in_step_with_a_command(page: str, name: str) -> None:
    command = opreplay.get_command(click.Context(opreplay), name)
    assert command is not None
    (part,) = [one for one in page.split(".SS ") if one.startswith(f'"opreplay {name}"')]
    plain = part.replace(r"\-", "-")
    missing = [
        flag
        for option in command.params
        if isinstance(option, click.Option)
        and not option.hidden
        and (flag := getattr(option, "shown", option.opts)[-1]) not in plain
    ]
    assert not missing


def test_troff_has_nothing_to_complain_of(page: str) -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff on this machine")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0
    assert not done.stderr
    assert "OPREPLAY(1)" in done.stdout
