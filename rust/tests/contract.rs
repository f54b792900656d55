//! What the header promises: statuses and their order, texts, what is written and what is not.

mod common;

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use common::{EULER, Heads, Kept, RK4, RK45, Random, Simulation, order_parameter, status};
use spo_fast_rust::Status;
use spo_fast_rust::ffi::*;

#[test]
fn version_name_and_texts() {
    // SAFETY: the library gives static strings.
    let text = |number| unsafe { CStr::from_ptr(spo_status_text(number)) }.to_str().unwrap();
    assert_eq!(spo_abi_version(), 1);
    // SAFETY: the same.
    assert_eq!(unsafe { CStr::from_ptr(spo_backend_name()) }, c"rust");
    let texts = [
        "success",
        "an argument is out of its range",
        "out of memory",
        "the coupling matrix holds NaN or infinity",
        "the coupling matrix is not symmetric within 1e-12",
        "the diagonal of the coupling matrix is not zero within 1e-12",
        "the phases hold NaN or infinity",
        "a step gave NaN or infinity",
    ];
    for (number, expected) in texts.into_iter().enumerate() {
        assert_eq!(text(number as i32), expected);
    }
    for number in [-1, 8, 999, i32::MIN, i32::MAX] {
        assert_eq!(text(number), "unknown status");
    }
}

#[test]
fn modulate_refuses_bad_data_in_order() {
    for n in [5, 8, 13, 40] {
        let (knm, theta) = (Random::new(1).coupling(n, 1.0, false), Random::new(2).numbers(n, 0.0, 6.0));
        // Each fault comes with all those that are found later.
        let faults = [
            (Status::NonfinitePhase, n + 3),
            (Status::NonzeroDiagonal, 4 * n + 4),
            (Status::AsymmetricCoupling, 1),
            (Status::NonfiniteCoupling, 2 * n + 1),
        ];
        let (mut bad_knm, mut bad_theta) = (knm.clone(), theta.clone());
        for (expected, entry) in faults {
            match expected {
                Status::NonfinitePhase => bad_theta[3] = f64::INFINITY,
                Status::NonfiniteCoupling => bad_knm[entry] = f64::NAN,
                _ => bad_knm[entry] += 1e-6,
            }
            assert_eq!(Heads::random(4, 8).modulate(&bad_knm, &bad_theta), Err(expected), "n = {n}");
        }
        assert!(Heads::random(4, 8).modulate(&knm, &theta).is_ok());
    }
}

#[test]
fn modulate_refuses_bad_parameters() {
    let heads = Heads::random(4, 8);
    let call = |n: i64, change: &dyn Fn(&mut SpoModulation)| {
        let mut raw = heads.raw();
        change(&mut raw);
        let (zero, mut out) = ([0.0], [f64::NAN]);
        // SAFETY: one oscillator; any other number is refused before the arrays are read.
        status(unsafe { spo_modulate(n, zero.as_ptr(), zero.as_ptr(), &raw, out.as_mut_ptr()) })
    };
    assert_eq!(call(1, &|_| {}), Status::Ok);
    let changes: [&dyn Fn(&mut SpoModulation); 17] = [
        &|m| m.n_heads = 0,
        &|m| m.n_heads = -4,
        &|m| m.n_heads = 3,
        &|m| m.n_heads = i64::MAX,
        &|m| m.d_model = 0,
        &|m| m.d_model = 7,
        &|m| m.d_model = -8,
        &|m| m.d_model = 1 << 29,
        &|m| m.block_size = -2,
        &|m| m.lambda = -1.0,
        &|m| m.lambda = f64::NAN,
        &|m| m.lambda = f64::INFINITY,
        &|m| m.w_q = null(),
        &|m| m.w_k = null(),
        &|m| m.w_v = null(),
        &|m| m.w_o = null(),
        &|m| m.temperature = null(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        assert_eq!(call(1, change), Status::InvalidArgument, "change {index}");
        assert_eq!(call(0, change), Status::InvalidArgument, "change {index}");
    }
    for tau in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let temperature = [1.0, 1.0, 1.0, tau];
        assert_eq!(call(1, &|m| m.temperature = temperature.as_ptr()), Status::InvalidArgument, "{tau}");
    }
    for n in [-1, i64::MIN, (1 << 28) + 1, i64::MAX] {
        assert_eq!(call(n, &|_| {}), Status::InvalidArgument);
    }
}

#[test]
fn modulate_refuses_null_pointers_unless_there_is_nothing_to_do() {
    let (heads, zero) = (Heads::random(4, 8), [0.0]);
    let (raw, mut out) = (heads.raw(), [f64::NAN]);
    let call = |n, knm: *const f64, theta: *const f64, modulation: *const SpoModulation, out: *mut f64| {
        // SAFETY: null, or one oscillator.
        status(unsafe { spo_modulate(n, knm, theta, modulation, out) })
    };
    let (some, place) = (zero.as_ptr(), out.as_mut_ptr());
    assert_eq!(call(0, null(), null(), &raw, null_mut()), Status::Ok);
    assert_eq!(call(0, null(), null(), null(), null_mut()), Status::InvalidArgument);
    assert_eq!(call(1, null(), some, &raw, place), Status::InvalidArgument);
    assert_eq!(call(1, some, null(), &raw, place), Status::InvalidArgument);
    assert_eq!(call(1, some, some, &raw, null_mut()), Status::InvalidArgument);
    assert_eq!(call(1, some, some, &raw, place), Status::Ok);
    assert_eq!(out, [0.0]);
}

#[test]
fn theta_may_lie_in_out() {
    let n = 19;
    for one_sided in [false, true] {
        let knm = Random::new(3).coupling(n, 0.9, one_sided);
        let (theta, heads) = (Random::new(4).numbers(n, -4.0, 4.0), Heads::random(4, 8));
        let expected = heads.modulate(&knm, &theta).unwrap();
        let mut out = vec![f64::NAN; n * n];
        out[n..2 * n].copy_from_slice(&theta);
        let place = out.as_mut_ptr();
        // SAFETY: theta lies in out, which this function allows.
        let number = unsafe { spo_modulate(n as i64, knm.as_ptr(), place.add(n), &heads.raw(), place) };
        assert_eq!((status(number), out), (Status::Ok, expected));
    }
}

#[test]
fn order_parameter_of_known_states_and_of_bad_ones() {
    let pi = std::f64::consts::PI;
    for (theta, right) in
        [(vec![], 0.0), (vec![1.0], 1.0), (vec![0.0, pi], 0.0), (vec![1e-3, -1e-3], 0.9999995)]
    {
        let (r, psi) = order_parameter(&theta).unwrap();
        assert!((r - right).abs() <= 1e-12 && (0.0..2.0 * pi).contains(&psi), "{r} of {theta:?}");
    }
    assert_eq!(order_parameter(&[]), Ok((0.0, 0.0)));
    assert_eq!(order_parameter(&[1.0, f64::NAN]), Err(Status::NonfinitePhase));
    assert_eq!(order_parameter(&[f64::NEG_INFINITY]), Err(Status::NonfinitePhase));
    let mut r = 0.0;
    let call = |n, theta: *const f64, r: *mut f64, psi: *mut f64| {
        // SAFETY: null, or one phase.
        status(unsafe { spo_order_parameter(n, theta, r, psi) })
    };
    let (one, place) = ([0.5], &raw mut r);
    assert_eq!(call(-1, one.as_ptr(), place, place), Status::InvalidArgument);
    assert_eq!(call(1, null(), place, place), Status::InvalidArgument);
    assert_eq!(call(1, one.as_ptr(), null_mut(), place), Status::InvalidArgument);
    assert_eq!(call(1, one.as_ptr(), place, null_mut()), Status::InvalidArgument);
    assert_eq!(call(0, null(), place, place), Status::Ok);
}

#[test]
fn a_run_refuses_bad_numbers_and_touches_nothing() {
    let good = Simulation::random(3, EULER).modulated_every(2);
    let changes: [&dyn Fn(&mut Simulation); 14] = [
        &|s| s.integrator.method = 3,
        &|s| s.integrator.method = -1,
        &|s| s.integrator.dt = 0.0,
        &|s| s.integrator.dt = f64::NAN,
        &|s| s.integrator.dt = f64::INFINITY,
        &|s| s.integrator.atol = -1.0,
        &|s| s.integrator.rtol = f64::NAN,
        &|s| s.zeta = f64::NAN,
        &|s| s.psi = f64::INFINITY,
        &|s| s.uniform_alpha = f64::NAN,
        &|s| s.modulate_every = 0,
        &|s| s.modulate_every = -1,
        &|s| s.heads.as_mut().unwrap().n_heads = 3,
        &|s| s.heads.as_mut().unwrap().temperature[2] = 0.0,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(bad.run(1, None), Status::InvalidArgument, "change {index}");
        assert_eq!((bad.theta, bad.step, bad.t), (good.theta.clone(), 0, 0.0));
    }
    assert_eq!(good.clone().run(-1, None), Status::InvalidArgument);
    assert_eq!(good.clone().run(0, None), Status::Ok);
}

#[test]
fn a_run_refuses_null_pointers_unless_there_is_nothing_to_do() {
    let (heads, zero) = (Heads::random(4, 8), [0.0]);
    let modulation = heads.raw();
    let [mut theta, mut modulated] = [[0.5], [0.0]];
    let integrator = SpoIntegrator { method: RK45, dt: 0.1, atol: 1e-6, rtol: 1e-3 };
    let network = SpoNetwork {
        n: 1,
        omega: zero.as_ptr(),
        knm: zero.as_ptr(),
        alpha: null(),
        uniform_alpha: 0.0,
        zeta: 0.0,
        psi: 0.0,
        modulation: &modulation,
        modulate_every: 1,
    };
    let state =
        SpoState { theta: theta.as_mut_ptr(), modulated: modulated.as_mut_ptr(), t: 0.0, dt: 0.1, step: 0 };
    let run = |network: SpoNetwork, mut state: SpoState| {
        // SAFETY: null, or one oscillator.
        status(unsafe { spo_kuramoto_run(&network, &integrator, &mut state, 2, null()) })
    };
    assert_eq!(run(network, state), Status::Ok);
    let refused = Status::InvalidArgument;
    assert_eq!(run(SpoNetwork { omega: null(), ..network }, state), refused);
    assert_eq!(run(SpoNetwork { knm: null(), ..network }, state), refused);
    assert_eq!(run(SpoNetwork { n: -1, ..network }, state), refused);
    assert_eq!(run(SpoNetwork { n: (1 << 28) + 1, ..network }, state), refused);
    assert_eq!(run(network, SpoState { theta: null_mut(), ..state }), refused);
    assert_eq!(run(network, SpoState { modulated: null_mut(), ..state }), refused);
    let nothing = SpoState { theta: null_mut(), modulated: null_mut(), ..state };
    assert_eq!(run(SpoNetwork { n: 0, omega: null(), knm: null(), ..network }, nothing), Status::Ok);
    // SAFETY: null pointers are refused.
    let without =
        |network, integrator, state| unsafe { spo_kuramoto_run(network, integrator, state, 1, null()) };
    let mut place = state;
    assert_eq!(status(without(null(), &integrator, &mut place)), refused);
    assert_eq!(status(without(&network, null(), &mut place)), refused);
    assert_eq!(status(without(&network, &integrator, null_mut())), refused);
}

#[test]
fn sizes_that_no_memory_holds_are_reported_before_data_are_read() {
    let tiny = [1.0];
    let modulation = SpoModulation {
        n_heads: 1,
        d_model: 1 << 20,
        block_size: -1,
        w_q: tiny.as_ptr(),
        w_k: tiny.as_ptr(),
        w_v: tiny.as_ptr(),
        w_o: tiny.as_ptr(),
        temperature: tiny.as_ptr(),
        lambda: 0.5,
    };
    let largest = SpoModulation { d_model: 1 << 28, ..modulation };
    for (alpha, modulation) in [
        (null(), &raw const modulation),
        (tiny.as_ptr(), &raw const modulation),
        (null(), &raw const largest),
        (tiny.as_ptr(), &raw const largest),
        (tiny.as_ptr(), null()),
    ] {
        let network = SpoNetwork {
            n: 1 << 28,
            omega: tiny.as_ptr(),
            knm: tiny.as_ptr(),
            alpha,
            uniform_alpha: 0.0,
            zeta: 0.0,
            psi: 0.0,
            modulation,
            modulate_every: 1,
        };
        let integrator = SpoIntegrator { method: RK4, dt: 0.01, atol: 0.0, rtol: 0.0 };
        let mut place = [0.25];
        let theta = place.as_mut_ptr();
        let mut state = SpoState { theta, modulated: theta, t: 0.0, dt: 0.01, step: 0 };
        // SAFETY: nothing is read.
        let number = unsafe { spo_kuramoto_run(&network, &integrator, &mut state, 1, null()) };
        assert_eq!((status(number), place, state.step), (Status::OutOfMemory, [0.25], 0));
    }
}

#[test]
fn a_run_checks_k_only_for_the_modulation() {
    for (entry, value, expected) in [
        (1, f64::NAN, Status::NonfiniteCoupling),
        (1, 9.0, Status::AsymmetricCoupling),
        (0, 1e-6, Status::NonzeroDiagonal),
    ] {
        let mut run = Simulation::random(9, EULER).modulated_every(1);
        run.knm[entry] = value;
        run.theta[2] = f64::NAN;
        assert_eq!(run.run(3, None), expected);
        run.heads = None;
        assert_eq!(run.run(3, None), Status::NonfinitePhase);
        run.theta[2] = 0.0;
        assert_eq!(run.run(3, None), if value.is_nan() { Status::NonfiniteState } else { Status::Ok });
    }
}

#[test]
fn a_step_that_is_not_finite_leaves_the_last_good_state() {
    for method in [EULER, RK4, RK45] {
        for n in [1, 7, 17] {
            let mut run = Simulation::random(n, method);
            assert_eq!(run.run(2, None), Status::Ok);
            let good = run.clone();
            run.omega[n - 1] = f64::INFINITY;
            let mut kept = Kept::room(n, 1, 5);
            assert_eq!(run.run(3, Some(&kept.raw())), Status::NonfiniteState);
            assert_eq!((run.theta, run.step, run.t, run.dt), (good.theta, good.step, good.t, good.dt));
            assert!(kept.theta.iter().all(|&x| x == -7.0));
            assert_eq!(kept.t_observe, [-7.0, -7.0, run.t, -7.0, -7.0, -7.0]);
        }
    }
}

#[test]
fn a_record_keeps_what_was_asked_for() {
    let (n, steps) = (5, 7);
    let mut whole = Kept::room(n, 1, steps);
    let mut run = Simulation::random(n, RK4);
    run.run(steps as i64, Some(&whole.raw()));
    for every in [0, 1, 3, 100] {
        let mut kept = Kept::room(n, every, steps);
        let mut again = Simulation::random(n, RK4);
        assert_eq!(again.run(steps as i64, Some(&kept.raw())), Status::Ok);
        assert_eq!(again.theta, run.theta);
        for (row, theta) in kept.theta.chunks(n).enumerate() {
            // Row 0 would be the state at step 0, which no step ends in.
            let step = row * every as usize;
            let expected = if row == 0 { &[-7.0; 5][..] } else { &whole.theta[step * n..(step + 1) * n] };
            assert_eq!(theta, expected);
            assert_eq!(kept.t[row], if row == 0 { -7.0 } else { whole.t[step] });
        }
        assert_eq!(
            (kept.r, kept.psi, kept.t_observe),
            (whole.r.clone(), whole.psi.clone(), whole.t_observe.clone())
        );
    }
    for step in 1..=steps {
        let (r, psi) = order_parameter(&whole.theta[step * n..(step + 1) * n]).unwrap();
        assert_eq!((whole.r[step], whole.psi[step]), (r, psi));
        assert_eq!((whole.t[step], whole.t_observe[step]), (0.02 * step as f64, 0.02 * step as f64));
    }
    let nothing = SpoRecord {
        every: 1,
        theta: null_mut(),
        t: null_mut(),
        r: null_mut(),
        psi: null_mut(),
        t_observe: null_mut(),
    };
    let mut again = Simulation::random(n, RK4);
    assert_eq!(again.run(steps as i64, Some(&nothing)), Status::Ok);
    assert_eq!(again.theta, run.theta);
}
