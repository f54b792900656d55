"""Settings of the documentation site: the Markdown pages as they are, the reference from the docstrings.

`make docs` builds it; nothing is fetched on the way, and nothing when a page is read.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

# With Numba's compilation off, its kernels are plain functions with their signatures and docstrings. It is
# switched on again at once, for the notebooks run in processes that inherit these variables.
os.environ["NUMBA_DISABLE_JIT"] = "1"
import spo_fast.kernels

del os.environ["NUMBA_DISABLE_JIT"]

HERE = Path(__file__).resolve().parent
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")  # of the notebooks

project = "spo_fast"
author = copyright = "The spo_fast developers"
release = version = spo_fast.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc"]
exclude_patterns = ["_build"]
nitpicky = True

# ---------------------------------------------------------------- pages

# The pages stay plain Markdown, which is read elsewhere too: the table of contents stands here. Pages that no
# caption names come under the first one, after those it names, so that a new page needs no entry.
CONTENTS = {
    "Use": ["backends", "processes", "attention", "experiments", "command-line", "migrating", "cases"],
    "Gallery": ["gallery/scpn", "gallery/connectome", "gallery/power_grid", "gallery/oscillator_attention"],
    "Understand": ["mathematics", "moments"],
    "Results": ["results/*", "overhead", "scaling", "benchmarks"],
    "Reference": ["reference/*"],
}


def pages_of(entries: list[str]) -> list[str]:
    """Names of the pages that these entries mean, in their order."""
    paths = [path for entry in entries for path in sorted(HERE.glob(f"{entry}.md"))]
    return [path.relative_to(HERE).with_suffix("").as_posix() for path in paths]


def table_of_contents() -> str:
    """The table of contents as directives of MyST."""
    contents = {caption: pages_of(entries) for caption, entries in CONTENTS.items()}
    named = {"index", *(page for pages in contents.values() for page in pages)}
    contents["Use"] += [page for page in pages_of(["*", "results/**/*"]) if page not in named]
    return "\n".join(
        f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in contents.items()
    )


def add_contents(app, docname, source):
    """Add the table of contents to the first page while it is read."""
    if docname == "index":
        source[0] += "\n" + table_of_contents()


def read_the_first_page_again(app, env, added, changed, removed):
    """Its table of contents may be another one, though its file is the same."""
    return ["index"]


def setup(app):
    """Register what this file adds."""
    app.connect("source-read", add_contents)
    app.connect("env-get-outdated", read_the_first_page_again)


# ---------------------------------------------------------------- Markdown and notebooks


def digest_of_sources() -> str:
    """What tells one state of the library from another: once it has changed, notebooks are run again."""
    root = HERE.parent
    kinds = ("spo_fast/**/*.py*", "spo_fast/data/*", "csrc/**/*.[ch]")
    paths = sorted(path for kind in kinds for path in root.glob(kind) if path.suffix != ".pyc")
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


myst_heading_anchors = 3  # as GitHub makes them
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / f"notebooks-{digest_of_sources()}")
nb_execution_raise_on_error = True
nb_execution_timeout = 300  # s a cell
nb_output_stderr = "error"  # a warning in a notebook is a fault of the page

# ---------------------------------------------------------------- reference

autodoc_default_options = {"members": True, "member-order": "bysource", "special-members": "__call__"}
autodoc_typehints = "none"  # the docstrings tell types, shapes and units
autodoc_mock_imports = [] if find_spec("torch") else ["torch"]
numpydoc_show_class_members = False
default_role = "py:obj"  # `name` links to what is documented and is plain code where it means something else
nitpick_ignore_regex = [("py:obj", ".*")]

# ---------------------------------------------------------------- look

html_theme = "furo"
html_title = f"spo_fast {release}"
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
