"""Work for the runner, in a module that its processes can import."""

from __future__ import annotations

import os
import time


def execute(run, settings, report):
    """Take as long as the settings say; fail or die when they say so."""
    if run["seed"] == settings.get("fails"):
        raise ValueError("this one fails")
    if run["seed"] == settings.get("dies"):
        os._exit(9)
    for _ in range(run["steps"]):
        time.sleep(settings.get("seconds", 0.0))
        report(1)
    return {"pid": os.getpid(), "result": run["seed"] ** 2}
