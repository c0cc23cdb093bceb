"""A signal ends the command wherever it arrives, also where Python can raise no exception."""

from __future__ import annotations

import subprocess
import sys

import pytest

from opreplay.cli.exit_codes import ExitCode

pytestmark = pytest.mark.slow

PLACES = {
    "a finalizer": "class Dying:\n    def __del__(self): hit()\nDying()",
    "a callback of a weak reference": "import weakref\nclass Dying: pass\none = Dying()\n"
    "reference = weakref.ref(one, lambda _: hit())\ndel one",
    "a hook of a fork": "os.register_at_fork(before=hit)\nif os.fork() == 0: os._exit(0)",
}
SCRIPT = """
import os, signal, sys, time
from opreplay.cli.terminal.signals import Interrupts
Interrupts().install()
def hit():
    os.kill(os.getpid(), signal.{name})
    for _ in range(1000): pass  # the handler runs here
try:
    exec({place!r})
    time.sleep(20)
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("place", PLACES)
def test_a_signal_that_python_cannot_raise_comes_through(place: str, name: str) -> None:
    script = SCRIPT.format(name=name, place=PLACES[place])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "")


EARLY = """
import signal
set_timer = signal.setitimer
def at_once(*times):
    signal.setitimer = set_timer
    signal.raise_signal(signal.SIGALRM)
    return set_timer(*times)
signal.setitimer = at_once
"""
"""The timer of the first retry runs out before it returns, as on a machine with many more processes than processors."""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
@pytest.mark.parametrize("place", PLACES)
def test_a_retry_that_comes_too_early_is_repeated(place: str) -> None:
    script = EARLY + SCRIPT.format(name="SIGTERM", place=PLACES[place])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "")


COMMAND = """
import sys
from opreplay.replay.host.interrupts import ask_to_end
from opreplay.cli.main import main
ask_to_end()  # what is left of a signal whose exception somebody dropped
sys.argv = ["opreplay", *{arguments!r}]
main()
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            (
                "list",
                "devices",
            ),
            "",
        ),
        (("op", "aten::relu(f32[4])", "--set", "op_time=1ms"), "interrupted"),
    ],
)
def test_no_command_that_was_told_to_end_succeeds(arguments: tuple[str, ...], said: str) -> None:
    script = COMMAND.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == ExitCode.INTERRUPTED, done.stderr
    assert said in done.stderr
