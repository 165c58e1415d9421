//! Which rows of an activation matrix a product reads or writes.

use crate::pool::SharedSlice;

/// Row numbers.
#[derive(Clone, Copy, Debug)]
pub enum RowIndex<'a> {
    /// `first .. first + count`.
    Contiguous {
        /// First row.
        first: usize,
        /// Rows.
        count: usize,
    },
    /// `list[i] / divisor`: with the slots of an expert and `divisor = top_k` these are its token
    /// rows, with `divisor = 1` the slot rows.
    Listed {
        /// Numbers.
        list: &'a [u32],
        /// At least 1.
        divisor: u32,
    },
}

impl RowIndex<'_> {
    /// Rows.
    pub fn len(&self) -> usize {
        match self {
            RowIndex::Contiguous { count, .. } => *count,
            RowIndex::Listed { list, .. } => list.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of the `i`-th row.
    #[inline]
    pub fn get(&self, i: usize) -> usize {
        match self {
            RowIndex::Contiguous { first, .. } => first + i,
            RowIndex::Listed { list, divisor } => (list[i] / divisor) as usize,
        }
    }
}

/// Rows to read.
#[derive(Clone, Copy, Debug)]
pub struct XRows<'a> {
    data: &'a [f32],
    stride: usize,
    index: RowIndex<'a>,
}

impl<'a> XRows<'a> {
    /// Rows of a row-major matrix whose rows start `stride` elements apart.
    pub fn new(data: &'a [f32], stride: usize, index: RowIndex<'a>) -> Self {
        XRows { data, stride, index }
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The leading `cols` elements of the `i`-th row.
    #[inline]
    pub(crate) fn row(&self, i: usize, cols: usize) -> &'a [f32] {
        &self.data[self.index.get(i) * self.stride..][..cols]
    }
}

/// Rows to write; several products may write different columns of them at once.
#[derive(Clone, Copy, Debug)]
pub struct OutRows<'a> {
    data: SharedSlice<'a, f32>,
    stride: usize,
    /// Column that the first element of a row holds.
    column: usize,
    index: RowIndex<'a>,
}

impl<'a> OutRows<'a> {
    /// Rows of a row-major matrix whose rows start `stride` elements apart.
    ///
    /// # Safety
    /// While a product runs with this handle, no one else reads or writes the columns of its tiles
    /// in these rows, and the row numbers are distinct.
    pub unsafe fn new(data: SharedSlice<'a, f32>, stride: usize, index: RowIndex<'a>) -> Self {
        OutRows { data, stride, column: 0, index }
    }

    /// Rows that nobody else uses.
    ///
    pub(crate) fn exclusive(data: &'a mut [f32], stride: usize, index: RowIndex<'a>) -> Self {
        OutRows { data: SharedSlice::new(data), stride, column: 0, index }
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same rows where only the columns from `column` on are stored.
    pub(crate) fn starting_at(self, column: usize) -> Self {
        OutRows { column, ..self }
    }

    /// `len` elements of the `i`-th row from column `first` on.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "disjointness is promised when the handle is made")]
    pub(crate) fn part(&self, i: usize, first: usize, len: usize) -> &mut [f32] {
        // SAFETY: `new` demands that these elements are this product's alone; a product holds one
        // part at a time.
        unsafe { self.data.slice(self.index.get(i) * self.stride + (first - self.column), len) }
    }
}
