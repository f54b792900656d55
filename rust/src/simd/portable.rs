//! Two lanes in plain Rust, which the compiler turns into the baseline instructions of any platform.

use std::array::from_fn;
use std::ops::{Add, BitAnd, Div, Mul, Neg, Sub};

use super::{Kernel, Level, Vector};

/// Every processor has it.
#[derive(Clone, Copy)]
pub struct Portable;

const LANES: usize = 2;

#[derive(Clone, Copy)]
pub struct Pack([f64; LANES]);

/// All bits of a lane, or none.
#[derive(Clone, Copy)]
pub struct PackMask([u64; LANES]);

/// Where a fused instruction belongs to the baseline; elsewhere `f64::mul_add` is a call of the C library.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

impl Level for Portable {
    type Vector = Pack;
    type Square = [Pack; LANES];

    const LANES: usize = LANES;
    const FUSED: bool = FUSED;

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        run_here(kernel)
    }

    #[inline(always)]
    fn splat(self, x: f64) -> Pack {
        Pack([x; LANES])
    }

    #[inline(always)]
    fn count(self) -> Pack {
        Pack(from_fn(|lane| lane as f64))
    }

    #[inline(always)]
    fn load(self, from: &[f64]) -> Pack {
        let from = &from[..LANES];
        Pack(from_fn(|lane| from[lane]))
    }

    #[inline(always)]
    fn load_first(self, from: &[f64]) -> Pack {
        Pack(from_fn(|lane| from.get(lane).copied().unwrap_or(0.0)))
    }

    #[inline(always)]
    fn load_transposed(self, from: &[f64], stride: usize) -> [Pack; LANES] {
        from_fn(|column| Pack(from_fn(|row| from[row * stride + column])))
    }

    #[inline(always)]
    fn all_but(self, lane: usize) -> PackMask {
        PackMask(from_fn(|l| bits(l != lane)))
    }
}

fn run_here<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Portable)
}

#[inline(always)]
fn bits(chosen: bool) -> u64 {
    if chosen { u64::MAX } else { 0 }
}

impl Pack {
    #[inline(always)]
    fn zip(self, other: Self, operation: impl Fn(f64, f64) -> f64) -> Self {
        Self(from_fn(|lane| operation(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    fn compare(self, other: Self, comparison: impl Fn(&f64, &f64) -> bool) -> PackMask {
        PackMask(from_fn(|lane| bits(comparison(&self.0[lane], &other.0[lane]))))
    }

    #[inline(always)]
    fn zip_bits(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
        self.zip(other, |x, y| f64::from_bits(operation(x.to_bits(), y.to_bits())))
    }
}

impl Vector for Pack {
    type Mask = PackMask;

    #[inline(always)]
    fn store(self, to: &mut [f64]) {
        to[..LANES].copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn store_first(self, to: &mut [f64]) {
        for (place, x) in to.iter_mut().zip(self.0) {
            *place = x;
        }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        if FUSED {
            Self(from_fn(|lane| self.0[lane].mul_add(factor.0[lane], term.0[lane])))
        } else {
            self * factor + term
        }
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.map(f64::sqrt))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.map(f64::abs))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |x, y| if x > y { x } else { y })
    }

    #[inline(always)]
    fn lt(self, other: Self) -> PackMask {
        self.compare(other, f64::lt)
    }

    #[inline(always)]
    fn le(self, other: Self) -> PackMask {
        self.compare(other, f64::le)
    }

    #[inline(always)]
    fn eq(self, other: Self) -> PackMask {
        self.compare(other, f64::eq)
    }

    #[inline(always)]
    fn ne(self, other: Self) -> PackMask {
        self.compare(other, f64::ne)
    }

    #[inline(always)]
    fn all(mask: PackMask) -> bool {
        mask.0.iter().fold(u64::MAX, |all, lane| all & lane) != 0
    }

    #[inline(always)]
    fn select(mask: PackMask, yes: Self, no: Self) -> Self {
        Self(from_fn(|lane| {
            let chosen = mask.0[lane];
            f64::from_bits(yes.0[lane].to_bits() & chosen | no.0[lane].to_bits() & !chosen)
        }))
    }

    #[inline(always)]
    fn keep(self, mask: PackMask) -> Self {
        Self(from_fn(|lane| f64::from_bits(self.0[lane].to_bits() & mask.0[lane])))
    }

    #[inline(always)]
    fn add_exponent(self, shifted: Self) -> Self {
        self.zip_bits(shifted, |x, k| x.wrapping_add(k << 52))
    }

    #[inline(always)]
    fn is_odd(shifted: Self) -> PackMask {
        PackMask(shifted.0.map(|k| (k.to_bits() & 1).wrapping_neg()))
    }

    #[inline(always)]
    fn flip_in_half_turn(self, shifted: Self) -> Self {
        self.zip_bits(shifted, |x, k| x ^ (k & 2) << 62)
    }

    #[inline(always)]
    fn sum4(four: [Self; 4]) -> [f64; 4] {
        four.map(|x| x.0.iter().sum())
    }
}

impl BitAnd for PackMask {
    type Output = Self;

    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(from_fn(|lane| self.0[lane] & other.0[lane]))
    }
}

/// The operators of arithmetic.
macro_rules! operator {
    ($operator:ident, $method:ident) => {
        impl $operator for Pack {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.zip(other, f64::$method)
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);
operator!(Div, div);

impl Neg for Pack {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        Self(self.0.map(f64::neg))
    }
}
