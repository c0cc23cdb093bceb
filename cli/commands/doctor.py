# pyright: strict
"""`opreplay doctor`: report what this machine can do, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options.shared import format_option

if TYPE_CHECKING:
    from opreplay.replay.host.doctor import Check

UNTRUSTED = "refused: read the file, then run opreplay trust FILE"


@click.command("doctor", hidden=True, short_help="Check Python, torch, devices and libraries.")
@format_option("table", "json")
@click.pass_context
def command(ctx: click.Context, format_: str) -> int:
    """Check what opreplay needs and what it can use. Exits with 4 if torch is missing or too old, or if the options
    file is wrong.

    Installs nothing, changes nothing, and imports no library but torch.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.host.doctor import examine
    from opreplay.replay.report.views.listings import checks_view

    sections = {**examine(), "settings": _settings(ctx.obj)}
    console.show_view(checks_view(sections), format_)
    broken = [check for checks in sections.values() for check in checks if check.required and not check.ok]
    return ExitCode.ENVIRONMENT if broken else ExitCode.OK


def _settings(settings: object) -> list[Check]:
    """Return one check per setting that an options file or the environment gives, with its source."""
    import os

    from opreplay.cli.settings import OWN, SHARED, Settings
    from opreplay.replay.host.doctor import Check

    if isinstance(settings, Settings) and settings.problem:
        return [
            Check(
                name="options",
                found=settings.problem,
                ok=False,
                required=True,
                note="every command stops with this error",
            )
        ]
    places = settings.places if isinstance(settings, Settings) else ()
    untrusted = settings.untrusted if isinstance(settings, Settings) else dict[str, str]()
    checks = [
        Check(name=name, found=f"{value} ({place})", ok=name not in untrusted, note=UNTRUSTED * (name in untrusted))
        for name, value, place in places
    ]
    variables = sorted(name for name in os.environ if name.startswith("OPREPLAY_"))
    checks += [Check(name=name, found=f"{os.environ[name]} (environment)", ok=True) for name in variables]
    none = Check(name="options", found="", ok=False, note=f"none: found no {OWN} and no {SHARED} with [tool.opreplay]")
    return checks or [none]
