"""Programs that run in processes of their own, so that what happens to them happens to no test."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import sysconfig
import time

import pytest

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


def compiler():
    """Name of the C compiler; a skip where there is none."""
    name = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not shutil.which(name):
        pytest.skip(f"no C compiler ({name})")
    return name


def finished(command, folder, seconds=300, **settings):
    """Output of a program that must end well, in a folder, with `settings` of ``subprocess.run``."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False, **settings
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
