//! Which memory is made resident together.
//!
//! Memory in a residency set stays wired; without one the system takes it from an idle GPU. A queue
//! takes few sets, and newer systems admit or refuse a set as a whole: so sets are neither many nor
//! large.

/// Residency sets that a queue takes.
pub(crate) const MOST_SETS: usize = 32;

/// Sets that weights may fill; the others are for scratch and sessions.
const WEIGHT_SETS: u64 = 24;

/// Bytes up to which a set is filled: a twentieth of what may be resident, or more where the weights
/// would else need too many sets.
pub(crate) fn set_bytes(working_set: u64, weights: u64) -> u64 {
    (working_set / 20).max(weights.div_ceil(WEIGHT_SETS)).max(1)
}

/// The set that takes an allocation, by the bytes in each; the number of sets means a new one.
pub(crate) fn choose(loads: &[u64], bytes: u64, set_bytes: u64) -> usize {
    let fits = |load: u64| load.saturating_add(bytes) <= set_bytes;
    if let Some(set) = loads.iter().position(|&load| fits(load)) {
        return set;
    }
    if loads.len() < MOST_SETS {
        return loads.len();
    }
    let least = loads.iter().enumerate().min_by_key(|&(_, load)| load);
    least.map_or(0, |(set, _)| set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_a_twentieth_of_the_working_set_unless_weights_need_more() {
        assert_eq!(set_bytes(48 << 30, 20 << 30), (48 << 30) / 20);
        assert_eq!(set_bytes(16 << 30, 24 << 30), 1 << 30);
        assert_eq!(set_bytes(0, 0), 1);
    }

    #[test]
    fn an_allocation_goes_where_it_fits_else_to_a_new_set_else_to_the_emptiest() {
        assert_eq!(choose(&[], 50, 100), 0);
        assert_eq!(choose(&[60], 50, 100), 1);
        assert_eq!(choose(&[60, 50], 50, 100), 1);
        assert_eq!(choose(&[60], 500, 100), 1, "even one that is larger than a set");
        let mut full = vec![90; MOST_SETS];
        full[7] = 80;
        assert_eq!(choose(&full, 50, 100), 7);
        assert_eq!(choose(&full, u64::MAX, 100), 7);
    }
}
