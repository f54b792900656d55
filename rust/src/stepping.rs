//! Explicit Runge-Kutta steps from the tableaux, the controller of the adaptive one, and the loop that takes
//! them: modulation, observation and records at their steps. A run cut into pieces ends in the same bits as
//! in one piece.

use crate::coupling::{Scan, Traits};
use crate::drift::{Constants, Drift, Pull};
use crate::modulation::{self, Modulate, Modulation};
use crate::order::Order;
use crate::scratch::Cutter;
use crate::simd::{Kernel, Level, MAX_LANES, Vector, largest_lane, padded};
use crate::status::Status;
use crate::tableaux::Tableau;
use crate::vectormath::{sincos, wrap, wrap_one};

/// What is integrated.
pub struct Network<'a> {
    pub n: usize,
    /// (n)
    pub omega: &'a [f64],
    /// (n, n)
    pub knm: &'a [f64],
    /// (n, n), or `None`: the lag is uniform.
    pub alpha: Option<&'a [f64]>,
    pub uniform_alpha: f64,
    pub zeta: f64,
    pub psi: f64,
    pub modulation: Option<Modulation<'a>>,
    /// K' is made anew at each step that this number divides.
    pub modulate_every: i64,
}

/// How it is integrated.
pub struct Integrator {
    pub tableau: &'static Tableau,
    pub dt: f64,
    pub atol: f64,
    pub rtol: f64,
}

/// The state of a run.
pub struct State<'a> {
    /// (n)
    pub theta: &'a mut [f64],
    /// (n, n) with modulation, otherwise empty.
    pub modulated: &'a mut [f64],
    pub t: f64,
    /// The step tried next.
    pub dt: f64,
    pub step: i64,
}

/// Who is told of the states of a run.
pub trait Observer {
    /// Whether [`Observer::order`] keeps anything.
    fn wants_order(&self) -> bool;
    /// At each step, the first state included.
    fn time(&mut self, step: i64, t: f64);
    /// At each step, the first state included.
    fn order(&mut self, step: i64, order: Order);
    /// After each step.
    fn state(&mut self, step: i64, t: f64, theta: &[f64]);
}

/// Sizes that decide how much memory a run takes.
pub struct Sizes {
    pub n: usize,
    pub stages: usize,
    pub lagged: bool,
    /// d_model and n_heads.
    pub modulation: Option<(usize, usize)>,
}

impl Sizes {
    /// Vectors of a run beside the slopes: omega, theta, next, stage, sine, cosine, P, Q.
    const VECTORS: usize = 8;

    /// The scratch of a run, in numbers; `None` beyond `usize`.
    pub fn scratch_len(&self) -> Option<usize> {
        let vectors = (Self::VECTORS + self.stages).checked_mul(padded(self.n))?;
        let matrices = match (self.lagged, self.modulation) {
            (false, _) => 0,
            (true, None) => 2,
            (true, Some(_)) => 4,
        };
        let lags = self.n.checked_mul(self.n)?.checked_add(MAX_LANES)?.checked_mul(matrices)?;
        let modulation = match self.modulation {
            Some((d_model, n_heads)) => modulation::scratch_len(self.n, d_model, n_heads)?,
            None => 0,
        };
        vectors.checked_add(lags)?.checked_add(modulation)
    }
}

/// Lags a pair: their products with K, and with modulation the factors that stay while K' changes.
struct Lags<'a> {
    cosine: &'a mut [f64],
    sine: &'a mut [f64],
    factors: Option<[&'a mut [f64]; 2]>,
}

impl<'a> Lags<'a> {
    #[inline(always)]
    fn new<S: Level>(s: S, network: &Network, alpha: &[f64], scratch: &mut Cutter<'a>) -> Self {
        let entries = alpha.len();
        let (sine, cosine) = (scratch.cut(entries), scratch.cut(entries));
        let mut lags = Self { cosine, sine, factors: None };
        if network.modulation.is_some() {
            let mut factors = [scratch.cut(entries), scratch.cut(entries)];
            let [factor_cosine, factor_sine] = &mut factors;
            s.enter(SinCos { x: alpha, sine: factor_sine, cosine: factor_cosine });
            lags.factors = Some(factors);
        } else {
            s.enter(SinCos { x: alpha, sine: lags.sine, cosine: lags.cosine });
            for products in [&mut lags.cosine, &mut lags.sine] {
                products.iter_mut().zip(network.knm).for_each(|(product, k)| *product *= k);
            }
        }
        lags
    }

    /// Products of K' with the lags.
    #[inline(always)]
    fn apply(&mut self, modulated: &[f64]) {
        let Some([cosine, sine]) = &self.factors else {
            return;
        };
        for (products, factors) in [(&mut self.cosine, cosine), (&mut self.sine, sine)] {
            for ((product, k), factor) in products.iter_mut().zip(modulated).zip(&**factors) {
                *product = k * factor;
            }
        }
    }
}

/// Sines and cosines of as many numbers.
struct SinCos<'a> {
    x: &'a [f64],
    sine: &'a mut [f64],
    cosine: &'a mut [f64],
}

impl Kernel for SinCos<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Level>(self, s: S) {
        let places = self.sine.chunks_mut(S::LANES).zip(self.cosine.chunks_mut(S::LANES));
        for (x, (sine_place, cosine_place)) in self.x.chunks(S::LANES).zip(places) {
            let (sine, cosine) = sincos(s, s.load_up_to(x));
            sine.store_up_to(sine_place, S::LANES);
            cosine.store_up_to(cosine_place, S::LANES);
        }
    }
}

/// Advances the state by `n_steps`.
pub struct Run<'a, 's, O> {
    pub network: &'a Network<'a>,
    pub integrator: &'a Integrator,
    pub state: &'a mut State<'s>,
    pub n_steps: i64,
    pub observer: O,
    pub scratch: Cutter<'a>,
}

impl<O: Observer> Kernel for Run<'_, '_, O> {
    type Output = Result<(), Status>;

    #[inline(always)]
    fn run<S: Level>(self, s: S) -> Self::Output {
        let Self { network, integrator, state, n_steps, mut observer, mut scratch } = self;
        let traits = match network.modulation {
            Some(_) => Some(s.enter(Scan { n: network.n, knm: network.knm })?),
            None => None,
        };
        let mut stepper = Stepper::new(s, network, integrator, &mut scratch);
        stepper.start(s, state)?;
        let result = stepper.run(s, state, traits, n_steps, &mut observer, &mut scratch);
        state.theta.copy_from_slice(&stepper.theta[..network.n]);
        result
    }
}

/// The safety factor of the adaptive step.
const SAFETY: f64 = 0.9;
/// The most that one step may grow.
const GROWTH_LIMIT: f64 = 5.0;
/// The most that one failed attempt may shrink.
const SHRINK_LIMIT: f64 = 0.2;
/// The largest step, in units of the first.
const STEP_LIMIT: f64 = 10.0;
/// The last one is taken whatever its error.
const MAX_ATTEMPTS: usize = 4;

impl Integrator {
    /// The step to try after one of size `dt` with an error in units of the tolerance.
    fn next_dt(&self, dt: f64, error: f64) -> f64 {
        if !self.tableau.adaptive {
            dt
        } else if error <= 1.0 {
            let growth = if error > 0.0 { GROWTH_LIMIT.min(SAFETY * error.powf(-0.2)) } else { GROWTH_LIMIT };
            (dt * growth).min(STEP_LIMIT * self.dt)
        } else {
            dt * SHRINK_LIMIT.max(SAFETY * error.powf(-0.25))
        }
    }
}

/// A candidate for the next state.
struct Attempt {
    finite: bool,
    /// In units of the tolerance: at most 1 is good.
    error: f64,
}

/// Working arrays of a run, each padded with zeros to whole vectors.
struct Stepper<'a> {
    network: &'a Network<'a>,
    integrator: &'a Integrator,
    constants: Constants,
    lags: Option<Lags<'a>>,
    omega: &'a mut [f64],
    /// The state.
    theta: &'a mut [f64],
    /// The candidate, wrapped.
    next: &'a mut [f64],
    /// The argument of a stage; in the end the candidate, unwrapped.
    stage: &'a mut [f64],
    /// Of the last argument; zeros behind the n-th, so that sums over whole vectors are sums over
    /// oscillators.
    sine: &'a mut [f64],
    cosine: &'a mut [f64],
    sums: [&'a mut [f64]; 2],
    /// (stages, padded)
    slopes: &'a mut [f64],
}

impl<'a> Stepper<'a> {
    #[inline(always)]
    fn new<S: Level>(
        s: S,
        network: &'a Network<'a>,
        integrator: &'a Integrator,
        scratch: &mut Cutter<'a>,
    ) -> Self {
        let padded = padded(network.n);
        let uniform_alpha = if network.alpha.is_some() { 0.0 } else { network.uniform_alpha };
        let omega = scratch.cut(padded);
        omega[..network.n].copy_from_slice(network.omega);
        Self {
            network,
            integrator,
            constants: Constants::new(uniform_alpha, network.zeta, network.psi),
            omega,
            theta: scratch.cut(padded),
            next: scratch.cut(padded),
            stage: scratch.cut(padded),
            sine: scratch.cut(padded),
            cosine: scratch.cut(padded),
            sums: [scratch.cut(padded), scratch.cut(padded)],
            slopes: scratch.cut(integrator.tableau.stages * padded),
            lags: network.alpha.map(|alpha| Lags::new(s, network, alpha, scratch)),
        }
    }

    /// Takes the state over.
    #[inline(always)]
    fn start<S: Level>(&mut self, s: S, state: &State) -> Result<(), Status> {
        for (place, &phase) in self.theta.iter_mut().zip(&*state.theta) {
            *place = wrap_one(phase);
            if !place.is_finite() {
                return Err(Status::NonfinitePhase);
            }
        }
        if let Some(lags) = &mut self.lags
            && state.step % self.network.modulate_every != 0
        {
            lags.apply(state.modulated);
        }
        self.look_at_state(s);
        Ok(())
    }

    #[inline(always)]
    fn run<S: Level, O: Observer>(
        &mut self,
        s: S,
        state: &mut State,
        traits: Option<Traits>,
        n_steps: i64,
        observer: &mut O,
        scratch: &mut Cutter,
    ) -> Result<(), Status> {
        let network = self.network;
        let mut slope_known = false; // the first slope of this step was the last one of the step before
        for left in (0..=n_steps).rev() {
            observer.time(state.step, state.t);
            if observer.wants_order() {
                observer.order(state.step, Order::of_unit_vectors(s, network.n, self.sine, self.cosine));
            }
            if left == 0 {
                break;
            }
            if let (Some(modulation), Some(traits)) = (&network.modulation, traits)
                && state.step % network.modulate_every == 0
            {
                s.enter(Modulate {
                    n: network.n,
                    knm: network.knm,
                    traits,
                    theta: self.theta,
                    modulation,
                    scratch: scratch.lend(),
                    out: state.modulated,
                });
                if let Some(lags) = &mut self.lags {
                    lags.apply(state.modulated);
                }
                slope_known = false;
            }
            let knm = if traits.is_some() { &*state.modulated } else { network.knm };
            let (taken, next_dt) = self.step(s, knm, state.dt, slope_known).ok_or(Status::NonfiniteState)?;
            slope_known = self.integrator.tableau.adaptive;
            state.step = state.step.wrapping_add(1);
            state.dt = next_dt;
            state.t = if slope_known { state.t + taken } else { state.step as f64 * self.integrator.dt };
            observer.state(state.step, state.t, &self.theta[..network.n]);
        }
        Ok(())
    }

    /// One step: its size, and the size to try next; `None` where it is not finite.
    #[inline(always)]
    fn step<S: Level>(&mut self, s: S, knm: &[f64], mut dt: f64, slope_known: bool) -> Option<(f64, f64)> {
        let adaptive = self.integrator.tableau.adaptive;
        if !slope_known {
            self.drift(s, knm, 0);
        }
        let mut attempts = 1;
        let (taken, next_dt) = loop {
            let Attempt { finite, error } = self.attempt(s, knm, dt);
            let next_dt = self.integrator.next_dt(dt, error);
            if error <= 1.0 || attempts == MAX_ATTEMPTS {
                break finite.then_some((dt, next_dt));
            }
            dt = next_dt;
            attempts += 1;
        }?;
        std::mem::swap(&mut self.theta, &mut self.next);
        if adaptive {
            let padded = self.theta.len();
            self.slopes.copy_within(6 * padded.., 0);
        } else {
            self.look_at_state(s);
        }
        Some((taken, next_dt))
    }

    /// Stages 2 ... of the method from the first slope; leaves the candidate, wrapped, in `next`. For a
    /// method with an error estimate the last stage is taken at the wrapped candidate, so that its slope is,
    /// bit for bit, the first one of the next step.
    #[inline(always)]
    fn attempt<S: Level>(&mut self, s: S, knm: &[f64], dt: f64) -> Attempt {
        let tableau = self.integrator.tableau;
        let inner = tableau.stages - usize::from(tableau.adaptive);
        for stage in 1..inner {
            for i in (0..self.theta.len()).step_by(S::LANES) {
                self.combine(s, dt, &tableau.a[stage][..stage], i).store(&mut self.stage[i..]);
            }
            look_at(s, self.network.n, self.stage, self.sine, self.cosine);
            self.drift(s, knm, stage);
        }
        let mut finite = s.zero().eq(s.zero());
        for i in (0..self.theta.len()).step_by(S::LANES) {
            let y = self.combine(s, dt, &tableau.b[..inner], i);
            finite = finite & s.is_finite(y);
            y.store(&mut self.stage[i..]);
            wrap(s, y).store(&mut self.next[i..]);
        }
        let finite = S::Vector::all(finite);
        if !tableau.adaptive {
            return Attempt { finite, error: 0.0 };
        }
        look_at(s, self.network.n, self.next, self.sine, self.cosine);
        self.drift(s, knm, inner);
        Attempt { finite, error: self.error(s, dt) }
    }

    /// theta + dt sum_j weight_j slope_j for the oscillators of one vector; the sum is rounded before it is
    /// added, so that two such results lie on one grid and their difference is that of the stored numbers.
    #[inline(always)]
    fn combine<S: Level>(&self, s: S, dt: f64, weights: &[f64], i: usize) -> S::Vector {
        let mut sum = s.zero();
        for (slope, &weight) in self.slopes.chunks_exact(self.theta.len()).zip(weights) {
            if weight != 0.0 {
                sum = s.load(&slope[i..]).mul_add(s.splat(weight), sum);
            }
        }
        s.load(&self.theta[i..]) + sum * s.splat(dt)
    }

    /// The largest error of the candidate, in units of the tolerance; infinite when it cannot be told.
    #[inline(always)]
    fn error<S: Level>(&self, s: S, dt: f64) -> f64 {
        let Integrator { tableau, atol, rtol, .. } = self.integrator;
        let (mut largest, mut finite) = (s.zero(), s.zero().eq(s.zero()));
        for i in (0..self.theta.len()).step_by(S::LANES) {
            let y = s.load(&self.stage[i..]);
            let lower = self.combine(s, dt, &tableau.embedded[..tableau.stages], i);
            let size = s.load(&self.theta[i..]).abs().max(y.abs());
            let ratio = (y - lower).abs() / s.splat(*rtol).mul_add(size, s.splat(*atol));
            let there = s.count().lt(s.splat(self.network.n as f64 - i as f64));
            let ratio = ratio.keep(there);
            finite = finite & s.is_finite(ratio);
            largest = ratio.max(largest);
        }
        if S::Vector::all(finite) { largest_lane(largest) } else { f64::INFINITY }
    }

    /// The slope at the phases last looked at, from K or K' in force.
    #[inline(always)]
    fn drift<S: Level>(&mut self, s: S, knm: &[f64], stage: usize) {
        let padded = self.theta.len();
        let pull = match &self.lags {
            Some(Lags { cosine, sine, .. }) => Pull::Lagged { cosine, sine },
            None => Pull::Uniform(knm),
        };
        let [p, q] = &mut self.sums;
        s.enter(Drift {
            n: self.network.n,
            constants: &self.constants,
            pull,
            omega: self.omega,
            sine: self.sine,
            cosine: self.cosine,
            sums: [p, q],
            f: &mut self.slopes[stage * padded..(stage + 1) * padded],
        });
    }

    #[inline(always)]
    fn look_at_state<S: Level>(&mut self, s: S) {
        look_at(s, self.network.n, self.theta, self.sine, self.cosine);
    }
}

/// Sine and cosine of the first `n` of padded phases, zeros behind them.
#[inline(always)]
fn look_at<S: Level>(s: S, n: usize, theta: &[f64], sine: &mut [f64], cosine: &mut [f64]) {
    s.enter(SinCos { x: theta, sine, cosine });
    sine[n..].fill(0.0);
    cosine[n..].fill(0.0);
}
