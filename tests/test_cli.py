"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import spo_fast
from spo_fast import bench, cli, demo, files, simulate


def failure(capsys, *arguments):
    """The single line that a failing command leaves on standard error."""
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"spo-fast {spo_fast.__version__}\n"


def test_the_module_can_be_run():
    for module in ("spo_fast", "spo_fast.cli"):
        command = [sys.executable, "-m", module, "--version"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert output == f"spo-fast {spo_fast.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["demo", "--steps", "0"],
        ["demo", "--steps", "ten"],
        ["bench", "--sizes", "16,,64"],
        ["bench", "--sizes", "-4"],
        ["bench", "--rounds", "1.5"],
        ["ablate", "--seeds", "-1"],
        ["ablate", "--grid", "--physics"],
        ["simulate"],
        ["simulate", "k.csv", "--dt", "0.1", "--steps", "1"],
        ["simulate", "k.csv", "--dt", "0.1", "--steps", "1.5", "--out", "a.npz"],
        ["simulate", "k.csv", "--dt", "0.1", "--steps", "1", "--out", "a.npz", "--lambda", "0,,1"],
        ["simulate", "k.csv", "--dt", "0.1", "--steps", "1", "--out", "a.npz", "--observe", "R,"],
    ],
)
def test_wrong_arguments_end_with_status_2_and_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("spo-fast")
    assert ": error: " in line


def test_backends_lists_each_with_its_state(capsys):
    assert cli.main(["backends"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed == spo_fast.backends()


def test_demo_passes_its_options_on(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(demo, "main", lambda *given, **options: calls.append((given, options)))
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    assert cli.main(["demo", "--quick", "--backend", "numpy"]) == 0
    assert cli.main(["demo", "--quick", "--steps", "7"]) == 0
    assert calls[0] == ((tmp_path, 20_000), {"rounds": 3, "backend": None})
    assert calls[1][0][1] == 2_000
    assert calls[1][1] == {"rounds": 1, "backend": "numpy"}
    assert calls[2][0][1] == 7


def test_an_unwritable_folder_is_one_clear_line(capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert str(blocked) in failure(capsys, "demo", "--out", str(blocked / "out"), "--steps", "1")


def test_an_unknown_backend_is_one_clear_line(capsys):
    assert "abacus" in failure(capsys, "demo", "--backend", "abacus", "--steps", "1")
    assert "abacus" in failure(capsys, "bench", "--backends", "abacus")


def test_missing_matplotlib_is_one_clear_line(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert failure(capsys, "demo", "--steps", "1") == (
        "spo-fast: error: plotting needs Matplotlib: pip install 'spo-fast[plot]'"
    )


def test_ctrl_c_ends_without_a_traceback(capsys, monkeypatch):
    def interrupt(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "main", interrupt)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == "spo-fast: interrupted\n"


@pytest.fixture(scope="module")
def measured():
    return bench.measure([5, 8], ["numpy"], rounds=2, sample_seconds=1e-4)


def test_bench_prints_a_row_for_each_size(measured, capsys, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda *given, **options: measured)
    assert cli.main(["bench", "--sizes", "5,8", "--backends", "numpy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["5", "numpy"], ["8", "numpy"]]
    assert len({len(line) for line in lines[:3]}) == 1


def test_bench_json_holds_everything(measured, capsys, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda *given, **options: measured)
    assert cli.main(["bench", "--json"]) == 0
    text = capsys.readouterr().out
    assert bench.from_json(text) == measured
    assert json.loads(text)["cells"][0]["plain"]["minimum"] > 0.0


def test_bench_measures_what_it_says(measured):
    for cell in measured.cells:
        assert cell.error == 0.0
        for timing in (cell.plain, cell.modulated, cell.modulate):
            assert 0.0 < timing.minimum <= timing.median
        assert cell.modulated.minimum > cell.plain.minimum
        assert cell.overhead == 100.0 * (cell.modulated.minimum / cell.plain.minimum - 1.0)


def test_every_backend_agrees_with_the_reference(backend):
    assert bench.parity_error(24, backend) <= 1e-13


def test_bench_holds_modulate_against_the_direct_path_of_the_core():
    result = bench.measure([6], ["cython", "numpy"], rounds=1, sample_seconds=1e-4)
    if "cython" in result.missing:
        pytest.skip(result.missing["cython"])
    for cell in result.cells:
        assert cell.times_direct == cell.modulate.minimum / cell.direct.minimum
    assert bench.from_json(bench.to_json(result)) == result


def test_first_calls_run_in_processes_of_their_own(capsys):
    result = bench.measure([4], ["numpy"], rounds=1, sample_seconds=1e-4, first_calls=True)
    assert 0.0 < result.first_calls["numpy"].minimum <= result.first_calls["numpy"].median
    assert "to its first result, N = 16: numpy 0." in bench.table(result)
    assert bench.from_json(bench.to_json(result)) == result
    with pytest.raises(RuntimeError, match="the first call of abacus failed"):
        bench.first_call("abacus")


def test_rounds_turn_the_order_round():
    order = []
    operations = [lambda repeats, name=name: order.append(name) for name in "ab"]
    bench.interleaved(operations, 2, sample_seconds=0.0)
    assert "".join(order).endswith("abba")


def test_the_bound_takes_the_scarcer_of_arithmetic_and_bandwidth():
    assert bench.step_bound(10, peak=1e9, bandwidth=1e12) == pytest.approx(100 * 2e-9)
    assert bench.step_bound(10, peak=1e12, bandwidth=8e9) == pytest.approx(100 * 1e-9)


def test_bench_reports_what_is_missing(monkeypatch):
    state = {"numpy": "available", "cython": "not built"}
    monkeypatch.setattr(bench, "backends", lambda: state)
    result = bench.measure([4], ["numpy", "cython"], rounds=1, sample_seconds=1e-4)
    assert result.missing == {"cython": "not built"}
    assert "cython: not built" in bench.table(result)
    with pytest.raises(ValueError, match="none of the backends asked for is available: cython"):
        bench.measure([4], ["cython"])
    with pytest.raises(ValueError, match="got abacus"):
        bench.measure([4], ["abacus"])


# ---------------------------------------------------------------- simulate

SHORT = ("--dt", "0.05", "--steps", "20")


@pytest.fixture
def problem(tmp_path, rng, monkeypatch):
    """A network of five oscillators in files of every kind, in the current folder."""
    monkeypatch.chdir(tmp_path)
    upper = np.triu(rng.uniform(0.1, 1.0, (5, 5)), 1)
    knm, theta, omega = upper + upper.T, rng.uniform(0.0, 6.0, 5), rng.normal(0.0, 0.5, 5)
    np.savetxt("k.csv", knm, delimiter=",", header="a comment", fmt="%.17g")
    np.save("k.npy", knm)
    np.savez("k.npz", knm)
    np.savez("all.npz", knm=knm, theta=theta, omega=omega, other=knm * 2.0)
    np.savetxt("theta.csv", theta, delimiter=",", fmt="%.17g")  # a column
    np.savetxt("omega.csv", omega[None, :], delimiter=",", fmt="%.17g")  # a row
    np.save("theta.npy", theta)
    np.save("omega.npy", omega)
    return knm, theta, omega


def run(*arguments):
    assert cli.main(["simulate", *arguments]) == 0


@pytest.mark.parametrize(
    "knm, theta, omega",
    [
        ("k.csv", "theta.csv", "omega.csv"),
        ("k.npy", "theta.npy", "omega.npy"),
        ("k.npz", "all.npz", "all.npz:omega"),
        ("all.npz", "all.npz", "all.npz"),
    ],
)
def test_simulate_takes_every_kind_of_file(problem, capsys, knm, theta, omega):
    run(knm, "--theta", theta, "--omega", omega, *SHORT, "--out", "run.npz")
    expected = simulate(problem[1], problem[2], problem[0], dt=0.05, n_steps=20)
    with np.load("run.npz") as written:
        assert set(written.files) >= {"t", "theta", "t_observe", "R", "final", "dt", "method", "backend"}
        for name in ("t", "theta", "t_observe", "R", "final"):
            np.testing.assert_array_equal(written[name], getattr(expected, name))
        assert written["method"] == "rk4"
    line = capsys.readouterr().out
    assert line.startswith("run.npz: <Simulation: N=5")
    assert line.count("\n") == 1


def test_simulate_passes_every_option_on(problem, monkeypatch):
    seen = {}

    def spy(**options):
        seen.update(options)
        return simulate(**options)

    monkeypatch.setattr(spo_fast, "simulate", spy)
    np.save("alpha.npy", np.full((5, 5), 0.1))
    run(
        *("k.csv", "--theta", "theta.csv", "--omega", "1.5", "--alpha", "alpha.npy"),
        *("--zeta", "0.2", "--psi", "-0.3", "--dt", "0.02", "--steps", "12", "--method", "rk45"),
        *("--atol", "1e-7", "--rtol", "1e-4", "--backend", "numpy", "--workers", "2"),
        *("--lambda", "0.25", "--heads", "2", "--block-size", "3", "--temperature", "1,2", "--seed", "7"),
        *("--algorithm", "direct", "--modulate-every", "2", "--record-every", "5", "--observe", "R,psi"),
        *("--progress", "--out", "run.npz", "--checkpoint", "run.checkpoint", "--checkpoint-every", "4"),
    )
    np.testing.assert_array_equal(seen.pop("knm"), problem[0])
    np.testing.assert_array_equal(seen.pop("theta"), problem[1])
    np.testing.assert_array_equal(seen.pop("alpha"), np.full((5, 5), 0.1))
    assert seen == {
        "omega": 1.5,
        "zeta": 0.2,
        "psi": -0.3,
        "dt": 0.02,
        "n_steps": 12,
        "method": "rk45",
        "atol": 1e-7,
        "rtol": 1e-4,
        "backend": "numpy",
        "workers": 2,
        "progress": True,
        "checkpoint": Path("run.checkpoint"),
        "checkpoint_every": 4,
        "modulate_every": 2,
        "record_every": 5,
        "observe": ("R", "psi"),
        "modulation": {
            "lambda_": 0.25,
            "n_heads": 2,
            "block_size": 3,
            "temperature": [1.0, 2.0],
            "projection_seed": 7,
            "algorithm": "direct",
        },
    }
    with np.load("run.npz") as written:
        assert written["theta"].shape == (4, 5)  # steps 0, 5, 10 and 12
        assert written["psi"].shape == (13,)


def test_the_same_command_goes_on_from_its_checkpoint(problem):
    given = ("k.csv", "--dt", "0.05", "--checkpoint", "run.checkpoint", "--checkpoint-every", "10")
    run(*given, "--steps", "20", "--out", "a.npz")
    run(*given, "--steps", "50", "--out", "a.npz")
    run("k.csv", "--dt", "0.05", "--steps", "50", "--out", "b.npz")
    with np.load("a.npz") as a, np.load("b.npz") as b:
        for name in ("R", "final"):
            np.testing.assert_array_equal(a[name], b[name])


def test_every_keyword_of_simulate_is_a_flag():
    import inspect

    keywords = set(inspect.signature(simulate).parameters)
    covered = {"theta", "omega", "knm", "alpha", "n_steps", "modulation", *cli._PASSED_ON}
    assert keywords == covered
    from spo_fast.modulation import MODULATION_KEYWORDS

    assert set(MODULATION_KEYWORDS) - {"w_q", "w_k", "w_v", "w_o"} == set(cli._MODULATION)


def test_phases_that_are_not_given_are_drawn(problem):
    run("k.csv", *SHORT, "--out", "a.npz")
    run("k.csv", *SHORT, "--out", "b.npz", "--theta-seed", "1")
    with np.load("a.npz") as a, np.load("b.npz") as b:
        np.testing.assert_array_equal(a["theta"][0], spo_fast.datasets.initial_phases(5))
        np.testing.assert_array_equal(b["theta"][0], spo_fast.datasets.initial_phases(5, seed=1))


def test_several_rows_of_phases_are_an_ensemble(problem, capsys):
    theta = np.array([problem[1], problem[1] + 0.5])
    np.savetxt("both.csv", theta, delimiter=",", fmt="%.17g")
    run("k.csv", "--theta", "both.csv", "--lambda", "0,1", *SHORT, "--out", "run.npz", "--plot", "run.png")
    expected = simulate(theta, 0.0, problem[0], dt=0.05, n_steps=20, modulation={"lambda_": [0.0, 1.0]})
    with np.load("run.npz") as written:
        np.testing.assert_array_equal(written["R"], expected.R)
        np.testing.assert_array_equal(written["status"], [0, 0])
    assert "M=2, N=5" in capsys.readouterr().out
    run("k.csv", "--members", "3", "--theta-seed", "4", *SHORT, "--out", "run.npz")
    with np.load("run.npz") as written:
        drawn = [spo_fast.datasets.initial_phases(5, seed=seed) for seed in (4, 5, 6)]
        np.testing.assert_array_equal(written["theta"][0], drawn)


def test_members_that_fail_are_named(problem, capsys):
    knm = np.array([problem[0], np.where(problem[0] > 0.0, 1e308, 0.0)])
    np.save("two.npy", knm)
    run("two.npy", "--members", "2", "--method", "euler", *SHORT, "--out", "run.npz")
    assert capsys.readouterr().out.splitlines()[1] == "1 of 2 members stopped at a non-finite state: 1"
    with np.load("run.npz") as written:
        assert written["status"][0] == 0
        assert written["status"][1] != 0
        assert written["steps"].tolist() == [20, 0]


def test_a_result_can_be_continued(problem):
    run("k.csv", "--theta", "theta.csv", *SHORT, "--out", "a.npz")
    run("k.csv", "--theta", "a.npz:final", *SHORT, "--out", "b.npz")
    whole = simulate(problem[1], 0.0, problem[0], dt=0.05, n_steps=40)
    with np.load("b.npz") as written:
        np.testing.assert_array_equal(written["final"], whole.final)


def test_sparse_coupling_is_read_as_it_is(problem, monkeypatch):
    sparse = pytest.importorskip("scipy.sparse")
    seen = {}

    def spy(**options):
        seen.update(options)
        return simulate(**options)

    monkeypatch.setattr(spo_fast, "simulate", spy)
    for i, kind in enumerate((sparse.csr_array, sparse.csc_matrix, sparse.coo_array)):
        sparse.save_npz("sparse.npz", kind(problem[0]))
        run("sparse.npz", *SHORT, "--out", f"{i}.npz")
        assert sparse.issparse(seen["knm"])
        np.testing.assert_array_equal(seen["knm"].toarray(), problem[0])


def test_a_result_may_be_netcdf(problem):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("scipy")
    run("k.csv", "--theta", "theta.csv", *SHORT, "--record-every", "7", "--out", "run.nc")
    expected = simulate(problem[1], 0.0, problem[0], dt=0.05, n_steps=20, record_every=7)
    with xarray.open_dataset("run.nc", engine="scipy") as written:
        np.testing.assert_array_equal(written["theta"], expected.theta)
        np.testing.assert_array_equal(written["R"], expected.R)
        assert written.attrs["method"] == "rk4"


def test_a_picture_is_drawn_on_request(problem):
    pytest.importorskip("matplotlib")
    run("k.csv", *SHORT, "--out", "run.npz", "--plot", "run.png")
    with open("run.png", "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    assert {"run.npz", "run.png"} <= set(os.listdir())


BAD_FILES = {
    "words.csv": b"one,two\n3,4\n",
    "ragged.csv": b"1,2\n3\n",
    "empty.csv": b"",
    "binary.csv": bytes(range(256)),
    "empty.npy": b"",
    "short.npy": b"\x93NUMPY",
    "text.npy": b"0,1\n1,0\n",
    "text.npz": b"0,1\n1,0\n",
    "cut.npz": b"PK\x03\x04 and no more",
    "k.txt": b"0 1\n1 0\n",
}


@pytest.mark.parametrize("name", [*BAD_FILES, "missing.csv", "missing.npz", "pickle.npy", "two.npz", "."])
def test_a_bad_file_is_one_clear_line_and_nothing_is_written(problem, capsys, name):
    for bad, content in BAD_FILES.items():
        with open(bad, "wb") as file:
            file.write(content)
    np.save("pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez("two.npz", a=np.eye(2), b=np.eye(2))
    before = sorted(os.listdir())
    for arguments in (
        [name],
        ["k.csv", "--theta", name],
        ["k.csv", "--omega", name],
        ["k.csv", "--alpha", name],
    ):
        assert name in failure(capsys, "simulate", *arguments, *SHORT, "--out", "run.npz")
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["k.csv", "--theta", "three.csv"], "(3, 3)"),
        (["k.csv", "--lambda", "0,1"], "lambda_"),
        (["k.csv", "--theta", "theta.csv", "--members", "2"], "--members"),
        (["k.csv", "--members", "0"], "--members"),
        (["k.csv", "--omega", "nan"], "omega"),
        (["k.csv", "--alpha", "theta.npy"], "alpha"),
        (["k.csv", "--method", "rk3"], "method"),
        (["k.csv", "--observe", "Q"], "observe"),
        (["k.csv", "--lambda", "-1"], "lambda_"),
        (["k.csv", "--heads", "3"], "n_heads"),
        (["k.csv", "--block-size", "0"], "block_size"),
        (["k.csv", "--temperature", "0"], "temperature"),
        (["k.csv", "--backend", "abacus"], "abacus"),
        (["k.csv", "--workers", "0"], "workers"),
        (["k.csv", "--record-every", "0"], "record_every"),
        (["k.csv", "--theta", "theta.csv", "--theta-seed", "1"], "--theta-seed"),
        (["theta.csv"], "knm"),
        (["nan.csv"], "knm"),
        (["asymmetric.csv", "--lambda", "1"], "knm"),
        (["huge.csv", "--method", "euler"], "non-finite"),
        (["all.npz:nothing"], "knm, theta, omega, other"),
        (["k.csv", "--plot", "run.jpg"], ".png"),
        (["k.csv", "--plot", "run.png", "--observe", "none"], "--observe"),
    ],
)
def test_a_bad_value_is_one_clear_line_and_nothing_is_written(problem, capsys, arguments, part):
    knm = problem[0]
    np.savetxt("three.csv", np.arange(3.0), delimiter=",")
    np.savetxt("asymmetric.csv", np.triu(knm), delimiter=",")
    np.savetxt("nan.csv", np.where(knm > 0.5, np.nan, knm), delimiter=",")
    np.savetxt("huge.csv", np.where(knm > 0.0, 1e308, 0.0), delimiter=",")
    before = sorted(os.listdir())
    assert part in failure(capsys, "simulate", *arguments, *SHORT, "--out", "run.npz")
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("steps, dt", [("-1", "0.1"), ("5", "0"), ("5", "nan"), ("10" * 12, "0.1")])
def test_bad_steps_are_one_clear_line(problem, capsys, steps, dt):
    failure(capsys, "simulate", "k.csv", "--dt", dt, "--steps", steps, "--out", "run.npz")
    assert "run.npz" not in os.listdir()


@pytest.mark.parametrize("out", ["run.txt", "nowhere/run.npz", "k.csv", "folder.npz"])
def test_a_bad_place_for_the_result_is_refused_before_the_run(problem, capsys, monkeypatch, out):
    monkeypatch.setattr(spo_fast, "simulate", lambda **options: pytest.fail("it ran"))
    os.mkdir("folder.npz")
    assert out in failure(capsys, "simulate", "k.csv", *SHORT, "--out", out)


def test_result_and_picture_need_files_of_their_own(problem, capsys):
    assert "different files" in failure(
        capsys, "simulate", "k.csv", *SHORT, "--out", "a.npz", "--plot", "a.npz"
    )


def test_missing_xarray_is_told_before_the_run(problem, capsys, monkeypatch):
    monkeypatch.setattr(spo_fast, "simulate", lambda **options: pytest.fail("it ran"))
    monkeypatch.setitem(sys.modules, "xarray", None)
    assert "xarray" in failure(capsys, "simulate", "k.csv", *SHORT, "--out", "run.nc")


def test_a_failed_picture_leaves_no_result(problem, capsys, monkeypatch):
    pytest.importorskip("matplotlib")

    def fail(result, path):
        path.write_bytes(b"half a picture")
        raise OSError("no space left on device")

    monkeypatch.setattr(files, "draw", fail)
    before = sorted(os.listdir())
    assert "no space" in failure(capsys, "simulate", "k.csv", *SHORT, "--out", "a.npz", "--plot", "a.png")
    assert sorted(os.listdir()) == before


def test_a_failed_result_leaves_the_old_one(problem, capsys, monkeypatch):
    run("k.csv", *SHORT, "--out", "run.npz")
    with open("run.npz", "rb") as file:
        old = file.read()

    def fail(result, path):
        path.write_bytes(b"half a result")
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write", fail)
    assert cli.main(["simulate", "k.csv", *SHORT, "--out", "run.npz"]) == 130
    with open("run.npz", "rb") as file:
        assert file.read() == old
    assert not [name for name in os.listdir() if name.startswith(".run")]


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
def test_results_have_the_usual_mode(problem):
    old = os.umask(0o022)
    try:
        run("k.csv", *SHORT, "--out", "run.npz")
    finally:
        os.umask(old)
    assert os.stat("run.npz").st_mode & 0o777 == 0o644


def test_simulating_imports_neither_matplotlib_nor_scipy(problem):
    code = (
        "import sys; from spo_fast import cli; assert cli.main(sys.argv[1:]) == 0; "
        "print(sorted({'matplotlib', 'scipy', 'xarray', 'numba'} & set(sys.modules)))"
    )
    command = [sys.executable, "-W", "error", "-c", code, "simulate", "k.csv", *SHORT, "--out", "run.npz"]
    done = subprocess.run([*command, "--backend", "numpy"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


# ---------------------------------------------------------------- awkward files and values


def damaged(folder, kind):
    """A file that NumPy or SciPy cannot make sense of, each in a way of its own."""
    if kind == "header":
        path = folder / "k.npy"
        path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': broken")
    elif kind == "member":
        path = folder / "k.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("knm", "text")
    else:
        path = folder / "k.npz"
        shape = np.array(5) if kind == "scalar shape" else np.array([5.5, 5.5])
        np.savez(path, format=b"csr", shape=shape, data=np.ones(3), indices=np.arange(3), indptr=np.arange(4))
    return path


@pytest.mark.parametrize("kind", ["header", "member", "scalar shape", "float shape"])
def test_damaged_files_are_one_line(kind, tmp_path, capsys):
    out = tmp_path / "out.npz"
    arguments = [str(damaged(tmp_path, kind)), "--dt", "0.1", "--steps", "2", "--out", str(out)]
    assert "knm cannot be read from" in failure(capsys, "simulate", *arguments)
    assert not out.exists()


@pytest.fixture
def small(tmp_path):
    """Arguments of a short run of six oscillators, and where its result goes."""
    np.save(tmp_path / "k.npy", np.ones((6, 6)) - np.eye(6))
    out = tmp_path / "out.npz"
    return ["simulate", str(tmp_path / "k.npy"), "--dt", "0.1", "--steps", "2", "--out", str(out)], out


def test_negative_numbers_may_have_an_exponent(small):
    arguments, out = small
    assert cli.main([*arguments, "--zeta", "1", "--psi", "-1e-3", "--omega", "-1e-1"]) == 0
    assert out.exists()


def test_a_negative_seed_is_named(small, capsys):
    arguments, out = small
    assert "--theta-seed must be at least 0, got -1" in failure(capsys, *arguments, "--theta-seed", "-1")
    assert not out.exists()


def test_an_ensemble_of_one_goes_on_as_an_ensemble(small, tmp_path):
    arguments, out = small
    assert cli.main([*arguments, "--members", "1"]) == 0
    later = tmp_path / "later.npz"
    assert cli.main([*arguments[:-1], str(later), "--theta", f"{out}:final"]) == 0
    assert np.load(later)["final"].shape == (1, 6)


def test_a_link_stays_a_link(small, tmp_path):
    arguments, out = small
    link = tmp_path / "link.npz"
    link.symlink_to(out)
    assert cli.main([*arguments[:-1], str(link)]) == 0
    assert link.is_symlink()
    assert np.load(out)["final"].shape == (6,)


def test_a_locale_without_greek_costs_no_result(tmp_path):
    environment = dict(os.environ, PYTHONIOENCODING="ascii")
    options = ["--sizes", "1", "--rounds", "1", "--backends", "numpy"]
    command = [sys.executable, "-m", "spo_fast.cli", "bench", *options]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert b"nan" not in done.stdout and not done.stderr


def test_a_demo_that_fails_leaves_no_folder(tmp_path, capsys):
    folder = tmp_path / "new"
    assert cli.main(["demo", "--out", str(folder), "--backend", "abacus", "--quick"]) == 2
    assert not folder.exists()
