//! The statuses of `spo_fast.h` and their texts.

use std::ffi::CStr;

/// What a call comes to; numbers are never reused.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    /// A number out of its range, or a pointer that must not be null.
    InvalidArgument = 1,
    /// Nothing was written.
    OutOfMemory = 2,
    /// NaN or infinity in K.
    NonfiniteCoupling = 3,
    /// |K_ij - K_ji| > 1e-12 (1 + min(|K_ij|, |K_ji|)).
    AsymmetricCoupling = 4,
    /// |K_ii| > 1e-12.
    NonzeroDiagonal = 5,
    /// NaN or infinity in theta.
    NonfinitePhase = 6,
    /// A step gave NaN or infinity: the state is the last good one.
    NonfiniteState = 7,
}

impl Status {
    const ALL: [Self; 8] = [
        Self::Ok,
        Self::InvalidArgument,
        Self::OutOfMemory,
        Self::NonfiniteCoupling,
        Self::AsymmetricCoupling,
        Self::NonzeroDiagonal,
        Self::NonfinitePhase,
        Self::NonfiniteState,
    ];

    fn text(self) -> &'static CStr {
        match self {
            Self::Ok => c"success",
            Self::InvalidArgument => c"an argument is out of its range",
            Self::OutOfMemory => c"out of memory",
            Self::NonfiniteCoupling => c"the coupling matrix holds NaN or infinity",
            Self::AsymmetricCoupling => c"the coupling matrix is not symmetric within 1e-12",
            Self::NonzeroDiagonal => c"the diagonal of the coupling matrix is not zero within 1e-12",
            Self::NonfinitePhase => c"the phases hold NaN or infinity",
            Self::NonfiniteState => c"a step gave NaN or infinity",
        }
    }

    /// The text of a status by its number.
    pub fn text_of(number: i32) -> &'static CStr {
        Self::ALL.into_iter().find(|&status| status as i32 == number).map_or(c"unknown status", Self::text)
    }
}
