//! Eight lanes: AVX-512 F, DQ and VL.

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{Kernel, Level, Vector, avx2};

/// The token of AVX-512, made by [`Avx512::detect`] alone.
#[derive(Clone, Copy)]
pub struct Avx512(());

/// Made from an [`Avx512`] alone.
#[derive(Clone, Copy)]
pub struct F64x8(__m512d);

/// Intrinsics that touch no memory.
macro_rules! with_avx512 {
    ($expression:expr) => {
        // SAFETY: used only where `self` or an argument is an Avx512 or an F64x8, which exist only where the
        // processor has the instructions.
        unsafe { $expression }
    };
}

impl Avx512 {
    /// The token, if this processor has the instructions.
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma");
        found.then_some(Self(()))
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
fn run_here<K: Kernel>(level: Avx512, kernel: K) -> K::Output {
    kernel.run(level)
}

/// The first `count` lanes, or all.
#[inline(always)]
fn first(count: usize) -> __mmask8 {
    if count >= 8 { 0xff } else { (1 << count) - 1 }
}

impl Avx512 {
    /// Two rows, interleaved: their even columns and their odd ones.
    #[inline(always)]
    fn load_pair(self, from: &[f64], stride: usize) -> (F64x8, F64x8) {
        let (a, b) = (self.load(from).0, self.load(&from[stride..]).0);
        with_avx512!((F64x8(_mm512_unpacklo_pd(a, b)), F64x8(_mm512_unpackhi_pd(a, b))))
    }
}

/// The transpose of a square of blocks of two lanes.
#[inline(always)]
fn transpose_blocks([a, b, c, d]: [F64x8; 4]) -> [F64x8; 4] {
    with_avx512!({
        let even_0 = _mm512_shuffle_f64x2::<0x88>(a.0, b.0);
        let even_1 = _mm512_shuffle_f64x2::<0x88>(c.0, d.0);
        let odd_0 = _mm512_shuffle_f64x2::<0xdd>(a.0, b.0);
        let odd_1 = _mm512_shuffle_f64x2::<0xdd>(c.0, d.0);
        [
            F64x8(_mm512_shuffle_f64x2::<0x88>(even_0, even_1)),
            F64x8(_mm512_shuffle_f64x2::<0x88>(odd_0, odd_1)),
            F64x8(_mm512_shuffle_f64x2::<0xdd>(even_0, even_1)),
            F64x8(_mm512_shuffle_f64x2::<0xdd>(odd_0, odd_1)),
        ]
    })
}

impl Level for Avx512 {
    type Vector = F64x8;
    type Square = [F64x8; 8];

    const LANES: usize = 8;
    const FUSED: bool = true;

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        with_avx512!(run_here(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f64) -> F64x8 {
        F64x8(with_avx512!(_mm512_set1_pd(x)))
    }

    #[inline(always)]
    fn count(self) -> F64x8 {
        F64x8(with_avx512!(_mm512_setr_pd(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)))
    }

    #[inline(always)]
    fn load(self, from: &[f64]) -> F64x8 {
        let from = &from[..8];
        // SAFETY: the token, and a slice of eight numbers.
        F64x8(unsafe { _mm512_loadu_pd(from.as_ptr()) })
    }

    #[inline(always)]
    fn load_first(self, from: &[f64]) -> F64x8 {
        // SAFETY: the token, and no more numbers than the slice has.
        F64x8(unsafe { _mm512_maskz_loadu_pd(first(from.len()), from.as_ptr()) })
    }

    #[inline(always)]
    fn load_transposed(self, from: &[f64], stride: usize) -> [F64x8; 8] {
        let (even_0, odd_0) = self.load_pair(from, stride);
        let (even_1, odd_1) = self.load_pair(&from[2 * stride..], stride);
        let (even_2, odd_2) = self.load_pair(&from[4 * stride..], stride);
        let (even_3, odd_3) = self.load_pair(&from[6 * stride..], stride);
        let even = transpose_blocks([even_0, even_1, even_2, even_3]);
        let odd = transpose_blocks([odd_0, odd_1, odd_2, odd_3]);
        [even[0], odd[0], even[1], odd[1], even[2], odd[2], even[3], odd[3]]
    }

    #[inline(always)]
    fn all_but(self, lane: usize) -> __mmask8 {
        if lane < 8 { !(1 << lane) } else { 0xff }
    }

    #[inline(always)]
    fn prefetch(self, from: &[f64], at: usize) {
        avx2::prefetch(from, at);
    }
}

impl Vector for F64x8 {
    type Mask = __mmask8;

    #[inline(always)]
    fn store(self, to: &mut [f64]) {
        let to = &mut to[..8];
        // SAFETY: the vector, and a slice of eight numbers.
        unsafe { _mm512_storeu_pd(to.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn store_first(self, to: &mut [f64]) {
        // SAFETY: the vector, and no more numbers than the slice has.
        unsafe { _mm512_mask_storeu_pd(to.as_mut_ptr(), first(to.len()), self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(with_avx512!(_mm512_fmadd_pd(self.0, factor.0, term.0)))
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(with_avx512!(_mm512_sqrt_pd(self.0)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(with_avx512!(_mm512_abs_pd(self.0)))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(with_avx512!(_mm512_max_pd(self.0, other.0)))
    }

    #[inline(always)]
    fn lt(self, other: Self) -> __mmask8 {
        with_avx512!(_mm512_cmp_pd_mask::<_CMP_LT_OQ>(self.0, other.0))
    }

    #[inline(always)]
    fn le(self, other: Self) -> __mmask8 {
        with_avx512!(_mm512_cmp_pd_mask::<_CMP_LE_OQ>(self.0, other.0))
    }

    #[inline(always)]
    fn eq(self, other: Self) -> __mmask8 {
        with_avx512!(_mm512_cmp_pd_mask::<_CMP_EQ_OQ>(self.0, other.0))
    }

    #[inline(always)]
    fn ne(self, other: Self) -> __mmask8 {
        with_avx512!(_mm512_cmp_pd_mask::<_CMP_NEQ_UQ>(self.0, other.0))
    }

    #[inline(always)]
    fn all(mask: __mmask8) -> bool {
        mask == 0xff
    }

    #[inline(always)]
    fn select(mask: __mmask8, yes: Self, no: Self) -> Self {
        Self(with_avx512!(_mm512_mask_blend_pd(mask, no.0, yes.0)))
    }

    #[inline(always)]
    fn keep(self, mask: __mmask8) -> Self {
        Self(with_avx512!(_mm512_maskz_mov_pd(mask, self.0)))
    }

    #[inline(always)]
    fn add_exponent(self, shifted: Self) -> Self {
        Self(with_avx512!({
            let exponent = _mm512_slli_epi64::<52>(_mm512_castpd_si512(shifted.0));
            _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(self.0), exponent))
        }))
    }

    #[inline(always)]
    fn is_odd(shifted: Self) -> __mmask8 {
        with_avx512!(_mm512_test_epi64_mask(_mm512_castpd_si512(shifted.0), _mm512_set1_epi64(1)))
    }

    #[inline(always)]
    fn flip_in_half_turn(self, shifted: Self) -> Self {
        Self(with_avx512!({
            let half_turn = _mm512_and_si512(_mm512_castpd_si512(shifted.0), _mm512_set1_epi64(2));
            _mm512_xor_pd(self.0, _mm512_castsi512_pd(_mm512_slli_epi64::<62>(half_turn)))
        }))
    }

    #[inline(always)]
    fn sum4([a, b, c, d]: [Self; 4]) -> [f64; 4] {
        with_avx512!(avx2::sum_quads([add_halves(a.0), add_halves(b.0), add_halves(c.0), add_halves(d.0)]))
    }
}

/// The upper four lanes added to the lower ones.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn add_halves(x: __m512d) -> __m256d {
    _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd::<1>(x))
}

/// The operators of arithmetic.
macro_rules! operator {
    ($operator:ident, $method:ident, $intrinsic:ident) => {
        impl $operator for F64x8 {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(with_avx512!($intrinsic(self.0, other.0)))
            }
        }
    };
}

operator!(Add, add, _mm512_add_pd);
operator!(Sub, sub, _mm512_sub_pd);
operator!(Mul, mul, _mm512_mul_pd);
operator!(Div, div, _mm512_div_pd);

impl Neg for F64x8 {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        Self(with_avx512!(_mm512_xor_pd(self.0, _mm512_set1_pd(-0.0))))
    }
}
