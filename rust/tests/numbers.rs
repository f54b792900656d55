//! The functions against plain loops that know nothing of lanes.

mod common;

use common::{EULER, Heads, Kept, RK4, RK45, Random, Simulation, angle_between};
use spo_fast_rust::Status;

const SIZES: [usize; 9] = [0, 1, 3, 7, 8, 9, 16, 17, 33];

/// K' by the definition.
fn plain_modulate(heads: &Heads, knm: &[f64], theta: &[f64]) -> Vec<f64> {
    let (n, d) = (theta.len(), heads.d_model);
    let width = d / heads.n_heads;
    let feature = |i: usize, m: usize| {
        let angle = (m / 2 + 1) as f64 * theta[i];
        if m.is_multiple_of(2) { angle.cos() } else { angle.sin() }
    };
    let project = |weights: &[f64], h: usize, i: usize, e: usize| -> f64 {
        (0..d).map(|m| feature(i, m) * weights[(h * d + m) * width + e]).sum()
    };
    let near = |i: usize, j: usize| heads.block_size < 0 || i.abs_diff(j) as i64 <= heads.block_size;
    let seen = |i: usize, j: usize| i != j && knm[i * n + j] != 0.0 && near(i, j);
    let mut y = vec![0.0; n * d];
    for h in 0..heads.n_heads {
        let rows = |weights: &[f64]| -> Vec<f64> {
            (0..n * width).map(|at| project(weights, h, at / width, at % width)).collect()
        };
        let (q, k, v) = (rows(&heads.w_q), rows(&heads.w_k), rows(&heads.w_v));
        for i in 0..n {
            let logit = |j: usize| -> f64 {
                let product: f64 = (0..width).map(|e| q[i * width + e] * k[j * width + e]).sum();
                product / ((width as f64).sqrt() * heads.temperature[h])
            };
            let largest = (0..n).filter(|&j| seen(i, j)).map(logit).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> =
                (0..n).map(|j| if seen(i, j) { (logit(j) - largest).exp() } else { 0.0 }).collect();
            let total: f64 = weights.iter().sum();
            for e in 0..width {
                let sum: f64 = (0..n).map(|j| weights[j] * v[j * width + e]).sum();
                y[i * d + h * width + e] = if total > 0.0 { sum / total } else { 0.0 };
            }
        }
    }
    let outputs: Vec<Vec<f64>> = y
        .chunks(d)
        .map(|y| {
            let o: Vec<f64> = (0..d).map(|e| (0..d).map(|r| y[r] * heads.w_o[r * d + e]).sum()).collect();
            let length = o.iter().map(|x| x * x).sum::<f64>().sqrt() + 1e-12;
            o.iter().map(|x| x / length).collect()
        })
        .collect();
    // A pair is scaled as far as it lies within the band; the two directions share their mean.
    let mut modulated = vec![0.0; n * n];
    for i in 0..n {
        for j in (0..n).filter(|&j| i != j) {
            let product: f64 = (0..d).map(|e| outputs[i][e] * outputs[j][e]).sum();
            let factor = if near(i, j) { 1.0 + heads.lambda * 0.5 * (1.0 + product) } else { 1.0 };
            modulated[i * n + j] = 0.5 * (knm[i * n + j] + knm[j * n + i]) * factor;
        }
    }
    modulated
}

#[test]
fn modulate_agrees_with_the_definition() {
    let plain = Heads::random(4, 8);
    for n in SIZES {
        let variants = [
            plain.clone(),
            Heads { temperature: vec![0.3, 1.0, 2.5, 9.0], ..plain.clone() },
            Heads { temperature: vec![1e-3; 4], ..plain.clone() },
            Heads { block_size: 0, ..plain.clone() },
            Heads { block_size: 1, ..plain.clone() },
            Heads { block_size: 5, ..plain.clone() },
            Heads { block_size: 1 << 40, lambda: 3.0, ..plain.clone() },
            Heads::random(1, 8),
            Heads::random(2, 8),
            Heads::random(8, 8),
            Heads::random(2, 12),
            Heads::random(1, 16),
        ];
        for (heads, (density, one_sided)) in variants.iter().flat_map(|heads| {
            [(1.0, false), (0.4, false), (0.8, true), (0.0, false)].map(|kind| (heads, kind))
        }) {
            let knm = Random::new(n as u64).coupling(n, density, one_sided);
            let theta = Random::new(11).numbers(n, -3.0, 7.0);
            let expected = plain_modulate(heads, &knm, &theta);
            let found = heads.modulate(&knm, &theta).unwrap();
            for (e, (found, right)) in found.iter().zip(&expected).enumerate() {
                // Small temperatures enlarge the rounding of the logits.
                let tolerance = if heads.temperature[0] < 0.01 { 1e-10 } else { 1e-13 };
                assert!((found - right).abs() <= tolerance, "{found} for {right}: entry {e} of {heads:?}");
            }
        }
    }
}

#[test]
fn no_modulation_copies_the_bits() {
    for n in SIZES {
        let mut knm = Random::new(n as u64).coupling(n, 0.7, true);
        if n > 1 {
            (knm[1], knm[n]) = (-0.0, 0.0);
            knm[0] = 1e-13;
        }
        let heads = Heads { lambda: 0.0, ..Heads::random(4, 8) };
        let found = heads.modulate(&knm, &Random::new(1).numbers(n, 0.0, 6.0)).unwrap();
        assert!(found.iter().zip(&knm).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn huge_weights_and_phases_neither_overflow_nor_give_nan() {
    for (scale, reach) in [(1e3, 6.0), (1e100, 6.0), (1e154, 6.0), (1e300, 6.0), (1.0, 1e9), (1e3, 1e15)] {
        for (density, tau) in [(1.0, 1.0), (0.5, 1.0), (1.0, 1e-3), (1.0, 1e-300)] {
            let mut heads = Heads::random(4, 8);
            for weight in heads.w_q.iter_mut().chain(&mut heads.w_k) {
                *weight *= scale;
            }
            heads.temperature = vec![tau; 4];
            let knm = Random::new(5).coupling(21, density, false);
            let found = heads.modulate(&knm, &Random::new(6).numbers(21, -reach, reach)).unwrap();
            assert!(found.iter().all(|x| x.is_finite()), "scale {scale}, tau {tau}");
        }
    }
}

#[test]
fn whole_turns_of_the_phases_change_next_to_nothing() {
    let (n, heads) = (40, Heads::random(4, 8));
    let knm = Random::new(5).coupling(n, 1.0, false);
    let theta = Random::new(6).numbers(n, 0.0, 6.0);
    let expected = heads.modulate(&knm, &theta).unwrap();
    for turns in [1.0, -3.0, 1e5, 1e8] {
        let turned: Vec<f64> = theta.iter().map(|x| x + turns * std::f64::consts::TAU).collect();
        let found = heads.modulate(&knm, &turned).unwrap();
        let tolerance = 1e-12 + 10.0 * f64::EPSILON * turns.abs() * 8.0;
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= tolerance), "{turns} turns");
    }
}

/// f by a sine per pair.
fn plain_drift(run: &Simulation, knm: &[f64], theta: &[f64]) -> Vec<f64> {
    let n = theta.len();
    let lag = |at: usize| run.alpha.as_ref().map_or(run.uniform_alpha, |alpha| alpha[at]);
    let pull = |i: usize, j: usize| knm[i * n + j] * (theta[j] - theta[i] - lag(i * n + j)).sin();
    let drive = |i: usize| run.zeta * (run.psi - theta[i]).sin();
    (0..n).map(|i| run.omega[i] + (0..n).map(|j| pull(i, j)).sum::<f64>() + drive(i)).collect()
}

/// One step of fixed size.
fn plain_step(run: &Simulation, knm: &[f64], theta: &[f64]) -> Vec<f64> {
    let dt = run.integrator.dt;
    let along =
        |slope: &[f64], by: f64| -> Vec<f64> { theta.iter().zip(slope).map(|(x, f)| x + by * f).collect() };
    let first = plain_drift(run, knm, theta);
    if run.integrator.method == EULER {
        return along(&first, dt);
    }
    let second = plain_drift(run, knm, &along(&first, dt / 2.0));
    let third = plain_drift(run, knm, &along(&second, dt / 2.0));
    let fourth = plain_drift(run, knm, &along(&third, dt));
    let mean: Vec<f64> =
        (0..theta.len()).map(|i| (first[i] + 2.0 * (second[i] + third[i]) + fourth[i]) / 6.0).collect();
    along(&mean, dt)
}

/// Networks of a size and a method: without and with modulation, with a uniform lag and one a pair.
fn simulations(n: usize, method: i64) -> Vec<Simulation> {
    let plain = Simulation::random(n, method);
    let all = [plain.clone(), plain.clone().modulated_every(1), plain.modulated_every(3)];
    all.into_iter().flat_map(|run| [run.clone(), run.lagged()]).collect()
}

#[test]
fn runs_agree_with_plain_loops() {
    let steps = 12;
    for (n, method) in SIZES.into_iter().flat_map(|n| [(n, EULER), (n, RK4)]) {
        for mut run in simulations(n, method) {
            let (mut theta, mut modulated) = (run.theta.clone(), vec![]);
            for step in 0..steps {
                if let Some(heads) = run.heads.as_ref().filter(|_| step % run.modulate_every == 0) {
                    modulated = plain_modulate(heads, &run.knm, &theta);
                }
                let knm = if run.heads.is_some() { &modulated } else { &run.knm };
                theta = plain_step(&run, knm, &theta);
            }
            assert_eq!(run.run(steps, None), Status::Ok);
            let full = std::f64::consts::TAU;
            assert!(run.theta.iter().all(|x| (0.0..full).contains(x)));
            let error = run.theta.iter().zip(&theta).map(|(&a, &b)| angle_between(a, b)).fold(0.0, f64::max);
            assert!(error <= 1e-11, "{error}: n = {n}, method {method}");
            assert_eq!((run.step, run.t), (steps, steps as f64 * run.integrator.dt));
        }
    }
}

#[test]
fn modulated_runs_are_modulations_and_steps_bit_for_bit() {
    for method in [EULER, RK4, RK45] {
        for mut run in simulations(17, method).into_iter().filter(|run| run.heads.is_some()) {
            let mut by_hand = Simulation { heads: None, ..run.clone() };
            let mut modulated = vec![];
            for step in 0..10 {
                if step % run.modulate_every == 0 {
                    // Wraps the phases.
                    by_hand.run(0, None);
                    modulated = run.heads.as_ref().unwrap().modulate(&run.knm, &by_hand.theta).unwrap();
                }
                by_hand.knm.clone_from(&modulated);
                assert_eq!(by_hand.run(1, None), Status::Ok);
            }
            assert_eq!(run.run(10, None), Status::Ok);
            assert_eq!((run.theta, run.dt, run.t), (by_hand.theta, by_hand.dt, by_hand.t));
            assert_eq!(run.modulated, modulated);
        }
    }
}

#[test]
fn pieces_of_a_run_end_in_the_bits_of_the_whole() {
    for (n, method) in [1, 7, 17, 33].into_iter().flat_map(|n| [(n, EULER), (n, RK4), (n, RK45)]) {
        for run in simulations(n, method) {
            let of_pieces = |pieces: &[i64]| {
                let (mut run, mut kept) = (run.clone(), Kept::room(n, 1, 12));
                for &steps in pieces {
                    assert_eq!(run.run(steps, Some(&kept.raw())), Status::Ok);
                }
                (run.theta, run.modulated, run.t, run.dt, run.step, kept)
            };
            let whole = of_pieces(&[12]);
            // With modulation, K' is NaN until the first step: NaN is not itself.
            assert!(!whole.1.iter().any(|x| x.is_nan()));
            assert_eq!(of_pieces(&[1; 12]), whole);
            assert_eq!(of_pieces(&[0, 4, 1, 0, 7]), whole);
        }
    }
}

#[test]
fn an_adaptive_run_keeps_to_its_tolerance() {
    let mut coarse = Simulation::random(9, RK45);
    coarse.integrator.atol = 1e-9;
    coarse.integrator.rtol = 1e-9;
    assert_eq!(coarse.run(400, None), Status::Ok);
    let mut fine = Simulation::random(9, RK4);
    fine.integrator.dt = coarse.t / 20_000.0;
    fine.dt = fine.integrator.dt;
    assert_eq!(fine.run(20_000, None), Status::Ok);
    let error = coarse.theta.iter().zip(&fine.theta).map(|(&a, &b)| angle_between(a, b)).fold(0.0, f64::max);
    assert!(error <= 1e-6, "{error} at t = {}", coarse.t);
    assert!(coarse.dt <= 10.0 * coarse.integrator.dt);
}

#[test]
fn a_run_without_a_tolerance_shrinks_its_step() {
    let mut run = Simulation::random(5, RK45);
    (run.integrator.atol, run.integrator.rtol) = (0.0, 0.0);
    assert_eq!(run.run(1, None), Status::Ok);
    assert!(run.dt < run.integrator.dt);
}

#[test]
fn identical_oscillators_stay_identical() {
    for method in [EULER, RK4, RK45] {
        let n = 33;
        let mut run = Simulation::random(n, method);
        run.omega = vec![1.5; n];
        run.knm = vec![0.01; n * n];
        run.theta = vec![0.7; n];
        let mut kept = Kept::room(n, 0, 500);
        assert_eq!(run.run(500, Some(&kept.raw())), Status::Ok);
        assert!(run.theta.iter().all(|&x| angle_between(x, run.theta[0]) <= 1e-12));
        assert!(kept.r.iter().all(|r| (1.0 - 1e-15..=1.0).contains(r)));
    }
}
