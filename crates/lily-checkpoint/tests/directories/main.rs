//! Whole directories: what is accepted, and what is refused by which rule.

mod accepted;
mod hostile;
mod published;
mod random;
mod refused;
mod starts;
mod support;
