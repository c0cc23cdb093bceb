# pyright: strict
"""`opreplay doctor`: what this machine can do, and what is missing."""

from __future__ import annotations

import click

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options.shared import format_option


@click.command("doctor", short_help="Check Python, torch, devices and libraries.")
@format_option("table", "json")
def command(format_: str) -> int:
    """Check what opreplay needs and what it can use. Exits with 4 when torch is missing or too old.

    Installs nothing, changes nothing, and imports no library but torch.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.host.doctor import examine
    from opreplay.replay.report.views.listings import checks_table

    sections = examine()
    if format_ == "json":
        console.write(console.json_text(sections))
    else:
        console.show(checks_table(sections))
    broken = [check for checks in sections.values() for check in checks if check.required and not check.ok]
    return ExitCode.ENVIRONMENT if broken else ExitCode.OK
