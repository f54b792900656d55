"""What each backend does to the process it is loaded into: exits, signals, forks, threads, memory.

Every test runs in a process of its own under a time limit, since what it looks for ends in hangs and crashes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import require

from spo_fast.backends import foreign, libraries

LIMIT = 120  # seconds that a hanging process is given
EXITS = 50

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals, forks and /proc as Linux has them")

PREAMBLE = """
import sys
import numpy as np
import spo_fast
name = {name!r}
knm = np.ones((16, 16)) - np.eye(16)
theta = np.linspace(0.0, 6.0, 16)

def call():
    return float(spo_fast.modulate(knm, theta, backend=name).sum())
"""


@pytest.fixture(scope="module", params=["cython", "numba", *foreign.NAMES])
def name(request):
    require(request.param)
    return request.param


def start(name, program, **options):
    """A Python process that runs the program after the preamble."""
    text = PREAMBLE.format(name=name) + textwrap.dedent(program)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", text], **pipes, **options)


def finish(process):
    """Output of a process that ends well; a hang and a bad end fail with what it said."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"the process hangs: {process.communicate()}")
    assert process.returncode == 0, f"ended with {process.returncode}: {out} {err}"
    return out


def run(name, program, **options):
    return finish(start(name, program, **options))


# ---------------------------------------------------------------- exits


def test_clean_exits(name):
    if name == "numba":
        pytest.skip("Numba is a Python library like any other; its exits are its own")
    with ThreadPoolExecutor(2) as pool:
        outputs = set(pool.map(lambda _: run(name, "print(repr(call()))"), range(EXITS)))
    assert len(outputs) == 1, outputs


def test_an_exit_by_an_exception_or_from_a_thread_is_clean(name):
    out = run(
        name,
        """
        import atexit, threading
        call()
        atexit.register(lambda: print(call() > 0.0))
        threading.Thread(target=lambda: print("thread")).start()
        sys.exit(0)
        """,
    )
    assert sorted(out.split()) == ["True", "thread"]


# ---------------------------------------------------------------- signals

RAW_HANDLERS = """
import ctypes, signal
libc = ctypes.CDLL(None)

def handlers():
    "The kernel's word on each handler: 152 bytes hold a sigaction everywhere."
    found = {}
    for number in signal.valid_signals():
        buffer = ctypes.create_string_buffer(256)
        libc.sigaction(int(number), None, buffer)
        found[int(number)] = int.from_bytes(buffer.raw[:8], "little")
    return found

def python_handlers():
    return {number: signal.getsignal(number) for number in signal.valid_signals()}
"""


def test_signals_that_python_handles_stay_its_own(name):
    out = run(
        name,
        RAW_HANDLERS
        + textwrap.dedent(
            """
            import subprocess
            before, python_before = handlers(), python_handlers()
            call()
            after = handlers()
            assert python_handlers() == python_before
            for watched in ("INT", "TERM", "CHLD", "PROF", "ALRM", "USR1", "PIPE", "HUP"):
                number = int(getattr(signal, f"SIG{watched}"))
                assert after[number] == before[number], watched
            print(subprocess.run(["true"]).returncode, subprocess.run(["false"]).returncode)
            """
        ),
    )
    assert out == "0 1\n"


def test_faulthandler_still_tells_of_a_crash(name):
    process = start(name, "import faulthandler; faulthandler.enable(); call(); faulthandler._sigsegv()")
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in err and "_sigsegv" in err.replace("<module>", "_sigsegv")


def test_a_profiling_timer_is_served(name):
    out = run(
        name,
        """
        import signal, time
        ticks = []
        call()
        signal.signal(signal.SIGPROF, lambda *_: ticks.append(1))
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
        end = time.process_time() + 0.5
        while time.process_time() < end:
            call()
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        print(len(ticks) > 10, call() > 0.0)
        """,
    )
    assert out == "True True\n"


def test_ctrl_c_interrupts_a_run_and_the_next_call_is_right(name):
    process = start(
        name,
        """
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background ignores
        expected = call()

        def simulate(n_steps):
            spo_fast.simulate(theta, 1.0, knm, dt=1e-3, n_steps=n_steps, backend=name, observe=())

        simulate(1)  # compiles: an interrupt that reaches a callback of the compiler is lost there
        print("ready", flush=True)
        try:
            simulate(10**9)
        except KeyboardInterrupt:
            print("interrupted", call() == expected)
        """,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert finish(process) == "interrupted True\n"


# ---------------------------------------------------------------- forks and threads

FORK = """
import os, signal
expected = call()
child = os.fork()
if child == 0:
    signal.alarm(10)
    try:
        good = call() == expected
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(3)
    os._exit(0 if good else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, call() == expected)
print(os.getpid())
"""


def test_a_forked_child_works_or_is_told_why_not(name):
    out = run(name, FORK).splitlines()
    parent = out.pop()
    if name in foreign.NO_FORKS:
        assert f"backend {name!r} was loaded in process {parent} and cannot be used in its fork" in out[0]
        assert "does not survive a fork" in out[0] and "spawn" in out[0]
        assert out[1:] == ["3 True"]
    else:
        assert out == ["0 True"]


def test_a_child_may_be_the_first_to_load_it(name):
    out = run(
        name,
        """
        import os
        spo_fast.backends()
        child = os.fork()
        if child == 0:
            os._exit(0 if call() > 0.0 else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    )
    assert out == "0\n"


def test_a_second_thread_works_or_is_told_why_not(name):
    out = run(
        name,
        """
        import threading
        expected = call()

        def work():
            try:
                print(call() == expected)
            except RuntimeError as error:
                print("RuntimeError", error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(call() == expected)
        """,
    ).splitlines()
    if name == "julia":
        assert out[0].startswith("RuntimeError") and "thread" in out[0]
    else:
        assert out[0] == "True"
    assert out[1] == "True"


def test_threads_that_come_and_go_are_not_taken_for_each_other(name):
    out = run(
        name,
        """
        from concurrent.futures import ThreadPoolExecutor
        for _ in range(4):
            with ThreadPoolExecutor(1) as pool:
                try:
                    print(pool.submit(call).result() > 0.0)
                except RuntimeError as error:
                    print("thread" in str(error))
        """,
    )
    assert out == "True\n" * 4


def test_a_fork_while_another_thread_loads_a_backend_does_not_hang_the_child(name):
    out = run(
        name,
        """
        import os, signal, threading, time
        import spo_fast.backends.foreign, spo_fast.backends.reference
        from spo_fast.backends import registry
        real = registry._module
        started = threading.Event()

        def slow(name):
            started.set()
            time.sleep(0.5)
            return real(name)

        registry._module = slow
        thread = threading.Thread(target=call)
        thread.start()
        started.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            spo_fast.modulate(knm, theta, backend="numpy")
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        thread.join()
        """,
    )
    assert out == "0\n"


# ---------------------------------------------------------------- memory and arithmetic


def test_a_million_calls_leave_memory_flat(name):
    out = run(
        name,
        """
        from spo_fast.backends import registry

        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096

        plan = registry.load(name).ModulationPlan(spo_fast.Modulator(knm[:4, :4], backend=name).parameters)
        small, phases, out = np.array(knm[:4, :4]), theta[:4].copy(), np.empty((4, 4))
        def calls(count):
            for _ in range(count):
                plan(small, phases, out)
        calls(100_000)
        before = resident()
        calls(1_000_000)
        print(resident() - before)
        """,
    )
    assert int(out) < 4 << 20


def test_the_floating_point_mode_is_untouched(name):
    out = run(
        name,
        """
        import ctypes
        libm = ctypes.CDLL("libm.so.6")
        mode = lambda: (libm.fegetround(), libm.fegetexcept())
        tiny = np.array([2.3e-308])
        before = mode()
        call()
        spo_fast.simulate(theta, 1.0, knm, dt=0.1, n_steps=5, method="rk45", modulation={}, backend=name)
        print(mode() == before, float((tiny / 2)[0]) > 0.0, float((np.array([5e-324]) * 1.0)[0]) > 0.0)
        """,
    )
    assert out == "True True True\n"


# ---------------------------------------------------------------- together


def test_all_of_them_in_one_process():
    names = ["cython", "numba", *foreign.NAMES]
    for name in names:
        require(name)
    for order in (names, names[::-1]):
        program = f"""
        sums = []
        for name in {order!r}:
            sums.append(call())
            spo_fast.simulate(theta, 1.0, knm, dt=0.1, n_steps=9, modulation={{}}, backend=name)
        for name in {order!r}:
            sums.append(call())
        print(max(sums) - min(sums) <= 1e-12 * max(sums))
        """
        assert run("numpy", program) == "True\n"


OTHER_GO = """
package main

import "C"

//export answer
func answer() int32 { return 42 }

func main() {}
"""


@pytest.mark.parametrize("first", ["ours", "other"])
def test_another_go_library_in_the_process_does_not_hang_it(tmp_path, first):
    require("go")
    program = libraries.toolchain("go")
    if program is None:
        pytest.skip("needs Go to build another Go library")
    (tmp_path / "main.go").write_text(OTHER_GO)
    (tmp_path / "go.mod").write_text("module other\n\ngo 1.21\n")
    other = tmp_path / "libother.so"
    command = [program, "build", "-buildmode=c-shared", "-o", other, "."]
    variables = os.environ | libraries.LANGUAGES["go"].variables
    subprocess.run(command, cwd=tmp_path, env=variables, check=True, timeout=600)
    process = start(
        "go",
        f"""
        import ctypes
        def other():
            return ctypes.CDLL({str(other)!r}).answer()
        def ours():
            return call() > 0.0
        for step in {["ours", "other"] if first == "ours" else ["other", "ours"]!r} * 2:
            print({{"ours": ours, "other": other}}[step](), flush=True)
        """,
    )
    expected = ["True", "42"] if first == "ours" else ["42", "True"]
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail("two Go libraries in one process hang it")
    # Two Go runtimes in one process are beyond what Go promises: they may refuse, with a word, but not hang.
    assert (process.returncode == 0 and out.split() == expected * 2) or err, (out, err)
