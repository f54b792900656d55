//! Four lanes: AVX2 and FMA.

use std::arch::x86_64::*;
use std::ops::{Add, BitAnd, Div, Mul, Neg, Sub};

use super::{Kernel, Level, Vector};

/// The token of AVX2 and FMA, made by [`Avx2::detect`] alone.
#[derive(Clone, Copy)]
pub struct Avx2(());

/// Made from an [`Avx2`] alone.
#[derive(Clone, Copy)]
pub struct F64x4(__m256d);

/// All bits of a lane, or none; made from an [`Avx2`] or an [`F64x4`] alone.
#[derive(Clone, Copy)]
pub struct Mask4(__m256d);

/// Intrinsics that touch no memory.
macro_rules! with_avx2 {
    ($expression:expr) => {
        // SAFETY: used only where `self` or an argument is an Avx2, an F64x4 or a Mask4, which exist only
        // where the processor has the instructions.
        unsafe { $expression }
    };
}

impl Avx2 {
    /// The token, if this processor has the instructions.
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        found.then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma")]
fn run_here<K: Kernel>(level: Avx2, kernel: K) -> K::Output {
    kernel.run(level)
}

/// The first `count` lanes, or all.
#[inline(always)]
fn first(count: usize) -> __m256i {
    const WINDOW: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];
    let window = &WINDOW[4 - count.min(4)..][..4];
    // SAFETY: called where an Avx2 or an F64x4 is at hand, with a slice of four numbers.
    unsafe { _mm256_loadu_si256(window.as_ptr().cast()) }
}

impl Level for Avx2 {
    type Vector = F64x4;
    type Square = [F64x4; 4];

    const LANES: usize = 4;
    const FUSED: bool = true;

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        with_avx2!(run_here(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f64) -> F64x4 {
        F64x4(with_avx2!(_mm256_set1_pd(x)))
    }

    #[inline(always)]
    fn count(self) -> F64x4 {
        F64x4(with_avx2!(_mm256_setr_pd(0.0, 1.0, 2.0, 3.0)))
    }

    #[inline(always)]
    fn load(self, from: &[f64]) -> F64x4 {
        let from = &from[..4];
        // SAFETY: the token, and a slice of four numbers.
        F64x4(unsafe { _mm256_loadu_pd(from.as_ptr()) })
    }

    #[inline(always)]
    fn load_first(self, from: &[f64]) -> F64x4 {
        // SAFETY: the token, and no more numbers than the slice has.
        F64x4(unsafe { _mm256_maskload_pd(from.as_ptr(), first(from.len())) })
    }

    #[inline(always)]
    fn load_transposed(self, from: &[f64], stride: usize) -> [F64x4; 4] {
        let (a, b) = (self.load(from).0, self.load(&from[stride..]).0);
        let (c, d) = (self.load(&from[2 * stride..]).0, self.load(&from[3 * stride..]).0);
        with_avx2!({
            let (even_0, odd_0) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
            let (even_1, odd_1) = (_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
            [
                F64x4(_mm256_permute2f128_pd::<0x20>(even_0, even_1)),
                F64x4(_mm256_permute2f128_pd::<0x20>(odd_0, odd_1)),
                F64x4(_mm256_permute2f128_pd::<0x31>(even_0, even_1)),
                F64x4(_mm256_permute2f128_pd::<0x31>(odd_0, odd_1)),
            ]
        })
    }

    #[inline(always)]
    fn all_but(self, lane: usize) -> Mask4 {
        self.count().ne(self.splat(lane as f64))
    }

    #[inline(always)]
    fn prefetch(self, from: &[f64], at: usize) {
        prefetch(from, at);
    }
}

#[inline(always)]
pub(super) fn prefetch(from: &[f64], at: usize) {
    // SAFETY: every x86-64 processor has the instruction, and it never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(from.as_ptr().wrapping_add(at).cast()) }
}

/// The four sums over four lanes each.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_quads([a, b, c, d]: [__m256d; 4]) -> [f64; 4] {
    let (ab, cd) = (_mm256_hadd_pd(a, b), _mm256_hadd_pd(c, d));
    let (crossed, straight) = (_mm256_permute2f128_pd::<0x21>(ab, cd), _mm256_blend_pd::<0xc>(ab, cd));
    let mut sums = [0.0; 4];
    // SAFETY: room for four numbers.
    unsafe { _mm256_storeu_pd(sums.as_mut_ptr(), _mm256_add_pd(crossed, straight)) }
    sums
}

impl Vector for F64x4 {
    type Mask = Mask4;

    #[inline(always)]
    fn store(self, to: &mut [f64]) {
        let to = &mut to[..4];
        // SAFETY: the vector, and a slice of four numbers.
        unsafe { _mm256_storeu_pd(to.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn store_first(self, to: &mut [f64]) {
        // SAFETY: the vector, and no more numbers than the slice has.
        unsafe { _mm256_maskstore_pd(to.as_mut_ptr(), first(to.len()), self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(with_avx2!(_mm256_fmadd_pd(self.0, factor.0, term.0)))
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(with_avx2!(_mm256_sqrt_pd(self.0)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(with_avx2!(_mm256_andnot_pd(_mm256_set1_pd(-0.0), self.0)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(with_avx2!(_mm256_max_pd(self.0, other.0)))
    }

    #[inline(always)]
    fn lt(self, other: Self) -> Mask4 {
        Mask4(with_avx2!(_mm256_cmp_pd::<_CMP_LT_OQ>(self.0, other.0)))
    }

    #[inline(always)]
    fn le(self, other: Self) -> Mask4 {
        Mask4(with_avx2!(_mm256_cmp_pd::<_CMP_LE_OQ>(self.0, other.0)))
    }

    #[inline(always)]
    fn eq(self, other: Self) -> Mask4 {
        Mask4(with_avx2!(_mm256_cmp_pd::<_CMP_EQ_OQ>(self.0, other.0)))
    }

    #[inline(always)]
    fn ne(self, other: Self) -> Mask4 {
        Mask4(with_avx2!(_mm256_cmp_pd::<_CMP_NEQ_UQ>(self.0, other.0)))
    }

    #[inline(always)]
    fn all(mask: Mask4) -> bool {
        with_avx2!(_mm256_movemask_pd(mask.0)) == 0xf
    }

    #[inline(always)]
    fn select(mask: Mask4, yes: Self, no: Self) -> Self {
        Self(with_avx2!(_mm256_blendv_pd(no.0, yes.0, mask.0)))
    }

    #[inline(always)]
    fn keep(self, mask: Mask4) -> Self {
        Self(with_avx2!(_mm256_and_pd(self.0, mask.0)))
    }

    #[inline(always)]
    fn add_exponent(self, shifted: Self) -> Self {
        Self(with_avx2!({
            let exponent = _mm256_slli_epi64::<52>(_mm256_castpd_si256(shifted.0));
            _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(self.0), exponent))
        }))
    }

    #[inline(always)]
    fn is_odd(shifted: Self) -> Mask4 {
        Mask4(with_avx2!({
            let lowest = _mm256_and_si256(_mm256_castpd_si256(shifted.0), _mm256_set1_epi64x(1));
            _mm256_castsi256_pd(_mm256_sub_epi64(_mm256_setzero_si256(), lowest))
        }))
    }

    #[inline(always)]
    fn flip_in_half_turn(self, shifted: Self) -> Self {
        Self(with_avx2!({
            let half_turn = _mm256_and_si256(_mm256_castpd_si256(shifted.0), _mm256_set1_epi64x(2));
            _mm256_xor_pd(self.0, _mm256_castsi256_pd(_mm256_slli_epi64::<62>(half_turn)))
        }))
    }

    #[inline(always)]
    fn sum4([a, b, c, d]: [Self; 4]) -> [f64; 4] {
        with_avx2!(sum_quads([a.0, b.0, c.0, d.0]))
    }
}

impl BitAnd for Mask4 {
    type Output = Self;

    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(with_avx2!(_mm256_and_pd(self.0, other.0)))
    }
}

/// The operators of arithmetic.
macro_rules! operator {
    ($operator:ident, $method:ident, $intrinsic:ident) => {
        impl $operator for F64x4 {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(with_avx2!($intrinsic(self.0, other.0)))
            }
        }
    };
}

operator!(Add, add, _mm256_add_pd);
operator!(Sub, sub, _mm256_sub_pd);
operator!(Mul, mul, _mm256_mul_pd);
operator!(Div, div, _mm256_div_pd);

impl Neg for F64x4 {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        Self(with_avx2!(_mm256_xor_pd(self.0, _mm256_set1_pd(-0.0))))
    }
}
