"""Runge–Kutta tableaux as exact ratios: one source for every language.

``tools/generate_tableaux.py`` writes the C header from this file; tests compare the two and check the order
conditions.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction as F


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge–Kutta method.

    Attributes
    ----------
    name : str
        Name of the method as ``simulate`` takes it.
    a : tuple of tuples of Fraction
        Strictly lower-triangular rows without zero padding: row ``i`` has ``i`` entries.
    b : tuple of Fraction
        Weights of the solution.
    error : tuple of Fraction or None
        Weights of the error estimate, solution minus embedded solution.
    order : int
        Order of the solution.
    reference : str
        Where the numbers come from.
    """

    name: str
    a: tuple[tuple[F, ...], ...]
    b: tuple[F, ...]
    error: tuple[F, ...] | None
    order: int
    reference: str

    @property
    def stages(self) -> int:
        """Number of evaluations of the right-hand side per step."""
        return len(self.b)

    @property
    def c(self) -> tuple[F, ...]:
        """Nodes: the row sums of ``a``."""
        return tuple(sum(row, F(0)) for row in self.a)


EULER = Tableau("euler", ((),), (F(1),), None, 1, "L. Euler, Institutionum calculi integralis I, 1768")

RK4 = Tableau(
    "rk4",
    ((), (F(1, 2),), (F(0), F(1, 2)), (F(0), F(0), F(1))),
    (F(1, 6), F(1, 3), F(1, 3), F(1, 6)),
    None,
    4,
    "W. Kutta, Z. Math. Phys. 46 (1901) 435-453",
)

DORMAND_PRINCE = Tableau(
    "rk45",
    (
        (),
        (F(1, 5),),
        (F(3, 40), F(9, 40)),
        (F(44, 45), F(-56, 15), F(32, 9)),
        (F(19372, 6561), F(-25360, 2187), F(64448, 6561), F(-212, 729)),
        (F(9017, 3168), F(-355, 33), F(46732, 5247), F(49, 176), F(-5103, 18656)),
        (F(35, 384), F(0), F(500, 1113), F(125, 192), F(-2187, 6784), F(11, 84)),
    ),
    (F(35, 384), F(0), F(500, 1113), F(125, 192), F(-2187, 6784), F(11, 84), F(0)),
    (F(71, 57600), F(0), F(-71, 16695), F(71, 1920), F(-17253, 339200), F(22, 525), F(-1, 40)),
    5,
    "J. R. Dormand, P. J. Prince, J. Comput. Appl. Math. 6 (1980) 19-26, RK5(4)7M",
)

TABLEAUX = {tableau.name: tableau for tableau in (EULER, RK4, DORMAND_PRINCE)}
