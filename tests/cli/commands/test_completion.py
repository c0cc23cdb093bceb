"""`opreplay completion`: what shells ask, what bash does with the script, and that all three get one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(sys.executable).parent
PATH = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"


def opreplay(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [str(SCRIPTS / "opreplay"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(shell: str, words: str, incomplete: str = "") -> str:
    """What a shell gets for a line; fish asks in another way."""
    count = len(words.split()) - (1 if incomplete else 0)
    return opreplay(
        _OPREPLAY_COMPLETE=f"{shell}_complete",
        COMP_WORDS=words,
        COMP_CWORD=incomplete if shell == "fish" else str(count),
    )


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_commands_options_and_devices(shell: str) -> None:
    assert "_OPREPLAY_COMPLETE" in opreplay("completion", shell)
    commands = asked(shell, "opreplay si", "si")
    assert "simulate" in commands
    assert "run" not in commands.split()
    assert "kernel_details=" in asked(shell, "opreplay simulate --set ker", "ker")
    devices = asked(shell, "opreplay simulate t.json --soc 910b", "910b")
    assert "910b3" in devices
    assert "910c" not in devices
    assert "file" in asked(shell, "opreplay run tra", "tra")


def test_bash_completes_a_line() -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    script = (
        'eval "$(opreplay completion bash)"\n'
        "COMP_WORDS=(opreplay lis); COMP_CWORD=1\n"
        "_opreplay_completion opreplay\n"
        'echo "${COMPREPLY[@]}"\n'
        "complete -p opreplay\n"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PATH": PATH},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "list"
    assert "_opreplay_completion" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_the_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    text = opreplay("completion", shell)
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
