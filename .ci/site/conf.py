"""The site of docs/, with an API reference from the docstrings.

python -m sphinx -W --keep-going -c .ci/site docs build/site
"""

import re
from typing import Any

from redis_saver import __version__

project = "redis_saver"
author = "The authors of redis_saver"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["upstream"]
html_theme = "furo"
html_title = "redis_saver"
default_role = "code"  # docstrings put code between single backticks
myst_heading_anchors = 3
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseCheckpointSaver, BaseStore, Exception, tuple",
    "member-order": "bysource",
}
autoclass_content = "both"  # what a class is, and what its constructor takes
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
suppress_warnings = ["ref.python"]  # several classes have an attribute of one name, and docstrings name it


def add_toctree(_: Any, page: str, source: list[str]) -> None:
    """Have the pages in the order of the table in index.md, which has no directive of Sphinx that other readers would see."""
    if page == "index":
        pages = re.findall(r"\]\(([a-z-]+)\.md\)", source[0])
        source[0] += "\n\n".join(["", "```{toctree}\n:hidden:\n", *pages, "```"]).replace("\n\n\n", "\n\n")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_toctree)
