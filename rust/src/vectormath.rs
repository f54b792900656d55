//! `exp2`, `sin`, `cos` and the wrap into [0, 2 pi) on lanes.
//!
//! Errors stay below 1.2 units in the last place (1.5 without fused multiply-adds). `exp2(0) = cos 0 = 1` and
//! `sin 0 = 0` exactly. The reductions need rounding to nearest, the mode of every process that did not
//! change it.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, TAU};
use std::hint::black_box;

use crate::polynomials::{COS, EXP2, SIN};
use crate::simd::{Level, MAX_LANES, ROUNDER, Vector};

/// 2^t for -1021 <= t <= 1023 (not checked): 2^r by polynomial, r in [-1/2, 1/2], then round(t) added to the
/// exponent.
pub struct Exp2<V> {
    rounder: V,
    one: V,
    coefficients: [V; 11],
}

impl<V: Vector> Exp2<V> {
    #[inline(always)]
    pub fn new<S: Level<Vector = V>>(s: S) -> Self {
        let mut coefficients = [s.zero(); 11];
        for (vector, coefficient) in coefficients.iter_mut().zip(EXP2) {
            *vector = s.splat(coefficient);
        }
        // Vectors of unknown origin: where registers are few they are read as they stand, instead of being
        // made from known numbers at each use.
        black_box(Self { rounder: s.splat(ROUNDER), one: s.splat(1.0), coefficients })
    }

    #[inline(always)]
    pub fn of(&self, t: V) -> V {
        let shifted = t + self.rounder;
        let r = t - (shifted - self.rounder);
        self.one_plus(r).add_exponent(shifted)
    }

    /// 1 + r q(r): even and odd powers as two chains, since one chain would wait for itself.
    #[inline(always)]
    fn one_plus(&self, r: V) -> V {
        let (q, z) = (&self.coefficients, r * r);
        let (mut even, mut odd) = (q[10], q[9]);
        for k in (1..=4).rev() {
            even = even.mul_add(z, q[2 * k]);
            odd = odd.mul_add(z, q[2 * k - 1]);
        }
        even = even.mul_add(z, q[0]);
        odd.mul_add(r, even).mul_add(r, self.one)
    }
}

/// Larger arguments of [`sincos`] go one by one to the standard library.
const SINCOS_LIMIT: f64 = 524288.0;

/// pi / 2 in three parts. A fused product is exact, so that the first two may have 53 bits; otherwise they
/// have 33, so that their products with |k| < 2^19 are exact.
const fn half_pi(fused: bool) -> [f64; 3] {
    if fused {
        [FRAC_PI_2, 6.123233995736766e-17, -1.4973849048591698e-33]
    } else {
        [1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21]
    }
}

/// Sine and cosine of any number: r + tail = x - k pi / 2 in [-pi / 4, pi / 4], sin r and cos r by
/// polynomial; the quadrant k mod 4 swaps and signs them.
#[inline(always)]
pub fn sincos<S: Level>(s: S, x: S::Vector) -> (S::Vector, S::Vector) {
    let [first, second, third] = half_pi(S::FUSED);
    let (first, second, third) = (s.splat(first), s.splat(second), s.splat(third));
    let one = s.splat(1.0);
    let shifted = x.mul_add(s.splat(FRAC_2_PI), s.splat(ROUNDER));
    let k = shifted - s.splat(ROUNDER);
    let near = k.mul_add(-first, x);
    let part = k * second;
    let rest = k.mul_add(third, k.mul_add(second, -part));
    let r = near - part;
    let tail = ((near - r) - part) - rest;

    let z = r * r;
    let (mut sine, mut cosine) = (s.splat(SIN[5]), s.splat(COS[5]));
    for j in (0..5).rev() {
        sine = sine.mul_add(z, s.splat(SIN[j]));
        cosine = cosine.mul_add(z, s.splat(COS[j]));
    }
    let half = s.splat(0.5) * z;
    let w = one - half;
    let sine = r + (sine * z).mul_add(r, tail * w);
    let cosine = w + (cosine * z).mul_add(z, (-r).mul_add(tail, (one - w) - half));

    let swap = S::Vector::is_odd(shifted);
    let near = (
        S::Vector::select(swap, cosine, sine).flip_in_half_turn(shifted),
        S::Vector::select(swap, sine, cosine).flip_in_half_turn(shifted + one),
    );
    if S::Vector::all(x.abs().le(s.splat(SINCOS_LIMIT))) { near } else { mend_far(s, x, near) }
}

/// Replaces the lanes whose argument is too large or not finite.
#[inline(always)]
fn mend_far<S: Level>(s: S, x: S::Vector, (sine, cosine): (S::Vector, S::Vector)) -> (S::Vector, S::Vector) {
    let [mut arguments, mut sines, mut cosines] = [[0.0; MAX_LANES]; 3];
    x.store(&mut arguments);
    sine.store(&mut sines);
    cosine.store(&mut cosines);
    sincos_far(&arguments, &mut sines, &mut cosines);
    (s.load(&sines), s.load(&cosines))
}

#[cold]
#[inline(never)]
fn sincos_far(x: &[f64; MAX_LANES], sine: &mut [f64; MAX_LANES], cosine: &mut [f64; MAX_LANES]) {
    for lane in 0..MAX_LANES {
        if x[lane].abs() <= SINCOS_LIMIT {
            continue;
        }
        (sine[lane], cosine[lane]) = x[lane].sin_cos();
    }
}

/// Larger arguments of [`wrap`] go one by one to the exact remainder.
const WRAP_LIMIT: f64 = 1048576.0;
/// 2 pi in two parts, the first of 33 bits, so that its product with a number of turns is exact; fused
/// products are so anyway.
const TAU_PARTS: [f64; 2] = [6.2831853069365025, TAU - 6.2831853069365025];

/// x modulo 2 pi into [0, 2 pi); a result that rounds to 2 pi becomes 0. NaN for what is not finite.
pub fn wrap_one(x: f64) -> f64 {
    let y = x % TAU;
    let y = if y < 0.0 { y + TAU } else { y };
    if y == TAU { 0.0 } else { y }
}

/// [`wrap_one`] of every lane.
#[inline(always)]
pub fn wrap<S: Level>(s: S, x: S::Vector) -> S::Vector {
    let (turn, zero, rounder) = (s.splat(TAU), s.zero(), s.splat(ROUNDER));
    let whole = -((x * s.splat(1.0 / TAU) + rounder) - rounder);
    let y = if S::FUSED {
        whole.mul_add(turn, x)
    } else {
        whole.mul_add(s.splat(TAU_PARTS[1]), whole.mul_add(s.splat(TAU_PARTS[0]), x))
    };
    let y = y + turn.keep(y.lt(zero));
    let y = y.keep(y.lt(turn));
    if S::Vector::all(x.abs().le(s.splat(WRAP_LIMIT))) { y } else { wrap_far(s, x) }
}

#[inline(always)]
fn wrap_far<S: Level>(s: S, x: S::Vector) -> S::Vector {
    let mut lanes = [0.0; MAX_LANES];
    x.store(&mut lanes);
    s.load(&wrap_each(lanes))
}

#[cold]
#[inline(never)]
fn wrap_each(lanes: [f64; MAX_LANES]) -> [f64; MAX_LANES] {
    lanes.map(wrap_one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernel, on_every_level};
    use crate::testing::Random;

    #[derive(Clone, Copy)]
    enum Function {
        Exp2,
        Sine,
        Cosine,
        Wrap,
    }

    /// One function of many numbers.
    #[derive(Clone, Copy)]
    struct Map<'a>(Function, &'a [f64]);

    impl Kernel for Map<'_> {
        type Output = Vec<f64>;

        #[inline(always)]
        fn run<S: Level>(self, s: S) -> Vec<f64> {
            let Self(function, numbers) = self;
            let mut out = vec![f64::NAN; numbers.len()];
            let exp2 = Exp2::new(s);
            for (x, place) in numbers.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
                let x = s.load_first(x);
                let y = match function {
                    Function::Exp2 => exp2.of(x),
                    Function::Sine => sincos(s, x).0,
                    Function::Cosine => sincos(s, x).1,
                    Function::Wrap => wrap(s, x),
                };
                y.store_first(place);
            }
            out
        }
    }

    /// Random numbers over the ranges, multiples of pi / 2 and their neighbours.
    fn angles() -> Vec<f64> {
        let mut random = Random::new(5);
        let mut angles: Vec<f64> = (-400..400).map(|k| f64::from(k) * FRAC_PI_2).collect();
        for reach in [1e-300, 1e-8, 0.8, 6.3, 100.0, 5.2e5, 6e5, 1e9, 1e15] {
            angles.extend(random.numbers(2000, -reach, reach));
        }
        let neighbours: Vec<f64> = angles.iter().flat_map(|x| [x.next_up(), x.next_down()]).collect();
        angles.extend(neighbours);
        angles.extend([0.0, -0.0, SINCOS_LIMIT, -SINCOS_LIMIT, WRAP_LIMIT, TAU, TAU.next_down(), -1e-300]);
        angles
    }

    /// In units in the last place of `right`.
    fn ulps(found: f64, right: f64) -> f64 {
        (found - right).abs() / (right.abs().next_up() - right.abs())
    }

    #[test]
    fn functions_agree_with_the_standard_library_on_every_level() {
        let angles = angles();
        let exponents = Random::new(6).numbers(20_000, -1021.0, 1023.0);
        for (function, arguments, right) in [
            (Function::Exp2, &exponents, f64::exp2 as fn(f64) -> f64),
            (Function::Sine, &angles, f64::sin),
            (Function::Cosine, &angles, f64::cos),
        ] {
            for (level, found) in on_every_level(Map(function, arguments)) {
                for (&x, y) in arguments.iter().zip(found) {
                    assert!(ulps(y, right(x)) <= 2.0, "{level}: {y} of {x}, {} is right", right(x));
                }
            }
        }
    }

    #[test]
    fn values_that_must_be_exact_are_so() {
        for (function, value) in
            [(Function::Exp2, 1.0), (Function::Sine, 0.0), (Function::Cosine, 1.0), (Function::Wrap, 0.0)]
        {
            for (level, found) in on_every_level(Map(function, &[0.0, -0.0])) {
                assert_eq!(found, [value; 2], "{level}");
            }
        }
    }

    #[test]
    fn functions_of_what_is_not_finite_are_nan() {
        let numbers = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        for function in [Function::Sine, Function::Cosine, Function::Wrap] {
            for (level, found) in on_every_level(Map(function, &numbers)) {
                assert!(found.iter().all(|y| y.is_nan()), "{level}: {found:?}");
            }
        }
        assert!(numbers.iter().all(|&x| wrap_one(x).is_nan()));
    }

    #[test]
    fn wrapped_angles_are_in_their_range_and_congruent() {
        let angles = angles();
        for (level, found) in on_every_level(Map(Function::Wrap, &angles)) {
            for (&x, y) in angles.iter().zip(found) {
                let apart = (y - wrap_one(x)).abs();
                let doubt = x.abs() * f64::EPSILON;
                assert!((0.0..TAU).contains(&y), "{level}: {y} of {x}");
                assert!(
                    apart <= doubt || TAU - apart <= doubt,
                    "{level}: {y} of {x}, {} is right",
                    wrap_one(x)
                );
                assert!(!(0.0..TAU).contains(&x) || y == x, "{level}: {y} of {x}");
            }
        }
    }
}
