"""Sphinx configuration; the pages are Markdown, the command-line reference comes from the commands themselves."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

import click
from sphinx.application import Sphinx

from opreplay.cli.options.settings import Command

sys.path.insert(0, str(Path(__file__).parent))

project = "opreplay"
author = "The opreplay developers"
version = release = installed_version("opreplay")

extensions = ["myst_parser", "sphinx_click", "records"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"opreplay {version}"


def setup(app: Sphinx) -> None:
    """Settings stand in the reference as in --help, their variables in the text of each."""
    app.connect("sphinx-click-process-options", _with_settings)


def _with_settings(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    if isinstance(ctx.command, Command) and ctx.command.settings:
        lines += [".. rubric:: Settings", ""]
        for setting in ctx.command.settings.values():
            name, text = setting.record(ctx)
            lines += [f"``{name}``", f"    {text}", ""]
    for option in ctx.command.params:
        if isinstance(option, click.Option) and option.hidden:
            # Else the reference would link it to an option that stands nowhere.
            option.envvar = None
