//! Weights that a step asks for on behalf of a later one (`kernels/runtime/cuda/ahead.cuh`).
//!
//! The steps of a token are short and wait for each other, so the memory is idle for most of the time
//! although all but the chosen experts are known. While one step runs, the weights of a later one move
//! into the level-2 cache.

use lily_checkpoint::manifest::{Manifest, WeightShape};
use lily_kernels::launch::{Binding, Program};
use lily_plan::plan::Plan;

use crate::launch::PreparedLaunch;
use crate::memory::Address;
use crate::order::Order;

/// Weights of one step that may be asked for: as many as there are in `ahead_`.
const MOST: usize = 4;

/// Bytes of one weight that are asked for at most: the cache also holds what the steps between need.
const MOST_BYTES: u64 = 16 << 20;

/// A range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) address: Address,
    /// At most [`MOST_BYTES`].
    pub(crate) bytes: u32,
}

/// The struct `ahead_` of the kernels; with the address for a trace where kernels write one.
pub(crate) fn words(weights: &[Ahead], records: Option<Address>) -> Vec<u8> {
    let none = Ahead { address: 0, bytes: 0 };
    let all = || (0..MOST).map(|i| weights.get(i).copied().unwrap_or(none));
    let addresses = all().flat_map(|ahead| ahead.address.to_ne_bytes());
    let words = addresses.chain(all().flat_map(|ahead| ahead.bytes.to_ne_bytes()));
    words.chain(records.into_iter().flat_map(Address::to_ne_bytes)).collect()
}

/// Lets every step ask for the weights of the step `distance` steps after it.
pub(crate) fn ask(
    launches: &mut [PreparedLaunch],
    order: &Order,
    plan: &Plan,
    program: &Program,
    manifest: &Manifest,
    distance: usize,
    address: impl Fn(&str) -> (Address, u64),
) {
    let ends = order.steps.iter().zip(order.steps.iter().skip(distance));
    for (&now, &later) in ends {
        let mut weights = Vec::new();
        for binding in &program.launches[later].bindings {
            let Binding::Weight(id) = binding else { continue };
            let name = &plan.weight(*id).name;
            // Which experts are read is not known yet.
            let known = manifest.get(name).is_some_and(|info| match info.shape {
                WeightShape::Matrix(shape) => shape.n_experts == 1,
                WeightShape::Vector { .. } | WeightShape::Conv { .. } => true,
            });
            let (address, bytes) = address(name);
            let ahead = Ahead { address, bytes: bytes.min(MOST_BYTES) as u32 };
            if known && !weights.contains(&ahead) {
                weights.push(ahead);
            }
        }
        weights.sort_by_key(|ahead| std::cmp::Reverse(ahead.bytes));
        weights.truncate(MOST);
        launches[now].ask_ahead(&weights);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_finds_addresses_first_and_then_sizes() {
        let asked = [Ahead { address: 0x10, bytes: 7 }, Ahead { address: 0x20, bytes: 9 }];
        let bytes = words(&asked, None);
        assert_eq!(bytes.len(), 48);
        assert_eq!(bytes[0..8], 0x10u64.to_ne_bytes());
        assert_eq!(bytes[8..16], 0x20u64.to_ne_bytes());
        assert_eq!(bytes[16..32], [0; 16]);
        assert_eq!(bytes[32..36], 7u32.to_ne_bytes());
        assert_eq!(bytes[36..40], 9u32.to_ne_bytes());
        assert_eq!(words(&asked, Some(0x30))[48..], 0x30u64.to_ne_bytes());
    }
}
