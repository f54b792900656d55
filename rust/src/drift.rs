//! The Kuramoto-Sakaguchi drift without a sine per pair.
//!
//! sin(theta_j - theta_i - alpha_ij) is a sum of products of functions of i and of j, so with s = sin theta,
//! c = cos theta
//!
//! ```text
//! f_i = omega_i + cos theta_i P_i - sin theta_i Q_i + zeta sin(psi - theta_i)
//! uniform lag a:  S = K s, C = K c;  P = S cos a - C sin a,  Q = C cos a + S sin a
//! a lag a pair:   P = (K cos alpha) s - (K sin alpha) c,  Q = (K cos alpha) c + (K sin alpha) s
//! ```

use std::array::from_fn;
use std::ops::RangeInclusive;

use crate::simd::{Kernel, Level, Vector};

/// The turn of a uniform lag, and zeta sin(psi - theta) = drive_sine cos theta - drive_cosine sin theta.
pub struct Constants {
    turn_sine: f64,
    turn_cosine: f64,
    drive_sine: f64,
    drive_cosine: f64,
}

impl Constants {
    /// `uniform_alpha` is 0 where each pair has its own lag.
    pub fn new(uniform_alpha: f64, zeta: f64, psi: f64) -> Self {
        Self {
            turn_sine: uniform_alpha.sin(),
            turn_cosine: uniform_alpha.cos(),
            drive_sine: zeta * psi.sin(),
            drive_cosine: zeta * psi.cos(),
        }
    }
}

/// The matrices (n, n) of the sums P and Q.
#[derive(Clone, Copy)]
pub enum Pull<'a> {
    /// K, for a uniform lag.
    Uniform(&'a [f64]),
    /// K cos alpha and K sin alpha.
    Lagged { cosine: &'a [f64], sine: &'a [f64] },
}

/// f (padded) at the phases whose sine and cosine (padded, zeros behind the n-th) are given.
pub struct Drift<'a> {
    pub n: usize,
    pub constants: &'a Constants,
    pub pull: Pull<'a>,
    /// (padded)
    pub omega: &'a [f64],
    pub sine: &'a [f64],
    pub cosine: &'a [f64],
    /// Room for P and Q (padded).
    pub sums: [&'a mut [f64]; 2],
    pub f: &'a mut [f64],
}

impl Kernel for Drift<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Level>(self, s: S) {
        let Self { n, constants, pull, omega, sine, cosine, sums: [p, q], f } = self;
        match pull {
            Pull::Uniform(knm) => Rows { n, k: knm, l: &[], sine, cosine }.pull::<S, false>(s, p, q),
            Pull::Lagged { cosine: k, sine: l } => Rows { n, k, l, sine, cosine }.pull::<S, true>(s, p, q),
        }
        for i in (0..f.len()).step_by(S::LANES) {
            let [p, q, sine, cosine, omega] =
                [&*p, &*q, sine, cosine, omega].map(|array| s.load(&array[i..]));
            constants.close(s, p, q, sine, cosine, omega).store(&mut f[i..]);
        }
    }
}

impl Constants {
    /// f from P, Q, sin theta, cos theta and omega: the uniform lag turns P and Q, the drive joins them.
    #[inline(always)]
    fn close<S: Level>(
        &self,
        s: S,
        p: S::Vector,
        q: S::Vector,
        sine: S::Vector,
        cosine: S::Vector,
        omega: S::Vector,
    ) -> S::Vector {
        let (turn_sine, turn_cosine) = (s.splat(self.turn_sine), s.splat(self.turn_cosine));
        let along = p.mul_add(turn_cosine, -(q * turn_sine)) + s.splat(self.drive_sine);
        let across = q.mul_add(turn_cosine, p * turn_sine) + s.splat(self.drive_cosine);
        cosine.mul_add(along, (-sine).mul_add(across, omega))
    }
}

/// Two matrix-vector products with one matrix, or four with two (`LAG`). The matrices are read once.
struct Rows<'a> {
    n: usize,
    k: &'a [f64],
    /// Read only with a lag a pair.
    l: &'a [f64],
    sine: &'a [f64],
    cosine: &'a [f64],
}

/// Rows of so many entries of one matrix are fetched a group ahead: smaller matrices stay in the first cache,
/// longer rows would push each other out of it, and two matrices keep the processor busy enough.
const FETCH_AHEAD: RangeInclusive<usize> = 65..=512;

impl Rows<'_> {
    #[inline(always)]
    fn pull<S: Level, const LAG: bool>(&self, s: S, p: &mut [f64], q: &mut [f64]) {
        let n = self.n;
        let ahead = if !LAG && FETCH_AHEAD.contains(&n) { n - 7 } else { 0 };
        let fours = n - n % 4;
        for i in (0..fours).step_by(4) {
            let sums = if i < ahead {
                self.sums_of_rows::<S, 4, LAG, true>(s, i)
            } else {
                self.sums_of_rows::<S, 4, LAG, false>(s, i)
            };
            p[i..i + 4].copy_from_slice(&S::Vector::sum4(sums.p));
            q[i..i + 4].copy_from_slice(&S::Vector::sum4(sums.q));
        }
        for i in fours..n {
            let Sums { p: [pull], q: [push] } = self.sums_of_rows::<S, 1, LAG, false>(s, i);
            [p[i], q[i], ..] = S::Vector::sum4([pull, push, s.zero(), s.zero()]);
        }
    }

    /// Lanes of the sums of rows i ... i + ROWS - 1: each load of s and c serves all of them.
    #[inline(always)]
    fn sums_of_rows<S: Level, const ROWS: usize, const LAG: bool, const AHEAD: bool>(
        &self,
        s: S,
        i: usize,
    ) -> Sums<S::Vector, ROWS> {
        // Slices of one length, so that the condition of the loop is the only check of it.
        let n = self.n;
        let (sine, cosine) = (&self.sine[..n], &self.cosine[..n]);
        let k = rows::<ROWS>(self.k, n, i);
        let l = if LAG { rows::<ROWS>(self.l, n, i) } else { [&[][..]; ROWS] };
        let mut sums = Sums { p: [s.zero(); ROWS], q: [s.zero(); ROWS] };
        let mut j = 0;
        while j + S::LANES <= n {
            let lanes = j..j + S::LANES;
            let (sine, cosine) = (s.load(&sine[lanes.clone()]), s.load(&cosine[lanes.clone()]));
            for r in 0..ROWS {
                sums.add_pull(r, s.load(&k[r][lanes.clone()]), sine, cosine);
                if LAG {
                    sums.add_lag(r, s.load(&l[r][lanes.clone()]), sine, cosine);
                }
                if AHEAD {
                    s.prefetch(self.k, (i + ROWS) * n + ROWS * j + r * S::LANES);
                }
            }
            j += S::LANES;
        }
        if j < n {
            let (sine, cosine) = (s.load_first(&sine[j..]), s.load_first(&cosine[j..]));
            for r in 0..ROWS {
                sums.add_pull(r, s.load_first(&k[r][j..]), sine, cosine);
                if LAG {
                    sums.add_lag(r, s.load_first(&l[r][j..]), sine, cosine);
                }
            }
        }
        sums
    }
}

/// Rows i ... i + ROWS - 1 of a matrix (n, n).
#[inline(always)]
fn rows<const ROWS: usize>(matrix: &[f64], n: usize, i: usize) -> [&[f64]; ROWS] {
    from_fn(|r| &matrix[(i + r) * n..][..n])
}

/// Lanes of the sums P and Q of some rows.
struct Sums<V, const ROWS: usize> {
    p: [V; ROWS],
    q: [V; ROWS],
}

impl<V: Vector, const ROWS: usize> Sums<V, ROWS> {
    /// What an entry of K (or of K cos alpha) adds to P and Q of its row.
    #[inline(always)]
    fn add_pull(&mut self, row: usize, k: V, sine: V, cosine: V) {
        self.p[row] = k.mul_add(sine, self.p[row]);
        self.q[row] = k.mul_add(cosine, self.q[row]);
    }

    /// What an entry of K sin alpha adds.
    #[inline(always)]
    fn add_lag(&mut self, row: usize, l: V, sine: V, cosine: V) {
        self.p[row] = (-l).mul_add(cosine, self.p[row]);
        self.q[row] = l.mul_add(sine, self.q[row]);
    }
}
