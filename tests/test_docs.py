"""Each page's Python blocks run, one after the other, in a program of their own; the reference is complete.

A block that needs what a test cannot give stands under a line ``<!-- not run: why -->``, which the report of
the skipped tests repeats.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import spo_fast

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("[!_]*.md"), *DOCS.glob("[!_]*/**/*.md")])
LIMIT = 120  # seconds for a page

FENCE = re.compile(r"^(?:<!-- not run: (.+) -->\n\n?)?```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """Code of a page: the number of lines before it, and why it is not run, if so."""

    text: str
    above: int
    reason: str | None


def blocks_of(text):
    found = FENCE.finditer(text)
    return [Block(match[2], text.count("\n", 0, match.start(2)), match[1]) for match in found]


def program(blocks):
    """The blocks that are run, each on the lines that it has in the page, for the sake of tracebacks."""
    text = ""
    for block in blocks:
        if block.reason is None:
            text += "\n" * (block.above - text.count("\n")) + block.text
    return text


def name_of(page):
    return page.relative_to(ROOT).as_posix()


BLOCKS = {name_of(page): blocks_of(page.read_text("utf-8")) for page in PAGES}
NOT_RUN = [
    pytest.param(name, marks=pytest.mark.skip(reason=block.reason), id=f"{name}:{block.above + 1}")
    for name, blocks in BLOCKS.items()
    for block in blocks
    if block.reason
]


@pytest.mark.parametrize("name", [*(name for name, blocks in BLOCKS.items() if program(blocks)), *NOT_RUN])
def test_blocks_of_a_page_run(name, tmp_path):
    script = tmp_path / f"{Path(name).stem}_page.py"  # no page's program hides a module that it imports
    script.write_text(program(BLOCKS[name]), encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{name} (line numbers are the page's)\n{done.stderr}"


def test_blocks_are_found_with_their_lines_and_reasons():
    text = (
        "# A\n\n```python\na = 1\n```\n\n"
        "<!-- not run: needs a cluster -->\n```python\nb\n```\n\n```python\nc\n```\n"
    )
    blocks = blocks_of(text)
    assert blocks == [
        Block("a = 1\n", 3, None),
        Block("b\n", 8, "needs a cluster"),
        Block("c\n", 12, None),
    ]
    assert program(blocks).splitlines() == ["", "", "", "a = 1", *[""] * 8, "c"]


def test_every_python_block_is_found():
    for name, blocks in BLOCKS.items():
        text = (ROOT / name).read_text("utf-8")
        assert len(blocks) == len(re.findall(r"^\s*[`~]{3,}\s*(?:python|py)\b", text, flags=re.MULTILINE)), (
            name
        )


# ---------------------------------------------------------------- the reference


def documented_modules():
    pages = [page.read_text("utf-8") for page in DOCS.glob("reference/*.md")]
    return set(re.findall(r"^\.\. automodule:: ([\w.]+)$", "\n".join(pages), flags=re.MULTILINE))


def test_the_reference_has_every_public_module():
    public = {"spo_fast", "spo_fast.pulse", "spo_fast.torch"}
    public |= {
        f"spo_fast.{name}" for name in spo_fast._MODULES if name != "backends"
    }  # a function, for users
    assert public <= documented_modules()


@pytest.mark.parametrize("module", sorted(documented_modules()))
def test_every_public_name_has_a_docstring(module):
    if module == "spo_fast.torch":
        pytest.importorskip("torch")
    home = import_module(module)
    for name in getattr(home, "__all__", ()):
        value = getattr(home, name)
        assert not callable(value) or (value.__doc__ or "").strip(), f"{module}.{name}"


# ---------------------------------------------------------------- the built site


def check_site():
    """The tool that checks the built site, loaded as a module."""
    spec = importlib.util.spec_from_file_location("check_site", ROOT / "tools" / "check_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_site_with_nothing_wrong_passes(tmp_path, capsys):
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#there">b</a><a href="#top">up</a><a href="https://x.org/y">x</a>'
    )
    (tmp_path / "b.html").write_text('<p id="there"><img src="p.png"></p>')
    (tmp_path / "p.png").touch()
    assert check_site().main(str(tmp_path)) == 0
    assert "nothing is loaded from elsewhere" in capsys.readouterr().out


def test_every_fault_of_a_site_is_told(tmp_path, capsys):
    (tmp_path / "a.html").write_text(
        '<a href="b.html">b</a><a href="#nowhere">n</a><img src="p.png">'
        '<script src="https://x.org/s.js"></script>'
    )
    (tmp_path / "s.css").write_text('@import "https://x.org/font.css";')
    assert check_site().main(str(tmp_path)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "a.html: loads https://x.org/s.js",
        "a.html: b.html is not there",
        "a.html: #nowhere is not there",
        "a.html: p.png is not there",
        "s.css: loads from elsewhere",
    ]
    assert check_site().faults(tmp_path / "empty") == [f"{tmp_path / 'empty'}: no page"]
