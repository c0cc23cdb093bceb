"""Sphinx configuration; the pages are Markdown, the command-line reference comes from the commands themselves."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "opreplay"
author = "The opreplay developers"
version = release = installed_version("opreplay")

extensions = ["myst_parser", "sphinx_click", "reference"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"opreplay {version}"
