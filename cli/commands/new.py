# pyright: strict
"""`opreplay new`: write a template file for an op of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opreplay.cli.options.shared import force_option, plugin_option

if TYPE_CHECKING:
    from opreplay.replay.export.scaffold import Kind


@click.command("new", hidden=True, short_help="Write a file to start from, for an op of a trace.")
@click.argument("kind", type=click.Choice(["op", "initializer", "estimator", "tile"]), metavar="KIND")
@click.argument("op", metavar="NS::OP")
@click.option("--trace", required=True, metavar="TRACE", help="The trace or plan that contains the op.")
@click.option("--output", "-o", required=True, metavar="FILE.py", help="The file to write.")
@plugin_option
@force_option
def command(kind: Kind, op: str, trace: str, output: str, plugin: tuple[str, ...], force: bool) -> None:
    """Write FILE.py for an op of TRACE: an executor (KIND op), initializer, estimator or tile kernel, with the op's
    arguments by name, a test, and the commands that run both. NS::OP is a name, an id or a rank (#1).

    The file works unchanged, except an executor whose op's library is not installed: you write its body. An initializer
    needs the library, or --plugin FILE that defines the op.
    """
    from pathlib import Path

    from opreplay.cli.outputs import check_writable, write_file
    from opreplay.cli.setup import use_plugins
    from opreplay.cli.terminal import console
    from opreplay.replay.export.scaffold import lacks_library, scaffold
    from opreplay.replay.ops.inputs import open_registry
    from opreplay.replay.ops.register import stand_in_of
    from opreplay.replay.ops.work.expected import stand_ins
    from opreplay.replay.session.trace import open as open_trace

    check_writable(Path(output), force=force)
    use_plugins(plugin)
    picked = open_trace(trace)[op].ir
    text = scaffold(
        kind,
        picked,
        trace=trace,
        initializer=open_registry(plugins=False).find(stand_ins(picked, 0, whole=False)),
        has_stand_in=stand_in_of(picked.called) is not None,
        plugins=plugin,
    )
    write_file(Path(output), text.replace(" FILE", f" {output}"), force=force)
    if kind == "op" and lacks_library(picked):
        console.narrate(
            f"the library of {picked.called} is not installed: write the function body in {output}, which raises "
            "NotImplementedError until then"
        )
    console.show_line(f"{output}: {kind} of {picked.called}; test it with: python -m pytest {output}")
