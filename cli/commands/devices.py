# pyright: strict
"""`opreplay devices`: the simulated devices and where each of their numbers comes from."""

from __future__ import annotations

import click

from opreplay.cli.options.shared import format_option


@click.command("devices", short_help="List the simulated devices, or every number of one.")
@click.option("--show", metavar="NAME|FILE", help="Show one device: each number with unit, source and confidence.")
@format_option("table", "json", "toml")
def command(show: str | None, format_: str) -> None:
    """List the simulated devices that --soc knows, or show one.

    `--format toml` prints the device's file: a start for one of your own.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend import list_devices, load_device
    from opreplay.replay.report.views import devices as view
    from opreplay.traces.errors import UsageError

    if format_ == "toml":
        if show is None:
            raise UsageError("--format toml needs --show NAME")
        console.write(view.file_text(show))
        return
    chosen = [load_device(show)] if show else [load_device(name) for name in list_devices()]
    if format_ == "json":
        facts = [view.facts(device) for device in chosen]
        console.write(console.json_text(facts if show is None else facts[0]))
    elif show is None:
        console.show_fitted(lambda width: view.overview(chosen, width))
    else:
        console.show(view.details(chosen[0]))
