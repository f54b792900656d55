"""What a simulation gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray


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
        """Return the recorded arrays as a labelled dataset with dimensions t, oscillator and t_observe.

        That of an ensemble has a dimension member too, and variables status and steps. With rk45, where every
        member has its own times, its dimensions are sample and observation, and t and t_observe coordinates
        along these and member.

        Raises
        ------
        ImportError
            If xarray is not installed, naming the extra.
        """
        try:
            import xarray
        except ImportError as error:
            raise ImportError("to_xarray needs xarray: pip install 'spo-fast[xarray]'") from error
        member = ("member",) if self.theta.ndim == 3 else ()
        stored, observed = ("sample", "observation") if self.t.ndim == 2 else ("t", "t_observe")
        variables: dict[str, Any] = {"theta": ((stored, *member, "oscillator"), self.theta, {"units": "rad"})}
        coordinates: dict[str, Any] = {
            "t": ((stored, *member[: self.t.ndim - 1]), self.t),
            "oscillator": np.arange(self.theta.shape[-1]),
        }
        if self.t_observe is not None:
            coordinates["t_observe"] = ((observed, *member[: self.t.ndim - 1]), self.t_observe)
        if self.R is not None:
            variables["R"] = ((observed, *member), self.R)
        if self.psi is not None:
            variables["psi"] = ((observed, *member), self.psi, {"units": "rad"})
        attributes = {"method": self.method, "backend": self.backend}
        scalars = {"dt": self.dt, "status": self.status, "steps": self.steps}
        for name, value in scalars.items():
            if np.ndim(value):
                variables[name] = (member, value)
            else:
                attributes[name] = value
        if member:
            coordinates["member"] = np.arange(self.theta.shape[1])
        return xarray.Dataset(variables, coordinates, attributes)

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
