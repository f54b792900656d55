"""``python -m spo_fast`` is the command ``spo-fast``."""

from __future__ import annotations

import sys

from spo_fast.cli import main

if __name__ == "__main__":
    sys.exit(main())
