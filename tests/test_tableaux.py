"""Tableaux: order conditions and row sums in exact ratios."""

from __future__ import annotations

from fractions import Fraction as F

import pytest
from oracles import kuramoto as oracle

from spo_fast.tableaux import DORMAND_PRINCE, TABLEAUX

# Rooted trees up to order 5: order, density gamma, elementary weight from (A times, c, ones). E. Hairer, S.P.
# Norsett, G. Wanner, Solving Ordinary Differential Equations I, table II.2.1.
TREES = [
    (1, 1, lambda mul, c, one: one),
    (2, 2, lambda mul, c, one: c),
    (3, 3, lambda mul, c, one: times(c, c)),
    (3, 6, lambda mul, c, one: mul(c)),
    (4, 4, lambda mul, c, one: times(c, c, c)),
    (4, 8, lambda mul, c, one: times(c, mul(c))),
    (4, 12, lambda mul, c, one: mul(times(c, c))),
    (4, 24, lambda mul, c, one: mul(mul(c))),
    (5, 5, lambda mul, c, one: times(c, c, c, c)),
    (5, 10, lambda mul, c, one: times(c, c, mul(c))),
    (5, 15, lambda mul, c, one: times(c, mul(times(c, c)))),
    (5, 30, lambda mul, c, one: times(c, mul(mul(c)))),
    (5, 20, lambda mul, c, one: times(mul(c), mul(c))),
    (5, 20, lambda mul, c, one: mul(times(c, c, c))),
    (5, 40, lambda mul, c, one: mul(times(c, mul(c)))),
    (5, 60, lambda mul, c, one: mul(mul(times(c, c)))),
    (5, 120, lambda mul, c, one: mul(mul(mul(c)))),
]


def times(*vectors):
    result = [F(1)] * len(vectors[0])
    for vector in vectors:
        result = [x * y for x, y in zip(result, vector, strict=True)]
    return result


def conditions_failed(a, weights, order):
    """Trees up to `order` whose condition the weights violate."""
    c = [sum(row, F(0)) for row in a]

    def multiply(vector):
        return [sum((x * vector[j] for j, x in enumerate(row)), F(0)) for row in a]

    failed = []
    for tree, (size, density, weight) in enumerate(TREES):
        total = sum((b * x for b, x in zip(weights, weight(multiply, c, [F(1)] * len(a)), strict=True)), F(0))
        if size <= order and total != F(1, density):
            failed.append(tree)
    return failed


@pytest.mark.parametrize("tableau", TABLEAUX.values(), ids=TABLEAUX)
def test_order_is_the_one_declared(tableau):
    assert conditions_failed(tableau.a, tableau.b, tableau.order) == []
    if tableau.order < 5:
        assert conditions_failed(tableau.a, tableau.b, tableau.order + 1) != []


def test_a_wrong_weight_is_noticed():
    weights = list(DORMAND_PRINCE.b)
    weights[2], weights[3] = weights[3], weights[2]
    assert conditions_failed(DORMAND_PRINCE.a, weights, 5) != []


@pytest.mark.parametrize("tableau", TABLEAUX.values(), ids=TABLEAUX)
def test_shape(tableau):
    assert [len(row) for row in tableau.a] == list(range(tableau.stages))
    assert len(tableau.b) == tableau.stages
    assert sum(tableau.b) == 1


def test_nodes_of_dormand_prince():
    assert tuple(DORMAND_PRINCE.c) == (F(0), F(1, 5), F(3, 10), F(4, 5), F(8, 9), F(1), F(1))


def test_error_weights_sum_to_zero_and_leave_order_four():
    assert sum(DORMAND_PRINCE.error) == 0
    embedded = [b - e for b, e in zip(DORMAND_PRINCE.b, DORMAND_PRINCE.error, strict=True)]
    assert conditions_failed(DORMAND_PRINCE.a, embedded, 4) == []
    assert conditions_failed(DORMAND_PRINCE.a, embedded, 5) != []


def test_last_stage_is_the_solution():
    assert tuple(DORMAND_PRINCE.a[-1]) == tuple(DORMAND_PRINCE.b[:-1])


def test_agrees_with_the_table_typed_for_the_oracle():
    for row, typed in zip(DORMAND_PRINCE.a, oracle.A, strict=True):
        assert [float(x) for x in row] == pytest.approx(typed, rel=1e-15, abs=0.0)
    assert [float(x) for x in DORMAND_PRINCE.b] == pytest.approx(oracle.B5, rel=1e-15, abs=0.0)
    difference = [b5 - b4 for b5, b4 in zip(oracle.B5, oracle.B4, strict=True)]
    assert [float(x) for x in DORMAND_PRINCE.error] == pytest.approx(difference, rel=1e-13, abs=1e-16)
