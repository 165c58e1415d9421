//! Numbers that a machine may want otherwise, and techniques that can be switched off.

use super::Block;

/// A threadgroup of many-row attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionTile {
    /// Simdgroups along the query rows, 16 rows each, and along the elements of a head. More of the
    /// latter need fewer registers, but have scores to exchange.
    pub simdgroups: (usize, usize),
    /// Keys of a block: a multiple of 16.
    pub keys: usize,
    /// 1: keys and values take turns in threadgroup memory; 2: the next are copied while these are worked
    /// on.
    pub buffers: usize,
}

/// How kernels are shaped for one kind of machine. None of it changes what is computed, and only what
/// is said to changes the order of a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Rows from which on products are matrix-matrix products.
    pub gemm_rows: usize,
    /// What a threadgroup of a dense matrix-matrix product computes.
    pub matmul_block: Block,
    /// Slots that a threadgroup of a grouped product takes at most: 16, 32 or 64. Fewer are taken where an
    /// expert is expected to have few.
    pub expert_tile_rows: usize,
    /// Rows of a matrix that a simdgroup of a matrix-vector product takes at most: 1, 2, 4 or 8.
    pub matvec_rows: usize,
    /// Simdgroups of a threadgroup of such a product, where there is enough work: 2 to 16, a power of
    /// two. Changes the order of the sum of squares of a folded norm.
    pub matvec_simdgroups: usize,
    /// Threadgroups of a product with a single matrix and a folded norm, such as the head's, at most;
    /// where there would be more, each takes several shares of the rows and stages its input once.
    pub matvec_groups: usize,
    /// Rows of both matrices that a simdgroup of the gate and up projections of the experts of one token
    /// takes at most, 1, 2 or 4, and simdgroups of a threadgroup, 2 to 16.
    pub routed_gated: (usize, usize),
    /// Outputs of a threadgroup of their down projections at most: 1, 2, 4 or 8; 16 where `row_tiles` takes
    /// them.
    pub routed_down_rows: usize,
    /// The machine multiplies 16 rows of 4-bit matrices at a time with one row of activations
    /// (`common/digits.h` of the kernels); [`Tuning::defines`] tells its compiler.
    pub row_tiles: bool,
    /// Query heads that share a KV head share its loads; off: one head per simdgroup alone.
    pub gqa_packing: bool,
    /// Query heads that one simdgroup of few-row attention serves at most: 1, 2, 4 or 8. A lane keeps
    /// their queries and sums in registers.
    pub attention_heads: usize,
    /// What a threadgroup of many-row attention computes.
    pub attention_tile: AttentionTile,
    /// Tokens that the scan of Gated DeltaNet takes together: 1, 2, 4 or 8; fewer where they would not
    /// fit into threadgroup memory. Changes the order of sums; 1 is the rule token by token. By NVRTC's
    /// count a thread needs 95, 128 and 231 registers for 1, 2 and 4; Apple GPUs have 128.
    pub scan_block: usize,
    /// Scans of [`Tuning::SCAN_CHUNK_ROWS`] rows or more go by chunks of 16 tokens, through matrix tiles.
    /// Changes the order of sums, and products go through bf16 in two pieces.
    pub scan_chunks: bool,
    /// Lanes that share a row of the state of Gated DeltaNet: 4, 8 or 16; 4 where a row is too short for
    /// more. More lanes read a key for more rows, but have more partial sums to add.
    pub delta_lanes: usize,
    /// The same in the step of one token.
    pub mix_lanes: usize,
    /// Threadgroups that share a value head of Gated DeltaNet in decode, a power of two up to 8: 1 where
    /// the machine has no clusters. Changes the order of the sum of squares of the head's norm.
    pub delta_cluster: usize,
    /// The tensor-unit library may be used (Metal 4).
    pub tensor_units: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            gemm_rows: 16,
            matmul_block: Block { rows: 64, columns: 64, depth: 64, simdgroups: (2, 2) },
            expert_tile_rows: 32,
            matvec_rows: 4,
            matvec_simdgroups: 8,
            matvec_groups: usize::MAX,
            routed_gated: (1, 8),
            routed_down_rows: 4,
            row_tiles: false,
            gqa_packing: true,
            attention_heads: 2,
            attention_tile: AttentionTile { simdgroups: (2, 4), keys: 16, buffers: 1 },
            scan_block: 2,
            scan_chunks: false,
            delta_lanes: 8,
            mix_lanes: 8,
            delta_cluster: 1,
            tensor_units: false,
        }
    }
}

impl Tuning {
    /// Names that are defined where kernels are compiled.
    pub fn defines(&self) -> &'static [&'static str] {
        if self.row_tiles { &["LILY_ROW_TILES"] } else { &[] }
    }

    /// For machines where threadgroups cannot exchange numbers.
    pub fn without_clusters(self) -> Tuning {
        Tuning { delta_cluster: 1, ..self }
    }

    /// Rows from which on a scan may go by chunks: below, the first one is hardly paid back.
    pub const SCAN_CHUNK_ROWS: usize = 32;

    /// For NVIDIA GPUs, measured on one H200: more registers per thread than on Apple GPUs allow larger blocks.
    pub fn nvidia() -> Tuning {
        Tuning {
            matmul_block: Block { rows: 64, columns: 128, depth: 64, simdgroups: (1, 4) },
            expert_tile_rows: 64,
            // As many as an H200 holds at once.
            matvec_groups: 396,
            routed_gated: (2, 8),
            attention_heads: 4,
            attention_tile: AttentionTile { simdgroups: (8, 1), keys: 16, buffers: 2 },
            scan_block: 4,
            scan_chunks: true,
            delta_lanes: 4,
            mix_lanes: 8,
            delta_cluster: 4,
            row_tiles: true,
            ..Tuning::default()
        }
    }
}
