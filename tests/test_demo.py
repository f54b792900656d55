"""The demo's numbers agree with the states they are taken from, and its picture is written."""

from __future__ import annotations

import numpy as np
import pytest

from spo_fast import datasets, demo, layer_coherence, modulate

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def single():
    return demo.scpn16_comparison(300, rounds=1)


@pytest.fixture(scope="module")
def layered():
    return demo.layered_comparison(20, rounds=1)


def test_both_runs_start_alike_and_end_apart(single):
    np.testing.assert_array_equal(single.plain.theta[0], single.modulated.theta[0])
    assert single.plain.R[0] == single.modulated.R[0]
    assert abs(single.plain.R[-1] - single.modulated.R[-1]) > 1e-3


def test_the_default_network_is_partly_synchronised_and_modulation_shows():
    comparison = demo.scpn16_comparison(6_000, rounds=1)
    late = [demo._late_mean(run.R) for run in (comparison.plain, comparison.modulated)]
    assert 0.4 < late[0] < 0.8
    assert late[1] - late[0] > 0.1


def test_mean_alignment_is_the_order_parameter(single):
    for run in (single.plain, single.modulated):
        assert demo.alignment(run).mean() == pytest.approx(run.R[-1], abs=1e-12)


def test_mean_coupling_averages_over_the_modulated_run(single, monkeypatch):
    monkeypatch.setattr(demo, "MEAN_COUPLING_STATES", 3)
    states = single.modulated.theta
    sample = states[:: len(states) // 3]
    expected = sum(modulate(single.knm, theta) for theta in sample) / len(sample)
    np.testing.assert_allclose(demo.mean_coupling(single), expected, rtol=1e-12, atol=0)


def test_coherences_are_those_of_the_layers(layered):
    comparison, layer = layered
    late = comparison.plain.theta[len(comparison.plain.theta) // 2 :]
    expected = [np.mean([layer_coherence(theta, layer == number) for theta in late]) for number in range(16)]
    np.testing.assert_allclose(demo.coherences(comparison.plain, layer), expected, rtol=0, atol=1e-12)


def test_the_report_names_every_layer_and_both_speeds(single, layered):
    text = demo.report(single, *layered)
    assert text.count("layer 16") == 2
    assert text.count("steps per second") == text.count("overhead of modulation") == 2
    assert f"{single.plain.R[-1]:.4f}" in text
    assert f"{single.modulated.R[-1]:.4f}" in text


def test_overhead_is_the_added_share_of_time(single):
    comparison = demo.Comparison(single.plain, single.modulated, (2.0, 5.0), single.knm)
    assert comparison.overhead == 150.0


def test_main_writes_a_picture(tmp_path, capsys):
    path = demo.main(tmp_path / "new" / "folder", 40, rounds=1)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 50_000
    assert str(path) in capsys.readouterr().out


def test_no_text_of_the_picture_overlaps(single, layered):
    figure = demo.picture(single, *layered)
    figure.draw_without_rendering()
    renderer = figure._get_renderer()
    for axes in figure.axes:
        texts = [
            axes.title,
            axes.xaxis.label,
            axes.yaxis.label,
            *axes.get_xticklabels(),
            *axes.get_yticklabels(),
        ]
        boxes = [text.get_window_extent(renderer) for text in texts if text.get_visible() and text.get_text()]
        for i, box in enumerate(boxes):
            assert not any(box.padded(-2).overlaps(other) for other in boxes[:i]), axes.get_title()


def test_the_demo_draws_from_the_shipped_network(single):
    np.testing.assert_array_equal(single.knm, datasets.scpn16())
