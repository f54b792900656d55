//! Arguments that own their arrays, and calls with them.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::ptr::{null, null_mut};

use spo_fast_rust::Status;
use spo_fast_rust::ffi::*;

#[path = "../../src/testing.rs"]
mod testing;

pub use testing::Random;

pub const EULER: i64 = 0;
pub const RK4: i64 = 1;
pub const RK45: i64 = 2;

/// The status of a number.
pub fn status(number: i32) -> Status {
    use Status::*;
    let all = [
        Ok,
        InvalidArgument,
        OutOfMemory,
        NonfiniteCoupling,
        AsymmetricCoupling,
        NonzeroDiagonal,
        NonfinitePhase,
        NonfiniteState,
    ];
    all[number as usize]
}

/// A modulation with its arrays.
#[derive(Clone, Debug)]
pub struct Heads {
    pub n_heads: usize,
    pub d_model: usize,
    pub block_size: i64,
    pub w_q: Vec<f64>,
    pub w_k: Vec<f64>,
    pub w_v: Vec<f64>,
    pub w_o: Vec<f64>,
    pub temperature: Vec<f64>,
    pub lambda: f64,
}

impl Heads {
    pub fn random(n_heads: usize, d_model: usize) -> Self {
        let mut random = Random::new((n_heads + d_model) as u64);
        let mut weights = || random.numbers(d_model * d_model, -0.6, 0.6);
        Self {
            n_heads,
            d_model,
            block_size: -1,
            w_q: weights(),
            w_k: weights(),
            w_v: weights(),
            w_o: weights(),
            temperature: vec![1.0; n_heads],
            lambda: 0.5,
        }
    }

    pub fn raw(&self) -> SpoModulation {
        SpoModulation {
            n_heads: self.n_heads as i64,
            d_model: self.d_model as i64,
            block_size: self.block_size,
            w_q: self.w_q.as_ptr(),
            w_k: self.w_k.as_ptr(),
            w_v: self.w_v.as_ptr(),
            w_o: self.w_o.as_ptr(),
            temperature: self.temperature.as_ptr(),
            lambda: self.lambda,
        }
    }

    /// K'; every entry must have been written.
    pub fn modulate(&self, knm: &[f64], theta: &[f64]) -> Result<Vec<f64>, Status> {
        let mut out = vec![f64::NAN; knm.len()];
        let n = theta.len() as i64;
        // SAFETY: every array is as large as it should be.
        let number = unsafe { spo_modulate(n, knm.as_ptr(), theta.as_ptr(), &self.raw(), out.as_mut_ptr()) };
        match status(number) {
            Status::Ok => Ok(out),
            failure => {
                assert!(out.iter().all(|x| x.is_nan()), "nothing may be written");
                Err(failure)
            }
        }
    }
}

/// A network, an integrator and a state, with their arrays.
#[derive(Clone, Debug)]
pub struct Simulation {
    pub omega: Vec<f64>,
    pub knm: Vec<f64>,
    pub alpha: Option<Vec<f64>>,
    pub uniform_alpha: f64,
    pub zeta: f64,
    pub psi: f64,
    pub heads: Option<Heads>,
    pub modulate_every: i64,
    pub integrator: SpoIntegrator,
    pub theta: Vec<f64>,
    pub modulated: Vec<f64>,
    pub t: f64,
    pub dt: f64,
    pub step: i64,
}

impl Simulation {
    pub fn random(n: usize, method: i64) -> Self {
        let mut random = Random::new(n as u64);
        let dt = 0.02;
        Self {
            omega: random.numbers(n, -2.0, 2.0),
            knm: random.numbers(n * n, -0.2, 0.6),
            alpha: None,
            uniform_alpha: 0.3,
            zeta: 0.4,
            psi: 1.1,
            heads: None,
            modulate_every: 1,
            integrator: SpoIntegrator { method, dt, atol: 1e-6, rtol: 1e-3 },
            theta: random.numbers(n, -9.0, 9.0),
            modulated: vec![],
            t: 0.0,
            dt,
            step: 0,
        }
    }

    pub fn n(&self) -> usize {
        self.theta.len()
    }

    /// Has K rescaled at each step that `every` divides.
    pub fn modulated_every(mut self, every: i64) -> Self {
        self.knm = Random::new(7).coupling(self.n(), 0.8, false);
        self.modulated = vec![f64::NAN; self.knm.len()];
        self.heads = Some(Heads::random(4, 8));
        self.modulate_every = every;
        self
    }

    /// Gives each pair a lag of its own.
    pub fn lagged(mut self) -> Self {
        self.alpha = Some(Random::new(8).numbers(self.knm.len(), -2.0, 2.0));
        self
    }

    pub fn run(&mut self, n_steps: i64, record: Option<&SpoRecord>) -> Status {
        let modulation = self.heads.as_ref().map(Heads::raw);
        let network = SpoNetwork {
            n: self.n() as i64,
            omega: self.omega.as_ptr(),
            knm: self.knm.as_ptr(),
            alpha: self.alpha.as_ref().map_or(null(), |alpha| alpha.as_ptr()),
            uniform_alpha: self.uniform_alpha,
            zeta: self.zeta,
            psi: self.psi,
            modulation: modulation.as_ref().map_or(null(), |modulation| modulation),
            modulate_every: self.modulate_every,
        };
        let modulated = if modulation.is_some() { self.modulated.as_mut_ptr() } else { null_mut() };
        let theta = self.theta.as_mut_ptr();
        let mut state = SpoState { theta, modulated, t: self.t, dt: self.dt, step: self.step };
        let record = record.map_or(null(), |record| record);
        // SAFETY: every array is as large as it should be.
        let number = unsafe { spo_kuramoto_run(&network, &self.integrator, &mut state, n_steps, record) };
        (self.t, self.dt, self.step) = (state.t, state.dt, state.step);
        status(number)
    }
}

/// Everything that a record can keep of the steps 0 ... `steps`.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub every: i64,
    pub theta: Vec<f64>,
    pub t: Vec<f64>,
    pub r: Vec<f64>,
    pub psi: Vec<f64>,
    pub t_observe: Vec<f64>,
}

impl Kept {
    /// Filled with a number that nothing leads to.
    pub fn room(n: usize, every: i64, steps: usize) -> Self {
        let rows = if every > 0 { steps / every as usize + 1 } else { 0 };
        let observed = vec![-7.0; steps + 1];
        Self {
            every,
            theta: vec![-7.0; rows * n],
            t: vec![-7.0; rows],
            r: observed.clone(),
            psi: observed.clone(),
            t_observe: observed,
        }
    }

    pub fn raw(&mut self) -> SpoRecord {
        SpoRecord {
            every: self.every,
            theta: self.theta.as_mut_ptr(),
            t: self.t.as_mut_ptr(),
            r: self.r.as_mut_ptr(),
            psi: self.psi.as_mut_ptr(),
            t_observe: self.t_observe.as_mut_ptr(),
        }
    }
}

/// r and psi.
pub fn order_parameter(theta: &[f64]) -> Result<(f64, f64), Status> {
    let (mut r, mut psi) = (f64::NAN, f64::NAN);
    // SAFETY: theta is as large as it should be.
    let number = unsafe { spo_order_parameter(theta.len() as i64, theta.as_ptr(), &mut r, &mut psi) };
    match status(number) {
        Status::Ok => Ok((r, psi)),
        failure => Err(failure),
    }
}

/// The distance of two angles.
pub fn angle_between(a: f64, b: f64) -> f64 {
    let full = std::f64::consts::TAU;
    let apart = (a - b).rem_euclid(full);
    apart.min(full - apart)
}
