# pyright: strict
"""`opreplay list`: list simulated devices, initializers, plugin registrations, and known ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import click

from opreplay.cli.options.shared import format_option, plugin_option
from opreplay.cli.options.types import SocName

if TYPE_CHECKING:
    from opreplay.replay.report.view import View

What = Literal["devices", "initializers", "ops", "plugins"]
WHAT: tuple[What, ...] = ("devices", "initializers", "ops", "plugins")


@click.command("list", short_help="List simulated devices, initializers, ops or plugins.")
@click.argument("what", type=click.Choice(WHAT), metavar="|".join(WHAT))
@click.argument("name", required=False)
@plugin_option
@click.option("--show", metavar="NAME|FILE", hidden=True, help="Deprecated: give NAME instead.")
@click.option(
    "--soc",
    type=SocName(),
    multiple=True,
    metavar="FILE",
    help="With plugins: list those for this device file (.toml).",
)
@format_option("table", "json", "toml")
def command(
    what: What,
    name: str | None,
    plugin: tuple[str, ...],
    show: str | None,
    soc: tuple[str, ...],
    format_: str,
) -> None:
    """List what there is.

    \b
    devices       simulated devices that --soc knows
    devices NAME  each number of one, or of a FILE, with unit and source;
                  as TOML a start for a file of your own
    initializers  what fills the arguments of ops, and its options
    ops           what is known of ops that need a reference, by family
    plugins       what installed packages and --plugin register:
                  conversions, executors, initializers,
                  estimators, properties, lowering rules
    """
    from opreplay.cli.terminal import console
    from opreplay.traces.errors import UsageError

    name = name or show
    if name is not None and what != "devices":
        raise UsageError(
            f"`list {what}` takes no name, but was given {name!r}", hint="To find one entry, use --format json and jq."
        )
    if format_ == "toml":
        if name is None or what != "devices":
            raise UsageError(
                "--format toml is only for a single device", hint="opreplay list devices NAME --format toml"
            )
        from opreplay.replay.report.views import devices

        console.write(devices.file_text(name))
        return
    if soc and what != "plugins":
        raise UsageError("--soc is for `list plugins`", hint=f"To show a device: opreplay list devices {soc[0]}")
    if what == "plugins":
        console.show_view(_plugins(plugin, soc), format_)
        return
    console.show_view(_devices(name) if what == "devices" else LISTS[what](plugin), format_)


def _devices(name: str | None) -> View:
    from opreplay.replay.ascend import list_devices, load_device
    from opreplay.replay.report.views import devices

    if name is not None:
        return devices.view_of_one(load_device(name))
    return devices.view([load_device(listed) for listed in list_devices()])


def _initializers(files: Sequence[str]) -> View:
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.plugins import load_plugins
    from opreplay.replay.report.views.listings import initializers_view

    load_plugins(files, installed=False)
    return initializers_view(open_registry())


def _ops(files: Sequence[str]) -> View:
    from opreplay.replay.plugins import built_in_ops
    from opreplay.replay.report.views.listings import built_in_view

    return built_in_view(built_in_ops())


def _plugins(files: Sequence[str], socs: Sequence[str]) -> View:
    from opreplay.replay.plugins import load_plugins, refuse_unusable_registrations, registrations
    from opreplay.replay.report.views.listings import registrations_view

    load_plugins(files)
    refuse_unusable_registrations(socs)
    return registrations_view(registrations())


LISTS: dict[What, Callable[[Sequence[str]], View]] = {
    "initializers": _initializers,
    "ops": _ops,
}
"""Lists whose contents depend on the files given by --plugin."""
