"""The site of docs/, with an API reference from the docstrings.

python -m sphinx -W --keep-going -c .ci/site docs build/site
"""

import re
from dataclasses import fields
from typing import Any

from sphinx.pycode import ModuleAnalyzer
from sphinx.util import inspect
from sphinx.util.typing import stringify_annotation

import redis_saver

project = "redis_saver"
author = "The authors of redis_saver"
release = version = redis_saver.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["upstream"]
html_theme = "furo"
html_title = "redis_saver"
html_copy_source = html_use_index = html_domain_indices = html_show_copyright = False
pygments_dark_style = "github-dark"
default_role = "code"  # docstrings put code between single backticks
python_display_short_literal_types = True
myst_heading_anchors = 3
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseCheckpointSaver, BaseStore, BaseException, tuple",
    "member-order": "bysource",
}
autoclass_content = "both"  # the class and the arguments of its constructor
autodoc_typehints = "description"  # the constructors take up to twenty arguments
autodoc_type_aliases = {"TTL": "TTL", "History": "History"}
napoleon_use_rtype = False
suppress_warnings = ["ref.python"]  # several classes have an attribute of the same name


def add_toctree(_app: Any, page: str, source: list[str]) -> None:
    """Build the sidebar from the tables of index.md and api.md, one group for each heading of index.md.

    Other readers of these files see no directive of Sphinx. The landing page starts with the README.
    """
    text = source[0]
    if page == "index":
        readme = "```{include} ../README.md\n:end-before: '## Servers'\n:relative-docs: docs/\n```\n"
        _, *groups = text.split("\n## ")
        source[0] = "\n## ".join([readme, *groups])
        for group in groups:
            source[0] += _toctree(group, f":caption: {group.splitlines()[0]}\n")
    elif page == "api":
        source[0] += _toctree(text)


def _toctree(text: str, options: str = "") -> str:
    pages = re.findall(r"^\| \[.*?\]\(([a-z/-]+)\.md\)", text, re.MULTILINE)
    return "\n".join(["", "", "```{toctree}", ":hidden:", options, *pages, "```"])


def leave_out_twins(app: Any, _what: str, name: str, _member: Any, skip: bool, _options: Any) -> bool:
    """Describe `put` at RedisSaver, and list `aput` at AsyncRedisSaver. Each class has both."""
    owner = app.env.current_document.autodoc_class
    of_class = getattr(redis_saver, owner, None)
    if owner.startswith("Async"):
        return skip or hasattr(of_class, f"a{name}")
    return skip or (hasattr(redis_saver, f"Async{owner}") and name[0] == "a" and hasattr(of_class, name[1:]))


def set_types(app: Any, what: str, name: str, thing: Any, *_: Any) -> tuple[str, None] | None:
    """Resolve the types of a constructor, which autodoc leaves as they are written.

    Leave out the arguments of a named tuple, which programs do not make, and the types of a method's twin.
    """
    types = app.env.current_document.autodoc_annotations.get(name, {})
    is_result = what == "class" and (issubclass(thing, tuple) or thing is redis_saver.Ownership)
    if is_result or re.match(r"`\w+` for asyncio", thing.__doc__ or ""):
        types.clear()
    elif what == "class":
        parameters = inspect.signature(thing.__init__, type_aliases=autodoc_type_aliases).parameters
        for argument in types.keys() & parameters:
            text = stringify_annotation(parameters[argument].annotation, "smart", short_literals=True)
            types[argument] = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text)
    if types.get("return") == "None":
        del types["return"]
    return ("", None) if is_result else None


def link(_app: Any, what: str, name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Make links and code blocks of what a docstring has as plain text."""
    text = re.sub(r"\n*^Create new instance of .*", "", "\n".join(lines), flags=re.MULTILINE)
    text = re.sub(r"^(\S.*\n\n)((?:(?:    .*)?\n)+)", code_block, text + "\n", flags=re.MULTILINE)
    text = re.sub(r"`docs/([a-z-]+)\.md`", r":doc:`/\1`", text)
    text = re.sub(r"(?<![`:])`([A-Za-z][\w.]*)`(?!`)", r":py:obj:`\1`", text)  # a link if the reference has it
    text = re.sub(r"(?<![`:])`([A-Za-z][\w.]*\(\))`(?!`)", r":py:meth:`\1`", text)
    if twin := re.fullmatch(r"redis_saver\.Async(\w+)\.a(\w+)", name):
        text = text.replace(f":py:obj:`{twin[2]}`", f":meth:`~redis_saver.{twin[1]}.{twin[2]}`")
    if what in ("attribute", "property"):
        text = f"\n{text}"  # else napoleon takes what stands before a colon for a type
    lines[:] = text.replace("\0", "`").split("\n")


def code_block(found: re.Match[str]) -> str:
    """Mark indented lines as code, in which nothing is a link."""
    return f"{found[1]}::\n\n" + found[2].replace("`", "\0")


def shorten(_app: Any, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Remove tags and classes that no style needs. They are a fifth of a page, and keep long code from wrapping."""
    body = re.sub(r'<span class="pre">([^<]*)</span>', r"\1", context.get("body", ""))
    context["body"] = re.sub(r'class="[\w -]*\bliteral notranslate"', 'class="literal"', body)


def describe_counters() -> None:
    """Give each counter the text of its declaration, as if it were its docstring."""
    for kind in (redis_saver.Stats, redis_saver.CacheStats, redis_saver.TierStats, redis_saver.CopyStats):
        for one in kind.__mro__[:-1]:
            analyzer = ModuleAnalyzer.for_module(one.__module__)
            analyzer.analyze()
            texts = {
                (one.__name__, field.name): [field.metadata["about"], ""] for field in fields(one) if field.metadata
            }
            analyzer.attr_docs |= texts


def setup(app: Any) -> None:
    """Called by Sphinx."""
    describe_counters()
    app.connect("source-read", add_toctree)
    app.connect("autodoc-skip-member", leave_out_twins)
    app.connect("autodoc-process-signature", set_types, priority=600)  # after autodoc noted the types
    app.connect("autodoc-process-docstring", link, priority=400)  # before napoleon
    app.connect("html-page-context", shorten)
