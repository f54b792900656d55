//! The functions and structs of `spo_fast.h`. Inputs are checked in the order of their numbers, memory, data.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use crate::coupling::Scan;
use crate::modulation::{self, Modulate, Modulation};
use crate::order::{Order, OrderOf};
use crate::scratch::Scratch;
use crate::simd::{dispatch, padded};
use crate::status::Status;
use crate::stepping::{Integrator, Network, Observer, Run, Sizes, State};
use crate::tableaux::{DORMAND_PRINCE, EULER, RK4, Tableau};

/// Grows whenever the header changes.
pub const ABI_VERSION: i32 = 1;

const _: () = assert!(usize::BITS >= 64, "the sizes of spo_fast.h need a 64-bit platform");

/// Sizes whose squares and products could overflow are refused.
const LARGEST_SIZE: i64 = 1 << 28;

/// `spo_modulation`: multi-head attention over the phases that rescales K; d_h = d_model / n_heads.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpoModulation {
    /// At least 1, divides `d_model`.
    pub n_heads: i64,
    /// Even, at least 2.
    pub d_model: i64,
    /// Pairs with |i - j| > `block_size` keep K_ij; -1: no limit.
    pub block_size: i64,
    /// (n_heads, d_model, d_h)
    pub w_q: *const f64,
    /// (n_heads, d_model, d_h)
    pub w_k: *const f64,
    /// (n_heads, d_model, d_h)
    pub w_v: *const f64,
    /// (d_model, d_model)
    pub w_o: *const f64,
    /// (n_heads), each positive.
    pub temperature: *const f64,
    /// At least 0.
    pub lambda: f64,
}

/// `spo_network`: what is integrated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpoNetwork {
    /// Oscillators, at least 0.
    pub n: i64,
    /// (n), radians per time unit.
    pub omega: *const f64,
    /// (n, n)
    pub knm: *const f64,
    /// (n, n) radians, or null: the lag is uniform.
    pub alpha: *const f64,
    /// The lag of every pair when `alpha` is null.
    pub uniform_alpha: f64,
    /// Strength of the drive.
    pub zeta: f64,
    /// Phase of the drive.
    pub psi: f64,
    /// Null: K stays as it is.
    pub modulation: *const SpoModulation,
    /// K' is made anew at each step that this number divides, at least 1.
    pub modulate_every: i64,
}

/// `spo_integrator`: how it is integrated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpoIntegrator {
    /// 0: Euler; 1: classical Runge-Kutta; 2: Dormand-Prince 5(4), adaptive.
    pub method: i64,
    /// Step; for the adaptive method the first one, and a tenth of the largest.
    pub dt: f64,
    /// Of the adaptive method.
    pub atol: f64,
    /// Of the adaptive method.
    pub rtol: f64,
}

/// `spo_state`: the state of a run, taken and given back, so that a run may be cut into pieces.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpoState {
    /// (n) radians, wrapped into [0, 2 pi) on entry and after each step.
    pub theta: *mut f64,
    /// (n, n): K' in force between two calls; null without modulation.
    pub modulated: *mut f64,
    /// Time.
    pub t: f64,
    /// Step tried next.
    pub dt: f64,
    /// Steps taken.
    pub step: i64,
}

/// `spo_record`: what is kept; null: not kept. Index s describes the state at step s, counted like
/// [`SpoState::step`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpoRecord {
    /// `theta` and `t` keep the states after steps that this number divides; 0: none.
    pub every: i64,
    /// Row s / every of (rows, n).
    pub theta: *mut f64,
    /// (rows)
    pub t: *mut f64,
    /// Order parameter, in [0, 1].
    pub r: *mut f64,
    /// Mean phase, in [0, 2 pi).
    pub psi: *mut f64,
    /// Time.
    pub t_observe: *mut f64,
}

/// The version of the header that this library follows.
#[unsafe(no_mangle)]
pub extern "C" fn spo_abi_version() -> i32 {
    ABI_VERSION
}

/// The language of this library.
#[unsafe(no_mangle)]
pub extern "C" fn spo_backend_name() -> *const c_char {
    c"rust".as_ptr()
}

/// The text of a status; "unknown status" for numbers that are not in the enumeration.
#[unsafe(no_mangle)]
pub extern "C" fn spo_status_text(status: c_int) -> *const c_char {
    Status::text_of(status).as_ptr()
}

/// `out` (n, n) = K' = K with each unmasked pair scaled by 1 + lambda a_ij. O(n^2 d_model). Nothing is
/// written to `out` unless `knm` (n, n) and `theta` (n) are acceptable.
///
/// # Safety
///
/// Each pointer is null or points to as many numbers as its shape says; `out` does not overlap `knm`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spo_modulate(
    n: i64,
    knm: *const f64,
    theta: *const f64,
    modulation: *const SpoModulation,
    out: *mut f64,
) -> i32 {
    // SAFETY: as the caller promises.
    guarded(|| unsafe { modulate(n, knm, theta, modulation, out) })
}

/// `r` = |mean exp(i theta)|, `psi` = its argument; both 0 when n is 0. `theta` (n).
///
/// # Safety
///
/// Each pointer is null or points to as many numbers as its shape says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spo_order_parameter(n: i64, theta: *const f64, r: *mut f64, psi: *mut f64) -> i32 {
    // SAFETY: as the caller promises.
    guarded(|| unsafe { order_parameter(n, theta, r, psi) })
}

/// Advances `state` by `n_steps`; `record` may be null. With modulation, K must be symmetric. O(n^2) a stage.
///
/// # Safety
///
/// Each pointer, those in the structs included, is null or points to as many numbers as its shape says;
/// outputs overlap nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spo_kuramoto_run(
    network: *const SpoNetwork,
    integrator: *const SpoIntegrator,
    state: *mut SpoState,
    n_steps: i64,
    record: *const SpoRecord,
) -> i32 {
    // SAFETY: as the caller promises.
    guarded(|| unsafe { kuramoto_run(network, integrator, state, n_steps, record) })
}

/// The status of a call. Nothing in this library panics; if something did, the caller would learn that its
/// arguments could not be dealt with.
fn guarded(call: impl FnOnce() -> Result<(), Status>) -> i32 {
    let status = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(status)) => status,
        Err(_) => Status::InvalidArgument,
    };
    status as i32
}

/// `Ok` where a condition on the arguments holds.
fn check(holds: bool) -> Result<(), Status> {
    if holds { Ok(()) } else { Err(Status::InvalidArgument) }
}

/// # Safety
///
/// `from` points to `len` numbers that nobody writes to during `'a`; with a length of 0 it may be anything.
unsafe fn numbers<'a>(from: *const f64, len: usize) -> &'a [f64] {
    // SAFETY: as the caller promises.
    if len == 0 { &[] } else { unsafe { slice::from_raw_parts(from, len) } }
}

/// # Safety
///
/// `to` points to `len` numbers that nobody else touches during `'a`; with a length of 0 it may be anything.
unsafe fn places<'a>(to: *mut f64, len: usize) -> &'a mut [f64] {
    // SAFETY: as the caller promises.
    if len == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(to, len) } }
}

/// A size that is not refused.
fn size(n: i64) -> Result<usize, Status> {
    check((0..=LARGEST_SIZE).contains(&n))?;
    Ok(n as usize)
}

impl SpoModulation {
    /// `d_model` and `n_heads`, if all numbers are in their ranges and all pointers are there.
    ///
    /// # Safety
    ///
    /// `temperature` is null or points to `n_heads` numbers.
    unsafe fn checked_sizes(&self) -> Result<(usize, usize), Status> {
        let &Self { n_heads, d_model, block_size, lambda, .. } = self;
        check(n_heads >= 1 && (2..=LARGEST_SIZE).contains(&d_model))?;
        check(d_model % 2 == 0 && d_model % n_heads == 0)?;
        check(block_size >= -1 && lambda >= 0.0 && lambda.is_finite())?;
        let arrays = [self.w_q, self.w_k, self.w_v, self.w_o, self.temperature];
        check(!arrays.iter().any(|array| array.is_null()))?;
        // SAFETY: not null, and as large as the caller promises.
        let temperature = unsafe { numbers(self.temperature, n_heads as usize) };
        check(temperature.iter().all(|&tau| tau > 0.0 && tau.is_finite()))?;
        Ok((d_model as usize, n_heads as usize))
    }

    /// # Safety
    ///
    /// The sizes are checked, and the arrays as large as they say.
    unsafe fn view<'a>(&self) -> Modulation<'a> {
        let (n_heads, d_model) = (self.n_heads as usize, self.d_model as usize);
        // SAFETY: as the caller promises.
        let square = |array| unsafe { numbers(array, d_model * d_model) };
        Modulation {
            n_heads,
            d_model,
            // Without a limit, or with a larger one, this one: no two oscillators are farther apart.
            reach: if self.block_size < 0 { LARGEST_SIZE } else { self.block_size.min(LARGEST_SIZE) }
                as usize,
            w_q: square(self.w_q),
            w_k: square(self.w_k),
            w_v: square(self.w_v),
            w_o: square(self.w_o),
            // SAFETY: as the caller promises.
            temperature: unsafe { numbers(self.temperature, n_heads) },
            lambda: self.lambda,
        }
    }
}

/// # Safety
///
/// That of [`spo_modulate`].
unsafe fn modulate(
    n: i64,
    knm: *const f64,
    theta: *const f64,
    modulation: *const SpoModulation,
    out: *mut f64,
) -> Result<(), Status> {
    let n = size(n)?;
    // SAFETY: null, or a struct whose arrays are as large as it says.
    let modulation = unsafe { modulation.as_ref() }.ok_or(Status::InvalidArgument)?;
    // SAFETY: the same.
    let (d_model, n_heads) = unsafe { modulation.checked_sizes() }?;
    if n == 0 {
        return Ok(());
    }
    check(!knm.is_null() && !theta.is_null() && !out.is_null())?;
    // SAFETY: not null, and as large as the caller promises.
    let (knm, theta) = unsafe { (numbers(knm, n * n), numbers(theta, n)) };
    let traits = dispatch(Scan { n, knm })?;
    check_phases(theta)?;
    let needed = modulation::scratch_len(n, d_model, n_heads).and_then(|len| len.checked_add(padded(n)));
    let mut scratch = Scratch::new(needed)?;
    let mut scratch = scratch.cutter();
    // A copy: theta may lie in out.
    let phases = scratch.cut(padded(n));
    phases[..n].copy_from_slice(theta);
    // SAFETY: checked; as large as the caller promises, and overlapping nothing that is still read.
    let (modulation, out) = unsafe { (modulation.view(), places(out, n * n)) };
    dispatch(Modulate { n, knm, traits, theta: phases, modulation: &modulation, scratch, out });
    Ok(())
}

fn check_phases(theta: &[f64]) -> Result<(), Status> {
    let finite = theta.iter().all(|phase| phase.is_finite());
    finite.then_some(()).ok_or(Status::NonfinitePhase)
}

/// # Safety
///
/// That of [`spo_order_parameter`].
unsafe fn order_parameter(n: i64, theta: *const f64, r: *mut f64, psi: *mut f64) -> Result<(), Status> {
    check(n >= 0 && n <= isize::MAX as i64 / size_of::<f64>() as i64)?;
    check((n == 0 || !theta.is_null()) && !r.is_null() && !psi.is_null())?;
    // SAFETY: not null, and as large as the caller promises.
    let theta = unsafe { numbers(theta, n as usize) };
    check_phases(theta)?;
    let order = dispatch(OrderOf(theta));
    // SAFETY: not null.
    unsafe {
        r.write(order.r);
        psi.write(order.psi);
    }
    Ok(())
}

/// # Safety
///
/// That of [`spo_kuramoto_run`].
unsafe fn kuramoto_run(
    network: *const SpoNetwork,
    integrator: *const SpoIntegrator,
    state: *mut SpoState,
    n_steps: i64,
    record: *const SpoRecord,
) -> Result<(), Status> {
    // SAFETY: null, or structs whose arrays are as large as they say.
    let (network, integrator, state, record) =
        unsafe { (network.as_ref(), integrator.as_ref(), state.as_mut(), record.as_ref()) };
    let (Some(network), Some(integrator), Some(state)) = (network, integrator, state) else {
        return Err(Status::InvalidArgument);
    };
    check(n_steps >= 0)?;
    let integrator = integrator.checked()?;
    // SAFETY: as above.
    let sizes = unsafe { network.checked_sizes(state, &integrator) }?;
    let mut scratch = Scratch::new(sizes.scratch_len())?;
    // SAFETY: checked, and large enough for memory; as large as the caller promises.
    let (network, mut taken) = unsafe { (network.view(sizes.n), state.view(&sizes)) };
    let result = dispatch(Run {
        network: &network,
        integrator: &integrator,
        state: &mut taken,
        n_steps,
        observer: Recorder(record),
        scratch: scratch.cutter(),
    });
    (state.t, state.dt, state.step) = (taken.t, taken.dt, taken.step);
    result
}

impl SpoIntegrator {
    fn tableau(&self) -> Option<&'static Tableau> {
        match self.method {
            0 => Some(&EULER),
            1 => Some(&RK4),
            2 => Some(&DORMAND_PRINCE),
            _ => None,
        }
    }

    fn checked(&self) -> Result<Integrator, Status> {
        let &Self { dt, atol, rtol, .. } = self;
        let tableau = self.tableau().ok_or(Status::InvalidArgument)?;
        check(dt > 0.0 && dt.is_finite() && atol >= 0.0 && rtol >= 0.0)?;
        Ok(Integrator { tableau, dt, atol, rtol })
    }
}

impl SpoNetwork {
    /// The sizes of a run, if all numbers are in their ranges and all pointers are there.
    ///
    /// # Safety
    ///
    /// `modulation` is null or points to a struct whose `temperature` is as large as it says.
    unsafe fn checked_sizes(&self, state: &SpoState, integrator: &Integrator) -> Result<Sizes, Status> {
        let n = size(self.n)?;
        check(self.zeta.is_finite() && self.psi.is_finite() && self.uniform_alpha.is_finite())?;
        check(n == 0 || !(self.omega.is_null() || self.knm.is_null() || state.theta.is_null()))?;
        // SAFETY: as the caller promises.
        let modulation = match unsafe { self.modulation.as_ref() } {
            Some(modulation) => {
                check((n == 0 || !state.modulated.is_null()) && self.modulate_every >= 1)?;
                // SAFETY: as the caller promises.
                Some(unsafe { modulation.checked_sizes() }?)
            }
            None => None,
        };
        Ok(Sizes { n, stages: integrator.tableau.stages, lagged: !self.alpha.is_null(), modulation })
    }

    /// # Safety
    ///
    /// The sizes are checked, and the arrays as large as they say.
    unsafe fn view<'a>(&self, n: usize) -> Network<'a> {
        // SAFETY: as the caller promises.
        unsafe {
            Network {
                n,
                omega: numbers(self.omega, n),
                knm: numbers(self.knm, n * n),
                alpha: (!self.alpha.is_null()).then(|| numbers(self.alpha, n * n)),
                uniform_alpha: self.uniform_alpha,
                zeta: self.zeta,
                psi: self.psi,
                modulation: self.modulation.as_ref().map(|modulation| modulation.view()),
                modulate_every: self.modulate_every,
            }
        }
    }
}

impl SpoState {
    /// # Safety
    ///
    /// The sizes are checked, and the arrays as large as they say.
    unsafe fn view<'a>(&self, sizes: &Sizes) -> State<'a> {
        let entries = if sizes.modulation.is_some() { sizes.n * sizes.n } else { 0 };
        // SAFETY: as the caller promises.
        let (theta, modulated) = unsafe { (places(self.theta, sizes.n), places(self.modulated, entries)) };
        State { theta, modulated, t: self.t, dt: self.dt, step: self.step }
    }
}

/// Writes what a record keeps, where the steps of a run say; its arrays have no other length.
struct Recorder<'a>(Option<&'a SpoRecord>);

/// # Safety
///
/// `to` is null, which keeps nothing, or there is room for the numbers at this place.
unsafe fn keep(to: *mut f64, at: i64, numbers: &[f64]) {
    if !to.is_null() {
        // SAFETY: as the caller promises.
        unsafe { to.offset(at as isize).copy_from_nonoverlapping(numbers.as_ptr(), numbers.len()) }
    }
}

impl Observer for Recorder<'_> {
    fn wants_order(&self) -> bool {
        self.0.is_some_and(|record| !(record.r.is_null() && record.psi.is_null()))
    }

    fn time(&mut self, step: i64, t: f64) {
        if let Some(record) = self.0 {
            // SAFETY: the caller of the run promised room for every step.
            unsafe { keep(record.t_observe, step, &[t]) }
        }
    }

    fn order(&mut self, step: i64, Order { r, psi }: Order) {
        if let Some(record) = self.0 {
            // SAFETY: the caller of the run promised room for every step.
            unsafe {
                keep(record.r, step, &[r]);
                keep(record.psi, step, &[psi]);
            }
        }
    }

    fn state(&mut self, step: i64, t: f64, theta: &[f64]) {
        let Some(record) = self.0.filter(|record| record.every > 0 && step % record.every == 0) else {
            return;
        };
        let row = step / record.every;
        // SAFETY: the caller of the run promised room for every such step.
        unsafe {
            keep(record.theta, row * theta.len() as i64, theta);
            keep(record.t, row, &[t]);
        }
    }
}
