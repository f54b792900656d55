//! Lanes of `f64`, one source for all instruction sets.
//!
//! A [`Level`] is a token: it exists only where the processor has the instructions of its set, so that
//! whoever holds it, or a vector made with it, may use them. A [`Kernel`] is written once for any level;
//! [`Level::enter`] compiles it for the instructions of one. Instructions reach a function only by inlining
//! it into such a kernel: every function that takes a level or a vector is `#[inline(always)]`, and a part
//! worth a function of its own is a kernel, entered from the outer one.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::ops::{Add, BitAnd, Div, Mul, Neg, Sub};

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use portable::Portable;

/// The most lanes of any level: arrays of oscillators are padded to a multiple of it.
pub const MAX_LANES: usize = 8;

/// `n` rounded up to a multiple of [`MAX_LANES`].
pub const fn padded(n: usize) -> usize {
    n.next_multiple_of(MAX_LANES)
}

/// An instruction set that this processor has.
pub trait Level: Copy {
    type Vector: Vector;
    /// One vector a row, `LANES` rows.
    type Square: AsRef<[Self::Vector]>;

    const LANES: usize;
    /// Does [`Vector::mul_add`] round once?
    const FUSED: bool;

    /// Runs a kernel compiled for these instructions.
    fn enter<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, x: f64) -> Self::Vector;

    /// 0, 1, 2, ...
    fn count(self) -> Self::Vector;

    /// The first `LANES` numbers.
    fn load(self, from: &[f64]) -> Self::Vector;

    /// The first `LANES` numbers, zeros behind those that are there.
    fn load_first(self, from: &[f64]) -> Self::Vector;

    /// Columns of the square whose rows begin at `from[0]`, `from[stride]`, ...
    fn load_transposed(self, from: &[f64], stride: usize) -> Self::Square;

    /// All lanes but one; all of them where there is no such lane.
    fn all_but(self, lane: usize) -> <Self::Vector as Vector>::Mask;

    /// Asks for the cache line of a number, which need not be there.
    #[inline(always)]
    fn prefetch(self, _from: &[f64], _at: usize) {}

    #[inline(always)]
    fn zero(self) -> Self::Vector {
        self.splat(0.0)
    }

    /// Neither infinite nor NaN.
    #[inline(always)]
    fn is_finite(self, x: Self::Vector) -> <Self::Vector as Vector>::Mask {
        x.abs().le(self.splat(f64::MAX))
    }

    /// [`Level::load`] where it can, [`Level::load_first`] at the end of a row.
    #[inline(always)]
    fn load_up_to(self, from: &[f64]) -> Self::Vector {
        if from.len() >= Self::LANES { self.load(from) } else { self.load_first(from) }
    }
}

/// A kernel, with its arguments as fields.
pub trait Kernel {
    type Output;

    /// To be marked `#[inline(always)]`.
    fn run<S: Level>(self, level: S) -> Self::Output;
}

/// What the kernels ask of a vector of `f64`.
pub trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
where
    Self: Neg<Output = Self>,
{
    /// Lanes chosen by a comparison.
    type Mask: Copy + BitAnd<Output = Self::Mask>;

    fn store(self, to: &mut [f64]);

    /// As many lanes as there is room for.
    fn store_first(self, to: &mut [f64]);

    /// `self * factor + term`, rounded once where the level is fused.
    fn mul_add(self, factor: Self, term: Self) -> Self;

    fn sqrt(self) -> Self;

    fn abs(self) -> Self;

    /// The larger one; `other` where either is NaN.
    fn max(self, other: Self) -> Self;

    fn lt(self, other: Self) -> Self::Mask;

    fn le(self, other: Self) -> Self::Mask;

    fn eq(self, other: Self) -> Self::Mask;

    /// Unequal or unordered.
    fn ne(self, other: Self) -> Self::Mask;

    /// Are all lanes chosen?
    fn all(mask: Self::Mask) -> bool;

    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;

    /// +0 outside the mask.
    fn keep(self, mask: Self::Mask) -> Self;

    /// Adds the lowest bits of `shifted`, a number of the form [`ROUNDER`] + k, to the exponent: `self *
    /// 2^k`.
    fn add_exponent(self, shifted: Self) -> Self;

    /// Is k odd, for `shifted` = [`ROUNDER`] + k?
    fn is_odd(shifted: Self) -> Self::Mask;

    /// Flips the sign where k mod 4 is 2 or 3, for `shifted` = [`ROUNDER`] + k.
    fn flip_in_half_turn(self, shifted: Self) -> Self;

    /// The sums over the lanes of four vectors.
    fn sum4(four: [Self; 4]) -> [f64; 4];

    /// [`Vector::store_first`] at the end of a row.
    #[inline(always)]
    fn store_up_to(self, to: &mut [f64], lanes: usize) {
        if to.len() >= lanes { self.store(to) } else { self.store_first(to) }
    }
}

/// 1.5 * 2^52: added to |x| < 2^51 it leaves round(x) in the lowest bits of the significand.
pub const ROUNDER: f64 = 6755399441055744.0;

/// The largest lane of a vector without negative ones.
#[inline(always)]
pub fn largest_lane<V: Vector>(x: V) -> f64 {
    let mut lanes = [0.0; MAX_LANES];
    x.store(&mut lanes);
    lanes.into_iter().fold(0.0, f64::max)
}

/// Runs a kernel on the fastest level that this processor has.
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(level) = Avx512::detect() {
            return level.enter(kernel);
        }
        if let Some(level) = Avx2::detect() {
            return level.enter(kernel);
        }
    }
    Portable.enter(kernel)
}

/// The outputs of a kernel on every level that this processor has, with their names.
#[cfg(test)]
pub fn on_every_level<K: Kernel + Copy>(kernel: K) -> Vec<(&'static str, K::Output)> {
    let mut outputs = vec![("portable", Portable.enter(kernel))];
    #[cfg(target_arch = "x86_64")]
    {
        outputs.extend(Avx2::detect().map(|level| ("avx2", level.enter(kernel))));
        outputs.extend(Avx512::detect().map(|level| ("avx512", level.enter(kernel))));
    }
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation, on lanes whose answers are known.
    #[derive(Clone, Copy)]
    struct Operations;

    impl Kernel for Operations {
        type Output = ();

        #[inline(always)]
        fn run<S: Level>(self, s: S) {
            let numbers: Vec<f64> = (0..64).map(|k| (k as f64 - 7.5) * 1.25).collect();
            let lanes = S::LANES;
            let stored = |x: S::Vector| {
                let mut out = vec![f64::NAN; lanes];
                x.store(&mut out);
                out
            };
            let (x, y) = (s.load(&numbers), s.load(&numbers[20..]));
            let pair_by_pair = |found: S::Vector, operation: fn(f64, f64) -> f64| {
                for lane in 0..lanes {
                    assert_eq!(stored(found)[lane], operation(numbers[lane], numbers[20 + lane]));
                }
            };
            pair_by_pair(x + y, |x, y| x + y);
            pair_by_pair(x - y, |x, y| x - y);
            pair_by_pair(x * y, |x, y| x * y);
            pair_by_pair(x / y, |x, y| x / y);
            pair_by_pair(-x, |x, _| -x);
            pair_by_pair(x.abs(), |x, _| x.abs());
            pair_by_pair(y.sqrt(), |_, y| y.sqrt());
            pair_by_pair(x.max(y), f64::max);
            pair_by_pair(x.mul_add(y, y), |x, y| x * y + y); // exact with these numbers
            pair_by_pair(x.keep(x.lt(s.zero())), |x, _| if x < 0.0 { x } else { 0.0 });
            pair_by_pair(
                S::Vector::select(x.le(s.splat(-8.125)), x, y),
                |x, y| if x <= -8.125 { x } else { y },
            );
            pair_by_pair(x.keep(x.eq(s.splat(-8.125))), |x, _| if x == -8.125 { x } else { 0.0 });
            pair_by_pair(x.keep(x.ne(s.splat(-8.125))), |x, _| if x != -8.125 { x } else { 0.0 });

            let nan = s.splat(f64::NAN);
            assert_eq!(stored(nan.max(x)), stored(x));
            assert!(stored(x.max(nan)).iter().all(|x| x.is_nan()));
            assert!(
                S::Vector::all(nan.ne(nan)) && !S::Vector::all(nan.eq(nan)) && !S::Vector::all(nan.le(x))
            );
            assert!(S::Vector::all(s.is_finite(x)) && !S::Vector::all(s.is_finite(x / s.zero())));

            for count in 0..=lanes {
                let mut expected = stored(x);
                expected[count..].fill(0.0);
                assert_eq!(stored(s.load_first(&numbers[..count])), expected);
                assert_eq!(stored(s.load_up_to(&numbers[..count])), expected);
                let mut out = vec![7.0; lanes];
                x.store_first(&mut out[..count]);
                assert!(out[..count] == numbers[..count] && out[count..].iter().all(|&x| x == 7.0));
                let mut but_one = stored(s.splat(1.0));
                but_one.iter_mut().skip(count).take(1).for_each(|lane| *lane = 0.0);
                assert_eq!(stored(s.splat(1.0).keep(s.all_but(count))), but_one);
            }

            for (column, found) in s.load_transposed(&numbers, 8).as_ref().iter().enumerate() {
                let expected: Vec<f64> = (0..lanes).map(|row| numbers[8 * row + column]).collect();
                assert_eq!(stored(*found), expected);
            }
            let sums = S::Vector::sum4([s.count(), x, y, s.splat(1.0)]);
            let sum_from = |start: usize| numbers[start..start + lanes].iter().sum::<f64>();
            assert_eq!(sums, [(lanes * (lanes - 1) / 2) as f64, sum_from(0), sum_from(20), lanes as f64]);

            for k in -6..=6 {
                let shifted = s.splat(ROUNDER + f64::from(k));
                assert_eq!(stored(x.add_exponent(shifted)), stored(x * s.splat(2f64.powi(k))));
                assert_eq!(
                    stored(x.keep(S::Vector::is_odd(shifted))),
                    stored(if k % 2 != 0 { x } else { s.zero() })
                );
                let flipped = if k.rem_euclid(4) >= 2 { -x } else { x };
                assert_eq!(stored(x.flip_in_half_turn(shifted)), stored(flipped));
            }
        }
    }

    #[test]
    fn lanes_compute_what_they_should_on_every_level() {
        on_every_level(Operations);
    }
}
