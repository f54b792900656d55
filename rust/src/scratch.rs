//! Working memory of a call: one zeroed block, cut into arrays.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::mem::take;
use std::ptr::NonNull;
use std::slice;

use crate::simd::{MAX_LANES, padded};
use crate::status::Status;

/// The alignment that vectors of every level like, in numbers.
const ALIGNMENT: usize = MAX_LANES;

/// A block of zeros. Unlike a vector it is made without touching it, which a size that memory barely holds
/// needs, and without ending the process where memory ends.
pub struct Scratch {
    block: NonNull<f64>,
    layout: Layout,
}

impl Scratch {
    /// Room for arrays of `len` numbers in all; `None` stands for a sum beyond `usize`.
    pub fn new(len: Option<usize>) -> Result<Self, Status> {
        let layout = len
            .and_then(|len| len.checked_add(ALIGNMENT))
            .and_then(|len| Layout::array::<f64>(len).ok())
            .ok_or(Status::OutOfMemory)?;
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc_zeroed(layout) };
        Ok(Self { block: NonNull::new(block.cast()).ok_or(Status::OutOfMemory)?, layout })
    }

    /// The block, ready to be cut.
    pub fn cutter(&mut self) -> Cutter<'_> {
        // SAFETY: the block holds as many numbers, zeros at first, and is borrowed as long as the slice
        // lives.
        let whole =
            unsafe { slice::from_raw_parts_mut(self.block.as_ptr(), self.layout.size() / size_of::<f64>()) };
        let skipped = whole.as_ptr().align_offset(ALIGNMENT * size_of::<f64>());
        Cutter(&mut whole[skipped..])
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.block.as_ptr().cast(), self.layout) }
    }
}

/// What is left of a block.
pub struct Cutter<'a>(&'a mut [f64]);

impl<'a> Cutter<'a> {
    /// An aligned array of `len` numbers, which costs `padded(len)` of the block.
    pub fn cut(&mut self, len: usize) -> &'a mut [f64] {
        let (array, left) = take(&mut self.0).split_at_mut(padded(len));
        self.0 = left;
        &mut array[..len]
    }

    /// What is left, for a while.
    pub fn lend(&mut self) -> Cutter<'_> {
        Cutter(self.0)
    }
}
