"""Runs that are killed and go on: the bits of one that was not, whatever the method; damage is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from processes import LIMIT
from samples import METHODS, network, phases, same_bits, symmetric

from spo_fast import Modulator, Simulation, SimulationError, checkpoints, simulate

FIELDS = ("t", "theta", "t_observe", "R", "psi", "final", "dt", "status", "steps")


class Killed(BaseException):
    """Stands for the end of a process where a test wants it at a certain place."""


@pytest.fixture
def kill_after(monkeypatch):
    """Make a run end right after so many checkpoints."""
    write = checkpoints._write

    def arrange(count):
        left = [count]

        def then_die(*arguments):
            write(*arguments)
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        monkeypatch.setattr(checkpoints, "_write", then_die)

    yield arrange
    monkeypatch.setattr(checkpoints, "_write", write)


def assert_same(a, b):
    for name in FIELDS:
        first, second = getattr(a, name), getattr(b, name)
        assert (first is None) == (second is None), name
        assert first is None or same_bits(np.asarray(first), np.asarray(second)), name


def broken(arguments, path, kill_after, *, every=7, count=2, **options):
    """What a run gives that was killed after its `count`-th checkpoint and called again."""
    kill_after(count)
    with pytest.raises(Killed):
        simulate(**arguments, **options, checkpoint=path, checkpoint_every=every)
    kill_after(-1)
    assert path.exists()
    return simulate(**arguments, **options, checkpoint=path, checkpoint_every=every)


def problem(rng, n=9, m=0, *, density=1.0):
    knm = symmetric(rng, n, density, high=4.0 / n)
    theta = phases(rng, n) if m == 0 else rng.uniform(0.0, 7.0, (m, n))
    omega = rng.normal(1.0, 2.0, theta.shape)
    return {"theta": theta, "omega": omega, "knm": knm, "dt": 0.05, "n_steps": 40}


RECORDINGS = [
    {},
    {"record_every": 3, "observe": ("R", "psi")},
    {"record_every": 40, "observe": ()},
    {"record_every": 1, "observe": ("psi",)},
]

# ---------------------------------------------------------------- one run


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recorded", RECORDINGS)
def test_a_broken_run_has_the_bits_of_a_whole_one(backend, rng, tmp_path, kill_after, method, recorded):
    arguments = problem(rng) | {"method": method, "backend": backend, "zeta": 0.3, **recorded}
    whole = simulate(**arguments)
    assert_same(broken(arguments, tmp_path / "run", kill_after), whole)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kept", [1, 4, 11])
def test_a_modulated_run(backend, rng, tmp_path, kill_after, method, kept):
    arguments = problem(rng) | {"method": method, "backend": backend, "record_every": 5}
    arguments |= {"modulation": {"lambda_": 1.5, "temperature": 0.5}, "modulate_every": kept}
    whole = simulate(**arguments)
    assert_same(broken(arguments, tmp_path / "run", kill_after), whole)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulated", [False, True])
def test_a_sparse_run(sparse_backend, rng, tmp_path, kill_after, method, modulated):
    sparse = pytest.importorskip("scipy.sparse")
    arguments = problem(rng, density=0.4) | {"method": method, "backend": sparse_backend}
    arguments["knm"] = sparse.csr_array(arguments["knm"])
    if modulated:
        arguments |= {"modulation": Modulator(arguments["knm"], backend=sparse_backend), "modulate_every": 3}
    whole = simulate(**arguments)
    assert_same(broken(arguments, tmp_path / "run", kill_after), whole)


def test_phase_lags(backend, rng, tmp_path, kill_after):
    theta, omega, knm, alpha = network(rng, 6)
    arguments = {"theta": theta, "omega": omega, "knm": knm, "alpha": alpha, "dt": 0.1, "n_steps": 30}
    arguments["backend"] = backend
    assert_same(broken(arguments, tmp_path / "run", kill_after), simulate(**arguments))


@pytest.mark.parametrize("count", range(1, 6))
def test_any_checkpoint_will_do(rng, tmp_path, kill_after, count):
    arguments = problem(rng) | {"method": "rk45", "record_every": 4}
    assert_same(broken(arguments, tmp_path / "run", kill_after, count=count), simulate(**arguments))


def test_a_run_may_be_killed_many_times(rng, tmp_path, kill_after):
    arguments = problem(rng) | {"method": "rk45", "record_every": 1}
    for _ in range(5):
        kill_after(1)
        with pytest.raises(Killed):
            simulate(**arguments, checkpoint=tmp_path / "run", checkpoint_every=7)
    kill_after(-1)
    again = simulate(**arguments, checkpoint=tmp_path / "run", checkpoint_every=13)  # the distance may change
    assert_same(again, simulate(**arguments))


@pytest.mark.parametrize("kept", [1, 7])
def test_more_steps_go_on_beyond_the_end(rng, tmp_path, kept):
    arguments = problem(rng) | {"method": "rk45", "record_every": 3, "modulation": {}, "modulate_every": kept}
    whole = simulate(**arguments)
    first = simulate(**arguments | {"n_steps": 23}, checkpoint=tmp_path / "run", checkpoint_every=10)
    assert_same(first, simulate(**arguments | {"n_steps": 23}))
    assert_same(simulate(**arguments, checkpoint=tmp_path / "run", checkpoint_every=10), whole)


def test_a_run_that_has_ended_takes_no_step(rng, tmp_path, monkeypatch):
    arguments = problem(rng) | {"record_every": 3, "checkpoint": tmp_path / "run", "checkpoint_every": 10}
    whole = simulate(**arguments)
    taken = []
    advance = checkpoints.advance
    monkeypatch.setattr(
        checkpoints, "advance", lambda i, count, *rest: taken.append(count) or advance(i, count, *rest)
    )
    assert_same(simulate(**arguments), whole)
    assert taken == [0]


def test_no_steps_and_nobody(rng, tmp_path):
    path = tmp_path / "run"
    nothing = simulate([], 1.0, np.empty((0, 0)), dt=0.1, n_steps=5, checkpoint=path, checkpoint_every=2)
    again = simulate([], 1.0, np.empty((0, 0)), dt=0.1, n_steps=5, checkpoint=path, checkpoint_every=2)
    assert_same(nothing, again)
    simulate([1.0], 1.0, [[0.0]], dt=0.1, n_steps=0, checkpoint=tmp_path / "none", checkpoint_every=2)
    assert not (tmp_path / "none").exists()


def failing(own):
    """Three members, of which the second fails in its second step: omega_0 + K_01 is beyond the doubles."""
    knm = np.zeros((2, 2))
    knm[0, 1] = 1e308
    omega = np.array([[-1e308, 0.0], [1e308, 0.0], [-1e308, 1.0]])
    if own:
        omega, knm = omega[1], np.stack([np.zeros((2, 2)), knm, np.zeros((2, 2))])
    options = {"dt": 2.3e-308, "n_steps": 6, "method": "euler"}
    return {"theta": np.tile([0.0, 3.3], (3, 1)), "omega": omega, "knm": knm} | options


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_a_run_that_fails_fails_again(backend, tmp_path):
    arguments = failing(own=False) | {"backend": backend}
    arguments |= {"theta": [0.0, 3.3], "omega": arguments["omega"][1]}
    with pytest.raises(SimulationError, match="step 2,") as whole:
        simulate(**arguments)
    for _ in range(2):
        with pytest.raises(SimulationError, match="step 2,") as error:
            simulate(**arguments, checkpoint=tmp_path / "run", checkpoint_every=1)
        assert_same(error.value.result, whole.value.result)
    assert (tmp_path / "run").exists()


def test_the_progress_bar_counts_what_was_done(rng, tmp_path, kill_after, capsys):
    pytest.importorskip("tqdm")
    broken(problem(rng), tmp_path / "run", kill_after, progress=True)
    assert "40/40" in capsys.readouterr().err


# ---------------------------------------------------------------- ensembles


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_an_ensemble(backend, rng, tmp_path, kill_after, method, modulated, count):
    arguments = problem(rng, m=5) | {"method": method, "backend": backend, "record_every": 6, "observe": "R"}
    arguments["observe"] = ("R", "psi")
    if modulated:
        arguments |= {"modulation": {"lambda_": np.linspace(0.0, 2.0, 5)}, "modulate_every": 3}
    whole = simulate(**arguments)
    assert_same(broken(arguments, tmp_path / "run", kill_after, count=count), whole)


@pytest.mark.parametrize("workers", [1, 3])
def test_members_with_couplings_of_their_own(backend, rng, tmp_path, kill_after, workers):
    arguments = problem(rng, m=6) | {"backend": backend, "record_every": 1, "method": "rk45"}
    arguments["knm"] = rng.uniform(size=(6, 9, 9))
    whole = simulate(**arguments)
    options = {"workers": workers, "count": 2}
    assert_same(broken(arguments, tmp_path / "run", kill_after, **options), whole)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("count", [1, 4])
def test_a_member_that_fails(backend, tmp_path, kill_after, own, count):
    arguments = failing(own) | {"backend": backend, "record_every": 2, "observe": ("R", "psi")}
    whole = simulate(**arguments)
    assert whole.steps.tolist() == [6, 1, 6]
    assert_same(broken(arguments, tmp_path / "run", kill_after, every=1, count=count), whole)


def test_an_ensemble_goes_on_beyond_its_end(backend, rng, tmp_path):
    arguments = problem(rng, m=4) | {"backend": backend, "record_every": 3}
    whole = simulate(**arguments)
    options = {"checkpoint": tmp_path / "run", "checkpoint_every": 5}
    simulate(**arguments | {"n_steps": 17}, **options)
    assert_same(simulate(**arguments, **options), whole)


# ---------------------------------------------------------------- other runs


CHANGES = {
    "theta": np.arange(9.0),
    "omega": 2.0,
    "knm": np.zeros((9, 9)),
    "alpha": 0.2,
    "zeta": 0.1,
    "psi": 0.1,
    "dt": 0.06,
    "method": "euler",
    "record_every": 2,
    "observe": ("psi",),
    "modulation": {"lambda_": 0.25},
    "modulate_every": 2,
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_run_is_refused(rng, tmp_path, name):
    arguments = problem(rng) | {"modulation": {}, "checkpoint": tmp_path / "run", "checkpoint_every": 10}
    simulate(**arguments)
    content = (tmp_path / "run").read_bytes()
    told = {"modulation": "lambda_ was 0.5 and is 0.25"}.get(name, name)
    with pytest.raises(ValueError, match=f"is of another run: {told}"):
        simulate(**arguments | {name: CHANGES[name]})
    assert (tmp_path / "run").read_bytes() == content


def test_all_that_differs_is_told(rng, tmp_path):
    arguments = problem(rng) | {"checkpoint": tmp_path / "run", "checkpoint_every": 10}
    simulate(**arguments)
    with pytest.raises(ValueError, match=r"knm is another one; dt was 0.05 and is 0.1; give another path"):
        simulate(**arguments | {"knm": np.zeros((9, 9)), "dt": 0.1})


def test_tolerances_matter_where_they_are_used(rng, tmp_path):
    options = {"checkpoint": tmp_path / "run", "checkpoint_every": 10}
    simulate(**problem(rng), **options, rtol=1e-4)
    simulate(**problem(np.random.default_rng(20240611)), **options, rtol=1e-5)
    arguments = problem(rng) | {"method": "rk45", "checkpoint": tmp_path / "other", "checkpoint_every": 10}
    simulate(**arguments)
    with pytest.raises(ValueError, match=r"rtol was 0.001 and is 1e-05"):
        simulate(**arguments, rtol=1e-5)


def test_another_backend_is_refused(rng, tmp_path):
    arguments = problem(rng) | {"checkpoint": tmp_path / "run", "checkpoint_every": 10}
    simulate(**arguments, backend="numpy")
    path = tmp_path / "run"
    path.write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match=r"backend was 'numpy' and is 'numba'"):
        simulate(**arguments, backend="numba")


def test_fewer_steps_than_the_checkpoint_has(rng, tmp_path):
    arguments = problem(rng) | {"checkpoint": tmp_path / "run", "checkpoint_every": 10}
    simulate(**arguments)
    with pytest.raises(ValueError, match=r"n_steps must be at least 40, the step of checkpoint .*, got 39"):
        simulate(**arguments | {"n_steps": 39})


def test_an_equal_run_in_other_types_goes_on(rng, tmp_path):
    pytest.importorskip("scipy.sparse")
    arguments = problem(rng) | {"checkpoint": tmp_path / "run", "checkpoint_every": 10}
    whole = simulate(**arguments)
    as_lists = {name: np.asarray(arguments[name]).tolist() for name in ("theta", "omega", "knm")}
    assert_same(simulate(**arguments | as_lists), whole)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"checkpoint": "run"}, "checkpoint needs checkpoint_every"),
        ({"checkpoint_every": 5}, "checkpoint_every needs checkpoint"),
        ({"checkpoint": 5, "checkpoint_every": 5}, "checkpoint must be a path, got 5"),
        ({"checkpoint": "run", "checkpoint_every": 0}, "checkpoint_every must be an integer >= 1, got 0"),
        ({"checkpoint": "run", "checkpoint_every": 2.0}, "checkpoint_every must be an integer, got 2.0"),
    ],
)
def test_arguments_are_checked(rng, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        simulate(**problem(rng), **options)


def test_a_place_that_cannot_be_written_is_told_before_the_run(rng, tmp_path):
    for path, kind in ((tmp_path / "none" / "run", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(kind, match="cannot write"):
            simulate(**problem(rng), checkpoint=path, checkpoint_every=5)


# ---------------------------------------------------------------- damage


def left_behind(rng, tmp_path):
    """Arguments of a run that left two checkpoints, at steps 30 and 40."""
    arguments = problem(rng) | {"record_every": 4, "checkpoint": tmp_path / "run", "checkpoint_every": 10}
    simulate(**arguments)
    return arguments


def damages(content):
    for length in (0, 5, 22, 100, len(content) // 2, len(content) - 33, len(content) - 1):
        yield content[:length]
    yield content + b"x"
    for place in (0, 21, 23, 60, len(content) // 2, len(content) - 40, len(content) - 1):
        yield content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
    yield b"\0" * len(content)


def test_damage_is_refused_and_nothing_is_touched(rng, tmp_path):
    arguments = left_behind(rng, tmp_path)
    path, previous = tmp_path / "run", tmp_path / "run.previous"
    sound, kept = path.read_bytes(), previous.read_bytes()
    for content in damages(sound):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"run is damaged: .* run.previous, is sound and holds step 30: move"
        ):
            simulate(**arguments)
        assert path.read_bytes() == content
        assert previous.read_bytes() == kept


def test_the_previous_checkpoint_will_do(rng, tmp_path):
    arguments = left_behind(rng, tmp_path)
    path, previous = tmp_path / "run", tmp_path / "run.previous"
    plain = {name: value for name, value in arguments.items() if not name.startswith("checkpoint")}
    path.unlink()  # as after a kill between two renamings, and as the message says
    assert_same(simulate(**arguments), simulate(**plain))
    previous.replace(path)
    assert_same(simulate(**arguments), simulate(**plain))


def test_both_damaged(rng, tmp_path):
    arguments = left_behind(rng, tmp_path)
    for name in ("run", "run.previous"):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"so is run.previous: delete both to begin anew"):
        simulate(**arguments)
    (tmp_path / "run").unlink()
    with pytest.raises(ValueError, match=r"run.previous is damaged: .*; delete it to begin anew"):
        simulate(**arguments)


def test_another_file_is_no_checkpoint(rng, tmp_path):
    (tmp_path / "run").write_text("notes of the day")
    with pytest.raises(ValueError, match=r"does not begin like a checkpoint .* delete it to begin anew"):
        simulate(**problem(rng), checkpoint=tmp_path / "run", checkpoint_every=5)


def test_a_full_disk_leaves_what_was_there(rng, tmp_path, monkeypatch):
    arguments = left_behind(rng, tmp_path)
    content = (tmp_path / "run").read_bytes()

    def refuse(handle):
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        simulate(**arguments | {"n_steps": 60})
    assert (tmp_path / "run").read_bytes() == content


# ---------------------------------------------------------------- a real kill

PROGRAM = """
import sys
import numpy as np
from spo_fast import simulate

path, method, members = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(1)
theta = rng.uniform(0, 7, (members, 40) if members else 40)
knm = np.triu(rng.uniform(0, 0.1, (40, 40)), 1)
options = {{"checkpoint": path, "checkpoint_every": 500}} if path != "none" else {{}}
result = simulate(theta, rng.normal(1, 1, 40), knm + knm.T, dt=0.01, n_steps={steps}, method=method,
                  record_every=100, modulation={{"lambda_": 0.7}}, modulate_every=3, **options)
np.savez(sys.argv[4], t=result.t, theta=result.theta, R=result.R, final=result.final, dt=result.dt)
"""


def run_program(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a signal of POSIX systems")
@pytest.mark.parametrize("method, members, steps", [("rk4", 0, 12000), ("rk45", 0, 8000), ("rk4", 3, 6000)])
def test_sigkill_in_the_middle(tmp_path, method, members, steps):
    program = textwrap.dedent(PROGRAM.format(steps=steps))
    path = tmp_path / "run"
    arguments = [str(path), method, str(members), str(tmp_path / "broken.npz")]
    kills = 0
    for after in (1, 2):  # killed when it has left so many checkpoints of its own
        child = subprocess.Popen([sys.executable, "-c", program, *arguments])
        seen, last = 0, path.stat().st_mtime_ns if path.exists() else 0
        deadline = time.monotonic() + LIMIT
        while child.poll() is None and seen < after and time.monotonic() < deadline:
            now = path.stat().st_mtime_ns if path.exists() else 0
            seen, last = seen + (now != last), now
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
    assert kills == 2
    run_program(program, *arguments)
    run_program(program, "none", method, str(members), str(tmp_path / "whole.npz"))
    with np.load(tmp_path / "broken.npz") as broken_run, np.load(tmp_path / "whole.npz") as whole:
        for name in whole.files:
            assert same_bits(broken_run[name], whole[name]), name


def test_nothing_of_this_is_loaded_by_a_run_without_checkpoints():
    script = (
        "import sys, spo_fast\n"
        "spo_fast.simulate([0, 1], 1, [[0, 1], [1, 0]], dt=0.1, n_steps=1)\n"
        "print('spo_fast.checkpoints' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout == "False\n", done.stderr


def test_the_result_is_a_simulation(rng, tmp_path):
    result = simulate(**problem(rng), checkpoint=tmp_path / "run", checkpoint_every=5)
    assert isinstance(result, Simulation)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.previous"]
