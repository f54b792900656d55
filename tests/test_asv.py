"""The benchmark suite without asv: it imports, its cells are fixed, each of them runs once."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest
from conftest import required_backends

import spo_fast
from spo_fast.backends import registry

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "asv_benchmarks"
NAMES = sorted(path.stem for path in (SUITE / "benchmarks").glob("*.py") if path.stem != "__init__")

sys.path.insert(0, str(SUITE))
common = importlib.import_module("benchmarks.common")
MODULES = [importlib.import_module(f"benchmarks.{name}") for name in NAMES]
sys.path.remove(str(SUITE))


def benchmarks():
    """(class, name of the method) of everything that asv would find."""
    found = {
        (value, name)
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
        for name in dir(value)
        if re.match("(time|peakmem|track)_", name)
    }
    return sorted(found, key=lambda pair: (pair[0].__module__, pair[0].__qualname__, pair[1]))


def cells(owner):
    """Combinations of parameters, with one size: the smallest."""
    sets = [values[:1] if isinstance(values[0], int) else values for values in getattr(owner, "params", ())]
    return itertools.product(*sets)


CELLS = [(owner, name, cell) for owner, name in benchmarks() for cell in cells(owner)]


@pytest.fixture
def tiny(monkeypatch):
    """The smallest size only, and no compilation of everything."""
    profile = common.Profile(1, (1, 1, 0.0), 0.0, frozenset({16}), False)
    for module in MODULES:
        if hasattr(module, "PROFILE"):
            monkeypatch.setattr(module, "PROFILE", profile)


@pytest.mark.parametrize("owner, name, cell", CELLS, ids=[f"{c.__module__}-{n}-{p}" for c, n, p in CELLS])
@pytest.mark.usefixtures("tiny")
def test_each_benchmark_runs(owner, name, cell):
    instance = owner()
    try:
        if hasattr(instance, "setup"):
            instance.setup(*cell)
        result = getattr(instance, name)(*cell)
        assert not name.startswith("track") or result >= 0.0
    except NotImplementedError as reason:
        missing = any(str(reason).startswith(f"{backend}:") for backend in required_backends())
        (pytest.fail if missing else pytest.skip)(str(reason))
    finally:
        if hasattr(instance, "teardown"):
            instance.teardown(*cell)


def test_everything_asked_for_is_there():
    names = {name for _, name in benchmarks()}
    assert names >= {
        "time_modulate", "time_step", "time_simulate", "time_import", "time_first_call",
        "time_first_call_cold", "time_empty_modulate", "time_empty_step", "peakmem_modulate",
        "peakmem_simulate", "track_parity_error", "track_overhead_percent",
    }  # fmt: skip


def test_parameters_are_the_backends_and_sizes_that_were_fixed():
    assert common.BACKENDS == ("cython", "numba", "rust", "go", "julia", "mojo", "numpy")
    assert common.SIZES == (16, 64, 128, 256, 512, 1024)
    for owner, name in benchmarks():
        first = getattr(owner, "params", (common.BACKENDS,))[0]
        assert first in (common.BACKENDS, ("cython", "numba")), (owner, name)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("owner, name", benchmarks(), ids=lambda value: str(value))
def test_a_missing_backend_skips_the_cell_in_setup(owner, name, monkeypatch):
    if not hasattr(owner, "params"):
        pytest.skip("has no backend")
    monkeypatch.setitem(registry._failures, "numba", "gone for a while")
    cell = next(cell for cell in cells(owner) if cell[0] == "numba")
    with pytest.raises(NotImplementedError, match=r"gone for a while|only the cython|dense|one trajectory"):
        owner().setup(*cell)


def test_sizes_outside_the_profile_are_skipped(monkeypatch):
    monkeypatch.setattr(common, "PROFILE", common.PROFILES["fast"])
    with pytest.raises(NotImplementedError, match="N = 1024"):
        common.Cell().setup("numpy", 1024)


def test_an_unknown_profile_is_refused(monkeypatch):
    monkeypatch.setenv("SPO_FAST_ASV_PROFILE", "quick")
    with pytest.raises(ValueError, match=r"fast, regular.*'quick'"):
        common._profile()


def test_time_is_that_of_a_call_in_the_best_batch(monkeypatch):
    ticks = iter([0.0, 20.0, 100.0, 110.0, 200.0, 230.0, 300.0, 340.0, 400.0, 450.0])
    monkeypatch.setattr(common.time, "process_time", lambda: next(ticks))
    timed, calls = common.Timed(), []
    timed.batch(lambda: calls.append(1), 10)
    start = timed.timer()
    timed.run()
    assert len(calls) == 10 * common.BATCHES
    assert timed.timer() - start == 1.0


def test_an_operation_is_prepared_once():
    modulation = importlib.import_module("benchmarks.modulation")
    assert modulation.Modulate.prepare("numpy", 16) is modulation.Modulate.prepare("numpy", 16)


def test_the_hash_is_that_of_the_loaded_library(capsys):
    if spo_fast.backends()["cython"] != "available":
        pytest.skip(spo_fast.backends()["cython"])
    core = importlib.import_module("spo_fast._core")
    expected = sha256(Path(core.__file__).read_bytes()).hexdigest()[:12]
    assert common.code_hash("cython") == expected
    common.record.cache_clear()
    common.record("cython")
    assert expected in capsys.readouterr().out


def test_code_from_outside_the_environment_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "ENVIRONMENT", str(tmp_path))
    common.record.cache_clear()
    with pytest.raises(RuntimeError, match="does not lie in the environment"):
        common.record("numpy")


def test_the_hash_is_kept_once_for_each_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "ENVIRONMENT", "/")
    monkeypatch.setattr(common, "COMMIT", "0123abcd")
    monkeypatch.setenv("ASV_CONF_DIR", str(tmp_path))
    for _ in range(2):
        common.record.cache_clear()
        common.record("numpy")
    common.record.cache_clear()
    lines = (tmp_path / ".asv" / "loaded" / "0123abcd.jsonl").read_text().splitlines()
    assert [json.loads(line)["sha256"] for line in lines] == [common.code_hash("numpy")]


@pytest.mark.parametrize("commit", ["aaaa", "bbbb"])
def test_compiled_numba_code_is_kept_apart_by_commit(tmp_path, commit):
    environment = os.environ | {"ASV_ENV_DIR": str(tmp_path), "ASV_COMMIT": commit, "PYTHONPATH": str(SUITE)}
    code = "import benchmarks.common; from numba import config; print(config.CACHE_DIR)"
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert output.strip() == str(tmp_path / "numba-cache" / commit)


# ---------------------------------------------------------------- configuration and the command


@pytest.fixture(scope="module")
def configuration():
    text = (SUITE / "asv.conf.json").read_text(encoding="utf-8")
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def test_everything_in_the_environment_is_pinned(configuration):
    pins = configuration["matrix"]["req"]
    assert all(len(versions) == 1 and re.fullmatch(r"[\d.]+", versions[0]) for versions in pins.values())
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)
    needed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    names = {re.match(r"[\w-]+", requirement).group().lower() for requirement in needed}
    assert names <= {name.lower() for name in pins}


def test_commits_are_built_without_fetching(configuration):
    for step in ("build_command", "install_command"):
        assert all("--no-index" in line and "--no-deps" in line for line in configuration[step])


def test_results_stay_out_of_the_repository(configuration):
    for key in ("env_dir", "results_dir", "html_dir"):
        assert configuration[key].startswith(".asv/")
    assert ".asv/" in (ROOT / ".gitignore").read_text().splitlines()
    assert (SUITE / configuration["repo"]).resolve() == ROOT


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("asv_compare", ROOT / "tools" / "asv_compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = """\
| Change   | Before [aaaaaaaa] | After [bbbbbbbb] | Ratio   | Benchmark (Parameter)                |
|----------|-------------------|------------------|---------|--------------------------------------|
|          | 2.00±0.1μs        | 2.10±0.2μs       | 1.05    | modulation.Modulate.time_it('a', 16) |
|          | n/a               | n/a              | n/a     | modulation.Modulate.time_it('b', 16) |
| +        | 1.00±0ms          | 3.00±0ms         | 3.00    | modulation.Modulate.time_it('c', 16) |
|          | 1.00±0ms          | 1.60±0ms         | ~1.60   | modulation.Modulate.time_it('d', 16) |
|          | 2.00±0ms          | 1.00±0ms         | 0.50    | modulation.Modulate.time_it('e', 16) |
"""


def test_the_spread_is_that_of_unchanged_cells(tool):
    found = tool.ratios(TABLE)
    assert list(found.values()) == [1.05, 1.6, 0.5]
    found["modulation.Modulate.time_it('a', 256)"] = 1.25
    calls, kernels = tool.spread(found, "medians")
    assert calls == (
        f"spread of medians, calls of microseconds (factor {tool.FACTORS['calls of microseconds'][1]}), "
        "3 unchanged cells: median 60%, 90th percentile 60%, largest 100%"
    )
    assert kernels.endswith("1 unchanged cells: median 25%, 90th percentile 25%, largest 25%")
    assert tool.spread({}, "medians") == ["spread of medians: no unchanged cells"]


@pytest.mark.parametrize(
    "name, kind",
    [
        ("workers.SimulateShared.time_simulate_workers('cython', 16, 2)", "by the clock on the wall"),
        ("workers.ParityShared.track_workers_parity_error('cython', 16, 2)", "memory and errors"),
        ("startup.Import.time_import", "processes"),
        ("boundary.EmptyStep.time_empty_step('cython')", "calls of microseconds"),
        (
            "modulation.ModulatorAlgorithm.time_modulator_algorithm('numba', 16, 'direct')",
            "calls of microseconds",
        ),
        ("networks.Ring.time_ring('cython', 1000)", "kernels"),
        ("attention.Softmax.time_causal_attention_and_back('cython', 17)", "kernels"),
        ("kuramoto.Memory.peakmem_simulate('cython', 16)", "memory and errors"),
    ],
)
def test_each_cell_has_the_factor_of_what_it_times(tool, name, kind):
    assert tool.kind(name) == kind


def test_what_asv_calls_slower_counts_if_the_best_sample_is_slower(tool):
    cell = "modulation.Modulate.time_it('c', 16)"
    slower, lines = tool.verdict(TABLE, {cell: 1.0}, {cell: 2.9})
    assert slower
    assert lines == [f"SLOWER: {cell}: median 3.00, best sample 2.90"]
    slower, lines = tool.verdict(TABLE, {cell: 1.0}, {cell: 1.1})
    assert not slower
    assert lines == [f"not slower by 1.5: {cell}: median 3.00, best sample 1.10"]
    assert tool.verdict(TABLE, {cell: 1.0}, {cell: 2.9}, 3.5)[0] is False
    assert tool.verdict(TABLE, {}, {}) == (True, [f"SLOWER: {cell}: median 3.00"])
    assert tool.verdict(TABLE.replace("| + ", "|   "), {}, {}) == (False, ["nothing is slower"])


def test_a_change_below_the_factor_of_its_kind_does_not_count(tool):
    line = "| +        | 1.00±0ms          | 1.40±0ms         | 1.40    | {}('c', {}) |"
    for n, counts in ((16, False), (256, True)):
        assert tool.verdict(line.format("modulation.Modulate.time_it", n), {}, {})[0] is counts


def test_a_benchmark_that_now_fails_counts(tool):
    row = "| !        | 1.00±0ms  | failed  | n/a  | kuramoto.Step.time_step('numba', 16) |"
    assert tool.verdict(row, {}, {})[0]


def test_best_samples_are_read_from_the_results_of_asv(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "HOME", tmp_path)
    folder = tmp_path / "results" / "machine"
    folder.mkdir(parents=True)
    row = [[1.0, None, 2.0], [["'a'", "'b'", "'c'"]], [[1.5, 0.5], None, [2.0]]]
    results = {
        "result_columns": ["result", "params", "samples", "more"],
        "results": {"m.T.time_x": row, "m.T.track_y": [[3.0], [["'a'"]]]},
    }
    (folder / "0123abcd-env.json").write_text(json.dumps(results))
    assert tool.best("0123abcd" + "0" * 32) == {"m.T.time_x('a')": 0.5, "m.T.time_x('c')": 2.0}


def test_the_code_of_both_commits_is_described(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "HOME", tmp_path)
    (tmp_path / "loaded").mkdir()
    for commit, digest in (("aaaa", "1111"), ("bbbb", "2222")):
        line = json.dumps({"backend": "cython", "sha256": digest})
        (tmp_path / "loaded" / f"{commit}.jsonl").write_text(line + "\n")
    assert tool.describe("aaaa", "bbbb") == ["cython   1111 -> 2222  differs"]
    assert tool.describe("aaaa", "aaaa") == ["cython   1111 -> 1111  same"]
    assert tool.describe("aaaa", "cccc") == ["cython   1111 -> none  differs"]


def test_the_command_compares_head_with_its_parent(tool):
    options = tool.parse([])
    assert (options.base, options.head, options.profile, options.factor) == ("HEAD^", "HEAD", "fast", None)
    assert tool.parse(["--bench", "a", "--bench", "b"]).bench == ["a", "b"]
    variables = tool.environment("fast")
    assert variables["SPO_FAST_ASV_PROFILE"] == "fast"
    assert variables["PATH"].startswith(str(Path(sys.executable).parent))


def test_an_unknown_commit_is_one_line(tool, capsys):
    assert tool.main(["--base", "no-such-commit"]) == 2
    assert "no-such-commit" in capsys.readouterr().err
