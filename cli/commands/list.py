# pyright: strict
"""`opreplay list`: simulated devices, initializers, what plugins registered, and what is known of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from opreplay.cli.options.shared import format_option, plugin_option

if TYPE_CHECKING:
    from rich.console import RenderableType

What = Literal["devices", "initializers", "ops", "plugins"]
WHAT: tuple[What, ...] = ("devices", "initializers", "ops", "plugins")


@click.command("list", short_help="List simulated devices, initializers, ops or plugins.")
@click.argument("what", type=click.Choice(WHAT), metavar="|".join(WHAT))
@click.argument("name", required=False)
@plugin_option
@click.option("--show", metavar="NAME|FILE", hidden=True, help="NAME, as it was given before.")
@format_option("table", "json", "toml")
def command(
    what: What,
    name: str | None,
    plugin: tuple[str, ...],
    show: str | None,
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
        raise UsageError(f"{what} are listed whole: {name!r} is one too many", hint="--format json and jq find one.")
    if format_ == "toml":
        if name is None or what != "devices":
            raise UsageError("TOML is the form of a device's file", hint="opreplay list devices NAME --format toml")
        from opreplay.replay.report.views import devices

        console.write(devices.file_text(name))
        return
    if what == "devices":
        facts, table = _devices(name)
    elif what == "initializers":
        facts, table = _initializers(plugin)
    else:
        facts, table = _ops() if what == "ops" else _plugins(plugin)
    console.show_as(format_, lambda: facts, table)


Listed = tuple[Any, "Callable[[int], RenderableType]"]
"""What --format json prints, and the table at a width."""


def _devices(name: str | None) -> Listed:
    from opreplay.replay.ascend import list_devices, load_device
    from opreplay.replay.report.views import devices as view

    if name is not None:
        device = load_device(name)
        return view.facts(device), lambda width: view.details(device)
    known = [load_device(listed) for listed in list_devices()]
    return [view.facts(device) for device in known], lambda width: view.overview(known, width)


def _initializers(files: Sequence[str]) -> Listed:
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.plugins import load_plugins
    from opreplay.replay.report.views.listings import initializer_facts, initializers_table

    load_plugins(files, installed=False)
    facts = initializer_facts(open_registry())
    return facts, lambda width: initializers_table(facts)


def _ops() -> Listed:
    from opreplay.replay.plugins import built_in_ops
    from opreplay.replay.report.views.listings import built_in_facts, built_in_table

    facts = built_in_facts(built_in_ops())
    return facts, lambda width: built_in_table(facts)


def _plugins(files: Sequence[str]) -> Listed:
    from opreplay.replay.plugins import load_plugins, registrations
    from opreplay.replay.report.views.listings import registration_facts, registrations_table

    load_plugins(files)
    facts = registration_facts(registrations())
    return facts, lambda width: registrations_table(facts)
