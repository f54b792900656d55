"""What a simulation gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spo_fast.validation import choice, package

if TYPE_CHECKING:
    import os

    import pandas
    import xarray

FIELDS = ("t", "theta", "t_observe", "R", "psi", "final", "dt", "method", "backend", "status", "steps")
_OPTIONAL = ("t_observe", "R", "psi")
_KINDS: dict[str, Any] = {"method": str, "backend": str, "status": int, "steps": int}
_MEANINGS = {
    "t": {"long_name": "time of the stored states"},
    "theta": {"long_name": "phases", "units": "rad"},
    "t_observe": {"long_name": "time of the observations"},
    "R": {"long_name": "order parameter", "units": "1"},
    "psi": {"long_name": "mean phase", "units": "rad"},
    "final": {"long_name": "last good phases", "units": "rad"},
    "dt": {"long_name": "step size that a next step would try"},
    "status": {"long_name": "0 for a member that went through"},
    "steps": {"long_name": "steps taken"},
}


@dataclass(eq=False, repr=False)
class Simulation:
    """What a simulation recorded.

    Arrays of an ensemble have one more axis, for its M members, where it is shown in brackets. After the step
    in which a member failed its rows are NaN.

    Attributes
    ----------
    t : ndarray, shape (samples,), of an ensemble with rk45 (samples, M)
        Times of the stored states.
    theta : ndarray, shape (samples, [M,] N), radians
        Stored states, wrapped to [0, 2 pi).
    t_observe : ndarray, shape (n_steps + 1,), of an ensemble with rk45 (n_steps + 1, M), or None
        Times of the observations; None where nothing was observed.
    R : ndarray, shape (n_steps + 1, [M]), or None
        Order parameter at every step.
    psi : ndarray, shape (n_steps + 1, [M]), radians, or None
        Mean phase at every step.
    final : ndarray, shape ([M,] N), radians
        The last state, of a failed member the last good one.
    dt : float, of an ensemble with rk45 ndarray of shape (M,)
        Step size that a next step would try.
    method, backend : str
        How it was computed.
    status : int, of an ensemble ndarray of shape (M,)
        0 for a run that went through, else a number of `spo_fast.backends.status.Status`.
    steps : int, of an ensemble ndarray of shape (M,)
        Steps taken, up to the last good state.
    """

    t: np.ndarray
    theta: np.ndarray
    t_observe: np.ndarray | None
    R: np.ndarray | None
    psi: np.ndarray | None
    final: np.ndarray
    dt: Any
    method: str
    backend: str
    status: Any = 0
    steps: Any = 0

    def __repr__(self) -> str:
        samples, *members, n = self.theta.shape
        size = f"M={members[0]}, N={n}" if members else f"N={n}"
        last = np.max(self.t, initial=0.0, where=~np.isnan(self.t))
        return (
            f"<Simulation: {size}, {samples} states up to t={last:g}, "
            f"method={self.method!r}, backend={self.backend!r}>"
        )

    def to_xarray(self) -> xarray.Dataset:
        """Return what was recorded as a labelled dataset with dimensions t, oscillator and t_observe.

        Returns
        -------
        xarray.Dataset
            Variables theta, R, psi and final, which has no time; method, backend, dt, status, steps and the
            version of the package as attributes. That of an ensemble has a dimension member too, and
            variables status and steps. With rk45, where every member has its own times, its dimensions are
            sample and observation, t and t_observe are coordinates along these and member, and dt is a
            variable.

        Raises
        ------
        ImportError
            If xarray is not installed, naming the extra.
        """
        import spo_fast

        xarray = package("xarray", "to_xarray", "xarray")
        member = ("member",) if self.theta.ndim == 3 else ()
        stored, observed = ("sample", "observation") if self.t.ndim == 2 else ("t", "t_observe")
        own_times = member[: self.t.ndim - 1]
        values: dict[str, tuple[tuple[str, ...], Any]] = {
            "theta": ((stored, *member, "oscillator"), self.theta),
            "R": ((observed, *member), self.R),
            "psi": ((observed, *member), self.psi),
            "final": ((*member, "oscillator"), self.final),
        }
        coordinates: dict[str, tuple[tuple[str, ...], Any]] = {
            "t": ((stored, *own_times), self.t),
            "t_observe": ((observed, *own_times), self.t_observe),
            "oscillator": (("oscillator",), np.arange(self.theta.shape[-1])),
        }
        if member:
            coordinates["member"] = (member, np.arange(self.theta.shape[1]))
        attributes = {"method": self.method, "backend": self.backend, "version": spo_fast.__version__}
        for name in ("dt", "status", "steps"):
            value = getattr(self, name)
            if np.ndim(value):
                values[name] = (member, value)
            else:
                attributes[name] = value
        return xarray.Dataset(_described(values), _described(coordinates), attributes)

    @classmethod
    def from_xarray(cls, dataset: xarray.Dataset) -> Simulation:
        """Return the simulation that `to_xarray` made a dataset of, from whatever file that was read.

        Parameters
        ----------
        dataset : xarray.Dataset
            As `to_xarray` returned it.

        Returns
        -------
        Simulation

        Raises
        ------
        ValueError
            If a variable or an attribute is missing.
        """
        return from_values(variables_of(dataset))

    def to_pandas(self, what: str = "observations") -> pandas.DataFrame:
        """Return what was recorded as a table over the time.

        Parameters
        ----------
        what : {"observations", "states"}
            R and psi at every step, or the stored phases, a column for each oscillator.

        Returns
        -------
        pandas.DataFrame
            With index t; that of an ensemble has the indices member and t.

        Raises
        ------
        ValueError
            If nothing was observed, or `what` is none of these.
        ImportError
            If pandas is not installed, naming the extra.
        """
        choice(what, "what", ("observations", "states"))
        pandas = package("pandas", "to_pandas", "xarray")
        if what == "states":
            t: np.ndarray = self.t
            columns: dict[Any, np.ndarray] = dict(enumerate(np.moveaxis(self.theta, -1, 0)))
        elif self.t_observe is None:
            raise ValueError("what must be 'states' where nothing was observed, got 'observations'")
        else:
            t = self.t_observe
            columns = {n: v for n, v in (("R", self.R), ("psi", self.psi)) if v is not None}
        if self.theta.ndim == 2:
            return pandas.DataFrame(columns, index=pandas.Index(t, name="t"))
        m = self.theta.shape[1]
        times = np.broadcast_to(t if t.ndim == 2 else t[:, None], (len(t), m))
        index = pandas.MultiIndex.from_arrays(
            [np.repeat(np.arange(m), len(t)), times.T.reshape(-1)], names=["member", "t"]
        )
        return pandas.DataFrame({name: values.T.reshape(-1) for name, values in columns.items()}, index=index)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything into a file, which appears complete or not at all.

        Parameters
        ----------
        path : path
            .npz: every attribute under its name. .nc: netCDF 3 of `to_xarray`.

        Raises
        ------
        ValueError
            If the name has another ending, or a .nc file shall hold an axis of length 0.
        ImportError
            If a .nc file is wanted and xarray or SciPy is missing, naming the extra.
        OSError
            If the file cannot be written.
        """
        from spo_fast import files

        target = files.as_path(path)
        files.require_format(target)
        files.require_writable([target])
        files.save(self, target)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Simulation:
        """Read what `save` has written, bit for bit.

        Parameters
        ----------
        path : path
            .npz, or .nc, netCDF of any kind that the installed packages read.

        Returns
        -------
        Simulation

        Raises
        ------
        ValueError
            If the name has another ending, or the file holds no simulation.
        ImportError
            If it is a .nc file and xarray is missing, naming the extra.
        OSError
            If the file cannot be read.
        """
        from spo_fast import files

        return files.load(files.as_path(path))

    def plot(self, axes: Any = None) -> np.ndarray:
        """Draw R over time above the phases over time.

        Parameters
        ----------
        axes : sequence of two matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        ndarray of Axes, shape (2,)
            Where it was drawn.

        Raises
        ------
        ValueError
            If this is an ensemble, R was not observed, or `axes` does not hold two Axes.
        ImportError
            If Matplotlib is not installed, naming the extra.
        """
        from spo_fast.plotting import plot_simulation

        return plot_simulation(self, axes)


def from_values(values: Mapping[str, Any]) -> Simulation:
    """Return a simulation with these attributes, in the types that a run gives them.

    Raises
    ------
    ValueError
        If one is missing that every simulation has.
    """
    missing = [name for name in FIELDS if name not in (*values, *_OPTIONAL)]
    if missing:
        found = ", ".join(values) or "nothing"
        raise ValueError(f"a simulation must have {', '.join(missing)}, got {found}")
    own: dict[str, Any] = dict.fromkeys(_OPTIONAL)
    for name in FIELDS:
        if name in values:
            value, kind = np.asarray(values[name]), _KINDS.get(name, float)
            own[name] = np.ascontiguousarray(value, kind) if value.ndim else kind(value.item())
    return Simulation(**own)


def variables_of(dataset: xarray.Dataset) -> dict[str, Any]:
    """Return attributes, variables and coordinates of a dataset under their names."""
    variables = {str(name): array.values for name, array in dataset.variables.items()}
    return {**dataset.attrs, **variables}


def _described(values: dict[str, tuple[tuple[str, ...], Any]]) -> dict[str, tuple[Any, ...]]:
    """Add what each array means; leave out what was not recorded."""
    return {
        name: (dimensions, array, _MEANINGS.get(name, {}))
        for name, (dimensions, array) in values.items()
        if array is not None
    }


class SimulationError(RuntimeError):
    """A state turned non-finite.

    Attributes
    ----------
    result : Simulation
        Everything up to the last good state.
    """

    def __init__(self, message: str, result: Simulation) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)
