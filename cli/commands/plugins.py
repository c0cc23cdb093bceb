# pyright: strict
"""`opreplay plugins`: what users' code has registered, and where it is from."""

from __future__ import annotations

import click

from opreplay.cli.options.shared import custom_op_option, format_option, plugin_option


@click.command("plugins", short_help="List what users' plugins have registered, and where it is from.")
@plugin_option
@custom_op_option
@click.option(
    "--built-in",
    is_flag=True,
    help="What opreplay itself knows of each op that needs a reference: family, cost, initializer, formula.",
)
@format_option("table", "json")
def command(plugin: tuple[str, ...], custom_op_dir: tuple[str, ...], built_in: bool, format_: str) -> None:
    """List what installed packages, --plugin and --custom-op-dir register: conversions, executors, initializers, and
    for simulated devices estimators, properties and lowering rules.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.plugins import built_in_ops, load_plugins, registrations
    from opreplay.replay.report.views.listings import (
        built_in_facts,
        built_in_table,
        registration_facts,
        registrations_table,
    )

    if built_in:
        ops = built_in_facts(built_in_ops())
        if format_ == "json":
            console.write(console.json_text(ops))
        else:
            console.show(built_in_table(ops))
        return
    load_plugins(plugin, custom_op_dirs=custom_op_dir)
    facts = registration_facts(registrations())
    if format_ == "json":
        console.write(console.json_text(facts))
    else:
        console.show(registrations_table(facts))
