//! Passes over a coupling matrix (n, n): what it is, its symmetric part, its transpose.

use crate::simd::{Kernel, Level, Vector};
use crate::status::Status;

/// Entries K_ij and K_ji count as equal when they differ by no more than this, absolute and relative.
const SYMMETRY_TOLERANCE: f64 = 1e-12;

fn unequal(a: f64, b: f64) -> bool {
    // Negated, so that NaN counts as unequal.
    let equal = (a - b).abs() <= SYMMETRY_TOLERANCE * (1.0 + a.abs().min(b.abs()));
    !equal
}

/// What is known of an acceptable matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traits {
    /// Equal to its transpose, not merely within the tolerance.
    pub exactly_symmetric: bool,
    /// No zero off the diagonal.
    pub all_edges: bool,
    /// Zeros only in pairs.
    pub symmetric_pattern: bool,
}

/// Refuses a matrix that is not finite, not symmetric or has a diagonal, in this order.
pub struct Scan<'a> {
    pub n: usize,
    pub knm: &'a [f64],
}

impl Kernel for Scan<'_> {
    type Output = Result<Traits, Status>;

    #[inline(always)]
    fn run<S: Level>(self, s: S) -> Self::Output {
        let Self { n, knm } = self;
        let traits = scan_exact(s, n, knm).or_else(|| scan_pairs(n, knm));
        let diagonal_is_zero = (0..n).all(|i| knm[i * n + i].abs() <= SYMMETRY_TOLERANCE);
        traits.filter(|_| diagonal_is_zero).ok_or_else(|| coupling_fault(n, knm))
    }
}

/// The common case: equal to its transpose, and finite. Walks pairs of squares of lanes, (I, J) and (J, I),
/// so that both are read along rows.
#[inline(always)]
fn scan_exact<S: Level>(s: S, n: usize, knm: &[f64]) -> Option<Traits> {
    let (zero, one) = (s.zero(), s.splat(1.0));
    let [mut finite, mut equal, mut nonzero] = [zero.eq(zero); 3];
    let whole = n - n % S::LANES;
    for i in (0..whole).step_by(S::LANES) {
        for j in (i..whole).step_by(S::LANES) {
            let mirror = s.load_transposed(&knm[j * n + i..], n);
            for (r, &mirrored) in mirror.as_ref().iter().enumerate() {
                let entries = s.load(&knm[(i + r) * n + j..]);
                finite = finite & s.is_finite(entries);
                equal = equal & entries.eq(mirrored);
                let edges = if i == j { S::Vector::select(s.all_but(r), entries, one) } else { entries };
                nonzero = nonzero & edges.ne(zero);
            }
        }
    }
    let mut symmetric = S::Vector::all(equal);
    let mut all_edges = S::Vector::all(nonzero);
    let mut finite = S::Vector::all(finite);
    for i in whole..n {
        for j in 0..i {
            let entry = knm[i * n + j];
            symmetric &= entry == knm[j * n + i];
            all_edges &= entry != 0.0;
            finite &= entry.is_finite();
        }
    }
    (symmetric && finite).then_some(Traits { exactly_symmetric: true, all_edges, symmetric_pattern: true })
}

/// Any other matrix, pair by pair; `None` where two entries are not equal.
fn scan_pairs(n: usize, knm: &[f64]) -> Option<Traits> {
    let mut traits = Traits { exactly_symmetric: true, all_edges: true, symmetric_pattern: true };
    for i in 0..n {
        for j in 0..i {
            let (a, b) = (knm[i * n + j], knm[j * n + i]);
            if unequal(a, b) {
                return None;
            }
            traits.exactly_symmetric &= a == b;
            traits.all_edges &= a != 0.0 && b != 0.0;
            traits.symmetric_pattern &= (a == 0.0) == (b == 0.0);
        }
    }
    Some(traits)
}

/// Which of the three promises a refused matrix breaks; in their order, for one number is reported.
#[cold]
fn coupling_fault(n: usize, knm: &[f64]) -> Status {
    if !knm.iter().all(|entry| entry.is_finite()) {
        return Status::NonfiniteCoupling;
    }
    let symmetric = (0..n).all(|i| (0..i).all(|j| !unequal(knm[i * n + j], knm[j * n + i])));
    if symmetric { Status::NonzeroDiagonal } else { Status::AsymmetricCoupling }
}

/// out = (K + K^T) / 2.
pub fn symmetrise(n: usize, knm: &[f64], out: &mut [f64]) {
    for i in 0..n {
        for j in 0..n {
            out[i * n + j] = 0.5 * knm[i * n + j] + 0.5 * knm[j * n + i];
        }
    }
}

/// out = K^T.
pub fn transpose(n: usize, knm: &[f64], out: &mut [f64]) {
    for i in 0..n {
        for j in 0..n {
            out[i * n + j] = knm[j * n + i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::on_every_level;
    use crate::testing::Random;

    impl Copy for Scan<'_> {}

    impl Clone for Scan<'_> {
        fn clone(&self) -> Self {
            *self
        }
    }

    const ALL: Traits = Traits { exactly_symmetric: true, all_edges: true, symmetric_pattern: true };

    /// What a scan finds after some entries (i, j, value) of a good matrix were replaced.
    fn check(n: usize, changes: &[(usize, usize, f64)], expected: Result<Traits, Status>) {
        let mut knm = Random::new(n as u64).coupling(n, 1.0, false);
        for &(i, j, value) in changes {
            knm[i * n + j] = value;
        }
        for (level, found) in on_every_level(Scan { n, knm: &knm }) {
            assert_eq!(found, expected, "{level}: {changes:?} of {n}");
        }
    }

    #[test]
    fn every_entry_is_looked_at() {
        for n in [1, 2, 3, 7, 8, 9, 16, 17, 33] {
            check(n, &[], Ok(ALL));
            for i in 0..n {
                for j in 0..n {
                    check(n, &[(i, j, f64::NAN)], Err(Status::NonfiniteCoupling));
                    check(n, &[(i, j, f64::INFINITY), (j, i, f64::INFINITY)], Err(Status::NonfiniteCoupling));
                    if i == j {
                        check(n, &[(i, i, 1e-11)], Err(Status::NonzeroDiagonal));
                        check(n, &[(i, i, 1e-13)], Ok(ALL));
                    } else {
                        check(n, &[(i, j, 9.0)], Err(Status::AsymmetricCoupling));
                        let edge_missing = Traits { all_edges: false, ..ALL };
                        check(n, &[(i, j, 0.0), (j, i, 0.0)], Ok(edge_missing));
                        check(n, &[(i, j, 0.0), (j, i, -0.0)], Ok(edge_missing));
                        let unlike = Traits { exactly_symmetric: false, ..ALL };
                        check(n, &[(i, j, 1.0), (j, i, 1.0 + 1e-13)], Ok(unlike));
                        let one_sided = Traits { all_edges: false, symmetric_pattern: false, ..unlike };
                        check(n, &[(i, j, 0.0), (j, i, 1e-13)], Ok(one_sided));
                    }
                }
            }
        }
    }
}
