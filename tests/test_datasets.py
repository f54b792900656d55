"""The matrix that ships with the package and what is built from it."""

from __future__ import annotations

import numpy as np
import pytest

from spo_fast import datasets


def test_scpn16_is_a_symmetric_coupling_with_its_known_anchors():
    knm = datasets.scpn16()
    assert knm.shape == (16, 16)
    assert knm.dtype == np.float64
    assert knm.flags.c_contiguous
    np.testing.assert_array_equal(knm, knm.T)
    assert not knm.diagonal().any()
    assert [knm[i, i + 1] for i in range(4)] == [0.302, 0.201, 0.252, 0.154]


def test_scpn16_can_be_edited_without_touching_the_next_caller():
    datasets.scpn16()[:] = -1.0
    assert datasets.scpn16().min() == 0.0


@pytest.mark.parametrize("per_layer", [1, 2, 8])
def test_layers_share_the_coupling_among_their_oscillators(per_layer):
    knm, layer = datasets.scpn16_layers(per_layer, intra=0.6)
    np.testing.assert_array_equal(knm, knm.T)
    assert not knm.diagonal().any()
    np.testing.assert_array_equal(np.bincount(layer), np.full(16, per_layer))
    received = np.array([knm[:, layer == number].sum(1) for number in range(16)]).T
    expected = (datasets.scpn16() + np.eye(16) * 0.6 * (per_layer - 1) / per_layer)[layer]
    np.testing.assert_allclose(received, expected, rtol=1e-14, atol=0)


def test_empty_layers_are_refused():
    with pytest.raises(ValueError, match="per_layer must be an integer >= 1, got 0"):
        datasets.scpn16_layers(0)


def test_drawn_inputs_depend_on_the_seed_alone():
    for draw in (datasets.natural_frequencies, datasets.initial_phases):
        np.testing.assert_array_equal(draw(16), draw(16))
        assert not np.array_equal(draw(16), draw(16, seed=1))
    theta = datasets.initial_phases(1000)
    assert 0.0 <= theta.min() < theta.max() < 2.0 * np.pi
    omega = datasets.natural_frequencies(100_000, mean=3.0, spread=0.5)
    assert omega.mean() == pytest.approx(3.0, abs=0.01)
    assert omega.std() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: datasets.scpn16_layers(2.5), "per_layer must be an integer, got 2.5"),
        (lambda: datasets.initial_phases(2.5), "n must be an integer, got 2.5"),
        (lambda: datasets.natural_frequencies(-1), "n must be an integer >= 0, got -1"),
        (lambda: datasets.natural_frequencies(3, spread=-1.0), "spread must be >= 0"),
    ],
)
def test_arguments_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()
