"""Check the built documentation: links, anchors and pictures are there, and nothing is loaded from elsewhere.

python tools/check_site.py docs/_build/html
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
IMPORTED = re.compile(r"""@import\s+["'](?:https?:)?//|url\(\s*["']?(?:https?:)?//""")


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that links may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down the attributes that matter."""
        given = {name: value for name, value in attrs if value}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if LOADED.get(tag) in given:
            self.loaded.append(given[LOADED[tag]])
        self.anchors |= {given[name] for name in ("id", "name") if name in given}


def faults(site: Path) -> list[str]:
    """Tell what is wrong with a site.

    Parameters
    ----------
    site : Path
        Folder of the built pages.

    Returns
    -------
    list of str
        A line a fault.
    """
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site}: no page"]
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: loads {url}" for url in page.loaded if urlsplit(url).netloc]
        local = [url for url in (*page.links, *page.loaded) if not urlsplit(url).scheme]
        found += [f"{name}: {url} is not there" for url in local if not _exists(path, url, pages)]
    sheets = [sheet for sheet in site.rglob("*.css") if IMPORTED.search(sheet.read_text(encoding="utf-8"))]
    return [*found, *(f"{sheet.relative_to(site)}: loads from elsewhere" for sheet in sheets)]


def _exists(path: Path, url: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(url)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return bool(parts.netloc)
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].anchors


def main(folder: str) -> int:
    """Print the faults of a site.

    Parameters
    ----------
    folder : str

    Returns
    -------
    int
        1 when there are any, else 0.
    """
    found = faults(Path(folder).resolve())
    print("\n".join(found) or f"{folder}: every link leads somewhere, nothing is loaded from elsewhere")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
