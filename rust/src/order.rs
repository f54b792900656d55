//! The order parameter, from sums that carry their rounding errors along.

use std::f64::consts::TAU;

use crate::simd::{Kernel, Level, MAX_LANES, Vector};
use crate::vectormath::sincos;

/// r = |mean exp(i theta)| in [0, 1] and psi = its argument in [0, 2 pi).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order {
    pub r: f64,
    pub psi: f64,
}

impl Order {
    /// From the sums of `n` sines and cosines; zeros when `n` is 0.
    fn from_sums(n: usize, sine: f64, cosine: f64) -> Self {
        if n == 0 {
            return Self { r: 0.0, psi: 0.0 };
        }
        let angle = sine.atan2(cosine);
        let psi = if angle < 0.0 { angle + TAU } else { angle };
        Self { r: (sine.hypot(cosine) / n as f64).min(1.0), psi: if psi == TAU { 0.0 } else { psi } }
    }

    /// Of `n` phases from their sines and cosines, padded with zeros.
    #[inline(always)]
    pub fn of_unit_vectors<S: Level>(s: S, n: usize, sine: &[f64], cosine: &[f64]) -> Self {
        let (mut sines, mut cosines) = (ExactSum::zero(s), ExactSum::zero(s));
        for (sine, cosine) in sine.chunks_exact(S::LANES).zip(cosine.chunks_exact(S::LANES)) {
            sines.add(s.load(sine));
            cosines.add(s.load(cosine));
        }
        Self::from_sums(n, sines.total(), cosines.total())
    }
}

/// The order parameter of phases (n).
pub struct OrderOf<'a>(pub &'a [f64]);

impl Kernel for OrderOf<'_> {
    type Output = Order;

    #[inline(always)]
    fn run<S: Level>(self, s: S) -> Order {
        let (mut sines, mut cosines) = (ExactSum::zero(s), ExactSum::zero(s));
        for phases in self.0.chunks(S::LANES) {
            let there = s.count().lt(s.splat(phases.len() as f64));
            let (sine, cosine) = sincos(s, s.load_first(phases));
            sines.add(sine.keep(there));
            cosines.add(cosine.keep(there));
        }
        Order::from_sums(self.0.len(), sines.total(), cosines.total())
    }
}

/// Lanes of sums with what rounding took from them (A. Neumaier, Z. Angew. Math. Mech. 54 (1974) 39; the
/// error of one addition by D. E. Knuth, The Art of Computer Programming 2, 4.2.2).
struct ExactSum<V> {
    sum: V,
    error: V,
}

impl<V: Vector> ExactSum<V> {
    #[inline(always)]
    fn zero<S: Level<Vector = V>>(s: S) -> Self {
        Self { sum: s.zero(), error: s.zero() }
    }

    #[inline(always)]
    fn add(&mut self, x: V) {
        let sum = self.sum + x;
        let from_x = sum - self.sum;
        self.error = self.error + ((self.sum - (sum - from_x)) + (x - from_x));
        self.sum = sum;
    }

    /// The sum over all lanes.
    #[inline(always)]
    fn total(&self) -> f64 {
        let [mut sums, mut errors] = [[0.0; MAX_LANES]; 2];
        self.sum.store(&mut sums);
        self.error.store(&mut errors);
        let (mut total, mut error) = (0.0, errors.iter().sum::<f64>());
        for x in sums {
            let sum: f64 = total + x;
            let from_x = sum - total;
            error += (total - (sum - from_x)) + (x - from_x);
            total = sum;
        }
        total + error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::on_every_level;

    impl Copy for OrderOf<'_> {}

    impl Clone for OrderOf<'_> {
        fn clone(&self) -> Self {
            *self
        }
    }

    #[test]
    fn identical_phases_have_order_one_and_their_own_phase() {
        for n in [1, 2, 3, 7, 8, 9, 16, 17, 33, 10_000] {
            for k in 0..50 {
                let phase = f64::from(k) * TAU / 50.0;
                for (level, Order { r, psi }) in on_every_level(OrderOf(&vec![phase; n])) {
                    assert!((1.0 - f64::EPSILON..=1.0).contains(&r), "{level}: {r}");
                    assert!((psi - phase).abs() <= 2e-15 && (0.0..TAU).contains(&psi), "{level}: {psi}");
                }
            }
        }
    }

    #[test]
    fn no_phases_have_order_zero() {
        for (_, order) in on_every_level(OrderOf(&[])) {
            assert_eq!(order, Order { r: 0.0, psi: 0.0 });
        }
    }

    #[test]
    fn the_mean_phase_of_a_tiny_negative_angle_is_below_a_full_turn() {
        for (_, Order { psi, .. }) in on_every_level(OrderOf(&[-1e-300])) {
            assert_eq!(psi, 0.0);
        }
    }
}
