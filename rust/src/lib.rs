//! `spo_fast.h` in Rust: networks of phase oscillators whose coupling depends on their state.
//!
//! [`ffi`] is the boundary: raw pointers are checked there, once, and become slices; everything behind it is
//! safe but for the loads and stores of `simd` and the block of memory of `scratch`. No thread is
//! started, nothing is printed, no global state is kept.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod ffi;

mod coupling;
mod drift;
mod modulation;
mod order;
#[expect(clippy::approx_constant, reason = "the coefficients are fitted, not those of the series")]
mod polynomials;
mod scratch;
mod simd;
mod status;
mod stepping;
mod tableaux;
#[cfg(test)]
mod testing;
mod vectormath;

pub use status::Status;
