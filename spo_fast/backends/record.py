"""Where a running integration writes what the caller asked to keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True, eq=False)
class Record:
    """Arrays that an integration fills while it advances.

    Parameters
    ----------
    every : int
        Distance in steps between two stored states; 0 stores none.
    theta : ndarray, shape (rows, N), radians, optional
        Row ``s // every`` receives the state after step ``s`` when ``s % every == 0``.
    t : ndarray, shape (rows,), optional
        Time of each stored row.
    R, psi, t_observe : ndarray, shape (n_steps + 1,), optional
        Order parameter, mean phase (radians) and time of the state at each step.

    Notes
    -----
    M trajectories that are advanced together have an axis of length M: theta (rows, M, N), R and psi
    (n_steps + 1, M).
    """

    every: int = 0
    theta: np.ndarray | None = None
    t: np.ndarray | None = None
    R: np.ndarray | None = None
    psi: np.ndarray | None = None
    t_observe: np.ndarray | None = None
