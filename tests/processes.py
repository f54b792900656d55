"""Programs that run in processes of their own, so that what happens to them happens to no test."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

LIMIT = 60  # seconds that a program may take to end after its signal


def interrupted(script, seconds):
    """Send SIGINT some seconds after a program has printed "ready"; what it prints afterwards.

    The program must end well.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "ready\n", child.stderr.read()
        time.sleep(seconds)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=LIMIT)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, err
    return out
