"""Several workers: the same bits on every path, and good manners of their threads.

Below the sizes from which threads pay, `split` has the C core hand jobs over all the same, cut into the
smallest parts.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
from conftest import require
from processes import interrupted

import spo_fast

WORKERS = (2, 3, 7)
CROWDS = (("smallest", 9), ("smallest", 70), ("worthwhile", 530))
MODULATIONS = {
    "moments": {"algorithm": "moments"},
    "direct": {"algorithm": "direct"},
    "band": {"block_size": 5},
    "three heads of two": {"n_heads": 3, "w_o": np.eye(6)},
}


@pytest.fixture(scope="module")
def core():
    require("cython")
    return pytest.importorskip("spo_fast._core")


@pytest.fixture(params=CROWDS, ids=lambda crowd: f"{crowd[0]}-{crowd[1]}")
def n(request, core):
    """A number of oscillators whose jobs are handed over."""
    core.split(request.param[0])
    yield request.param[1]
    core.split("worthwhile")


@pytest.fixture
def smallest(core):
    """Every job is handed over, in the smallest parts."""
    core.split("smallest")
    yield
    core.split("worthwhile")


def couplings(rng, n):
    """Kinds of matrices that are walked or masked differently."""
    full = rng.random((n, n)) / n
    full = np.triu(full, 1) + np.triu(full, 1).T
    holes = full * (np.triu(rng.random((n, n)) < 0.9, 1) | np.triu(rng.random((n, n)) < 0.0, 1))
    rounded = full * (1.0 + 1e-14 * rng.random((n, n)))
    one_sided = full.copy()
    one_sided[0, n - 1] = 0.0
    one_sided[n - 1, 0] = 1e-13
    return {"full": full, "holes": holes + holes.T, "rounded": rounded, "one-sided": one_sided}


def edges(rng, n):
    """A sparse symmetric matrix."""
    half = scipy.sparse.random_array((n, n), density=min(1.0, 6.0 / n), rng=rng)
    half = scipy.sparse.triu(half, 1)
    return scipy.sparse.csr_array(half + half.T)


def same_runs(left, right):
    """Whether two simulations hold the same bits."""
    pairs = [
        (getattr(left, name), getattr(right, name)) for name in ("theta", "t", "R", "psi", "final", "dt")
    ]
    return all(np.array_equal(a, b) for a, b in pairs if a is not None)


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize("name", MODULATIONS)
def test_bits_of_modulations(core, rng, n, name):
    theta, keywords = rng.uniform(0, 7, n), MODULATIONS[name]
    for kind, knm in couplings(rng, n).items():
        if kind == "one-sided" and name == "moments":
            continue  # refused
        expected = spo_fast.modulate(knm, theta, **keywords)
        units = spo_fast.Modulator(knm, **keywords).factors(theta)
        for workers in WORKERS:
            modulator = spo_fast.Modulator(knm, workers=workers, **keywords)
            assert np.array_equal(spo_fast.modulate(knm, theta, workers=workers, **keywords), expected)
            assert np.array_equal(modulator(theta), expected)
            assert np.array_equal(modulator.factors(theta), units)


def test_bits_where_sums_of_the_moments_cannot_be_trusted(core, rng, n):
    """A far oscillator sees the others so faintly that its row is done again."""
    theta = np.append(rng.uniform(0, 0.01, n - 1), np.pi)
    knm, keywords = couplings(rng, n)["full"], {"algorithm": "moments", "temperature": 0.25}
    expected = spo_fast.modulate(knm, theta, **keywords)
    assert all(
        np.array_equal(spo_fast.modulate(knm, theta, workers=w, **keywords), expected) for w in WORKERS
    )


@pytest.mark.parametrize("walk", ["auto", "whole", "fused", "kept"])
@pytest.mark.parametrize("method", ["euler", "rk4", "rk45"])
def test_bits_of_runs(core, rng, n, walk, method):
    theta, knm = rng.uniform(0, 7, n), couplings(rng, n)["holes"]
    given = {
        "dt": 0.05,
        "n_steps": 3,
        "method": method,
        "zeta": 0.2,
        "observe": ("R", "psi"),
        "record_every": 1,
    }
    core.prefer_walk(walk)
    try:
        for alpha in (None, 0.3, rng.uniform(-1, 1, (n, n))):
            for more in ({}, {"modulation": {}, "modulate_every": 2}):
                given.update(alpha=alpha)
                expected = spo_fast.simulate(theta, 1.0, knm, **given, **more)
                for workers in WORKERS if alpha is None else (3,):
                    run = spo_fast.simulate(theta, 1.0, knm, workers=workers, **given, **more)
                    assert same_runs(run, expected)
    finally:
        core.prefer_walk("auto")


@pytest.mark.parametrize(("split", "n"), [("smallest", 9), ("smallest", 70), ("worthwhile", 9000)])
def test_bits_of_sparse_couplings(core, rng, split, n):
    knm, theta = edges(rng, n), rng.uniform(0, 7, n)
    lags = knm.copy()
    lags.data = rng.uniform(-1, 1, lags.nnz)
    wide = {"n_heads": 2, "w_o": np.eye(6)}
    core.split(split)
    try:
        for keywords in ({}, wide):
            expected = spo_fast.modulate(knm, theta, **keywords).data
            for workers in WORKERS:
                modulated = spo_fast.modulate(knm, theta, workers=workers, **keywords)
                assert np.array_equal(modulated.data, expected)
        for more in ({}, {"modulation": {}}, {"alpha": lags}, {"alpha": lags, "modulation": {}}):
            given = {"dt": 0.05, "n_steps": 2, "zeta": 0.1, **more}
            expected = spo_fast.simulate(theta, 1.0, knm, **given)
            for workers in WORKERS:
                assert same_runs(spo_fast.simulate(theta, 1.0, knm, workers=workers, **given), expected)
    finally:
        core.split("worthwhile")


@pytest.mark.parametrize("kind", ["together", "modulated together", "adaptive", "own couplings", "sparse"])
@pytest.mark.parametrize("members", [1, 4, 37])
def test_bits_of_ensembles(sparse_backend, rng, kind, members):
    size = 8
    knm, theta = couplings(rng, size)["full"], rng.uniform(0, 7, (members, size))
    given = {"dt": 0.05, "n_steps": 4, "observe": ("R", "psi"), "record_every": 2, "backend": sparse_backend}
    if kind == "modulated together":
        given.update(modulation={"lambda_": rng.uniform(0, 1, members)})
    elif kind == "adaptive":
        given.update(method="rk45", modulation={})
    elif kind == "own couplings":
        knm = np.array([couplings(rng, size)["full"] for _ in range(members)])
    elif kind == "sparse":
        knm = scipy.sparse.csr_array(knm)
    omega = rng.normal(1, 0.1, (members, size))
    omega[0, 0] = np.float64(1e308)  # this one fails, alone
    given["dt"] = 10.0 if kind == "together" else given["dt"]
    expected = spo_fast.simulate(theta, omega, knm, **given)
    for workers in WORKERS:
        run = spo_fast.simulate(theta, omega, knm, workers=workers, **given)
        assert np.array_equal(run.status, expected.status)
        for name in ("theta", "R", "psi", "final"):
            assert np.array_equal(getattr(run, name), getattr(expected, name), equal_nan=True)


def test_members_are_followed_by_python_threads_until_one_cannot_be(monkeypatch, rng):
    """The error of a thread is that of the call, and nobody goes on."""
    from spo_fast import runs

    turns = []

    def fails(integration, count, record, bar):
        turns.append(len(turns))
        if len(turns) == 3:
            raise MemoryError("no room")
        time.sleep(0.01)
        bar.update(count)
        return 0

    monkeypatch.setattr(runs, "advance", fails)
    knm, theta = np.ones((4, 4)) - np.eye(4), rng.random((500, 4))
    given = {"dt": 0.1, "n_steps": 1, "method": "rk45", "backend": "numpy", "workers": 2}
    with pytest.raises(MemoryError, match="no room"):
        spo_fast.simulate(theta, 1.0, knm, **given)
    assert len(turns) < 10


def test_more_workers_than_parts_and_any_integer(core, rng, n):
    theta, knm = rng.uniform(0, 7, n), couplings(rng, n)["full"]
    expected = spo_fast.modulate(knm, theta)
    for workers in (1000, 2**40):
        assert np.array_equal(spo_fast.modulate(knm, theta, workers=workers), expected)
    given = {"dt": 0.1, "n_steps": 2}
    expected = spo_fast.simulate(theta, 1.0, knm, **given)
    assert same_runs(spo_fast.simulate(theta, 1.0, knm, workers=2**40, **given), expected)


def test_a_modulator_keeps_its_workers(core):
    modulator = spo_fast.Modulator(np.ones((3, 3)) - np.eye(3), workers=2, backend="cython")
    assert pickle.loads(pickle.dumps(modulator)).parameters.workers == modulator.parameters.workers == 2


def test_faults_are_found_whoever_looks(smallest, rng):
    full, theta = couplings(rng, 40)["full"], rng.uniform(0, 7, 40)
    for at, value, text in (
        ((3, 30), np.nan, "finite"),
        ((31, 2), 9.0, "symmetric"),
        ((39, 39), 1.0, "diagonal"),
    ):
        knm = full.copy()
        knm[at] = value
        with pytest.raises(ValueError, match=text):
            spo_fast.modulate(knm, theta, workers=3, backend="cython")
    theta[33] = np.inf
    for algorithm in ("direct", "moments"):
        with pytest.raises(ValueError, match="theta"):
            spo_fast.modulate(full, theta, workers=3, backend="cython", algorithm=algorithm)


def test_threads_compute_in_the_mode_of_their_caller(smallest, rng):
    """Rounded upwards, every worker rounds upwards."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("needs the rounding modes of Linux on x86-64")
    library = ctypes.CDLL("libm.so.6")
    knm, theta = couplings(rng, 70)["full"], rng.uniform(0, 7, 70)
    one, three = (spo_fast.Modulator(knm, backend="cython", workers=w) for w in (1, 3))
    nearest = three(theta)
    library.fesetround(0x800)
    try:
        upwards = [one(theta), *(three(theta) for _ in range(5))]
    finally:
        library.fesetround(0)
    assert all(np.array_equal(upwards[0], other) for other in upwards)
    assert not np.array_equal(upwards[0], nearest)


# ---------------------------------------------------------------- threads


def test_eight_threads_at_once(core, rng):
    knm, phases = couplings(rng, 300)["full"], rng.uniform(0, 7, (8, 300))
    expected = [spo_fast.modulate(knm, theta) for theta in phases]

    def work(k):
        given = {"dt": 0.1, "n_steps": 3, "modulation": {}}
        runs = [spo_fast.simulate(phases[k], 1.0, knm, workers=w, **given) for w in (1, 2)]
        found = [spo_fast.modulate(knm, phases[k], workers=2) for _ in range(20)]
        return same_runs(*runs) and all(np.array_equal(out, expected[k]) for out in found)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


START = """
    import os, signal, sys, threading, time
    from pathlib import Path
    import numpy as np
    import spo_fast
    from spo_fast import _core

    rng = np.random.default_rng(0)
    n = 320
    knm = rng.random((n, n)) / n
    knm = np.triu(knm, 1) + np.triu(knm, 1).T
    theta, out = rng.uniform(0, 7, n), np.empty((n, n))

    def modulate(workers=2):
        return spo_fast.modulate(knm, theta, out=out, workers=workers, backend="cython")

    def run(n_steps, workers=2):
        given = {"dt": 1e-3, "n_steps": n_steps, "modulation": {}, "observe": (), "backend": "cython"}
        return spo_fast.simulate(theta, 1.0, knm, workers=workers, **given).final

    def pool_threads():
        tasks = [path for path in Path("/proc/self/task").iterdir()]
        return [path for path in tasks if (path / "comm").read_text() == "spo_fast\\n"]
"""


def elsewhere(program, **options):
    """What a program prints that begins with `START`; it ends well, with no word on standard error."""
    script = textwrap.dedent(START) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def needs_linux():
    if sys.platform != "linux":
        pytest.skip("looks at threads through /proc")


def test_forks_in_every_state(core):
    """A child of a process whose threads do not exist yet, work, look on or sleep has threads of its own."""
    needs_linux()
    elsewhere("""
        expected = run(3, workers=1)

        def child():
            pid = os.fork()
            if pid == 0:
                signal.alarm(30)
                good = np.array_equal(run(3), expected) and len(pool_threads()) <= 1
                os._exit(0 if good else 1)
            assert os.waitpid(pid, 0)[1] == 0

        child()                      # no thread yet
        run(3)
        child()                      # looking on
        time.sleep(0.1)
        child()                      # asleep
        ended = threading.Event()

        def busy():
            while not ended.is_set():
                run(20)

        threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            child()                  # at work
        ended.set()
        for thread in threads:
            thread.join()
        assert np.array_equal(run(3), expected)
    """)


def test_signals_belong_to_the_threads_of_the_program(core):
    """Threads of the pool block all but those of their own faults; a profiler's timer ticks on."""
    needs_linux()
    program = """
        ticks = []
        modulate()
        masks = [(path / "status").read_text().split("SigBlk:")[1].split()[0] for path in pool_threads()]
        signal.signal(signal.SIGPROF, lambda *_: ticks.append(0))
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
        while len(ticks) < 5:
            run(50)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        print(*masks)
    """
    (mask,) = (int(word, 16) for word in elsewhere(program).split())
    free = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    assert all(
        (mask >> number - 1 & 1) == (number not in free) for number in range(1, 32) if number not in (9, 19)
    )


@pytest.mark.parametrize("ensemble", [False, True])
def test_interrupt_while_workers_run(core, ensemble):
    """SIGINT ends a run of days by several workers; what follows is right."""
    call = "run(10**9)"
    if ensemble:
        call = """spo_fast.simulate(rng.random((4, n)), 1.0, knm, dt=1e-3, n_steps=10**8, method="rk45",
                                    workers=2, backend="cython")"""
    program = f"""
        expected = run(3, workers=1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("ready", flush=True)
        try:
            {call}
        except KeyboardInterrupt:
            assert np.array_equal(run(3), expected)
            assert threading.active_count() == 1
            print("interrupted", flush=True)
    """
    script = textwrap.dedent(START) + textwrap.dedent(program)
    assert interrupted(script, 0.5) == "interrupted\n"


def test_memory_stays_flat_and_threads_few(core):
    """A hundred thousand calls take no memory, and no more threads than were asked for."""
    needs_linux()
    program = """
        _core.split("smallest")
        small, few = np.ones((16, 16)) - np.eye(16), theta[:16].copy()
        out = np.empty((16, 16))

        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        for calls in (20000, 80000):
            for _ in range(calls):
                spo_fast.modulate(small, few, out=out, workers=2, backend="cython")
            before = before if calls > 20000 else resident()
        assert len(pool_threads()) == 1
        for workers in (4, 3, 4):
            spo_fast.modulate(small, few, workers=workers, backend="cython")
        print(resident() - before, len(pool_threads()))
    """
    grown, threads = map(int, elsewhere(program).split())
    assert grown < 1_000_000
    assert threads <= 3


def test_threads_that_cannot_be_made_are_done_without(core):
    """Where no more memory may be mapped the caller does all the work."""
    needs_linux()
    program = """
        import resource
        expected = modulate(workers=1).copy()
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        room = 700_000  # for a call's scratch, not for a thread's stack
        resource.setrlimit(resource.RLIMIT_AS, (size + room, resource.RLIM_INFINITY))
        found = modulate(workers=4)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert np.array_equal(found, expected)
        print(len(pool_threads()))
    """
    assert elsewhere(program) == "0\n"


def test_a_process_ends_while_its_threads_sleep_or_work(core):
    for program in (
        "modulate()",
        "threading.Thread(target=run, args=(10**9,), daemon=True).start()\ntime.sleep(0.1)",
    ):
        for _ in range(3):
            elsewhere(program)


def test_one_worker_makes_no_thread(core):
    needs_linux()
    assert elsewhere("modulate(1); run(5, 1); print(len(pool_threads()))") == "0\n"
