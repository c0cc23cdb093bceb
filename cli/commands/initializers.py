# pyright: strict
"""`opreplay initializers`: what fills the arguments of ops, and what can be set."""

from __future__ import annotations

import click

from opreplay.cli.options.shared import format_option, init_module_option


@click.command("initializers", short_help="List what fills the arguments of ops, and their options.")
@init_module_option
@format_option("table", "json")
def command(init_module: tuple[str, ...], format_: str) -> None:
    """List the initializers with their ops and options, those of plugins and of --init-module included."""
    from opreplay.cli.terminal import console
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.report.views.listings import initializer_facts, initializers_table

    known = initializer_facts(open_registry(init_module))
    if format_ == "json":
        console.write(console.json_text(known))
    else:
        console.show(initializers_table(known))
