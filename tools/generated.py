"""What the generators share: they write their files, or with ``--check`` tell which are out of date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_check(texts: dict[Path, str]) -> int:
    """Write each text to its path below the root; with ``--check`` compare, and return 1 if one differs."""
    stale = [path for path, text in texts.items() if not same(ROOT / path, text)]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path} is not what {sys.argv[0]} makes", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        (ROOT / path).write_text(texts[path])
    return 0


def same(path: Path, text: str) -> bool:
    """Whether the file holds exactly this text."""
    return path.is_file() and path.read_text() == text
