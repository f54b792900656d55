"""Most of this needs PyTorch, which the extra "test" brings."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is missing: pip install 'spo-fast[torch]'")
