//! The structs of `kernels/runtime/host/machine.hpp`.

use std::ffi::{c_char, c_void};

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Binding {
    pub(crate) base: *mut u8,
    pub(crate) bytes: u64,
    pub(crate) index: u32,
}

/// An entry point, called once per thread.
pub(crate) type EntryFn = unsafe extern "C" fn(*const Binding);

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Launch {
    pub(crate) entry: EntryFn,
    pub(crate) bindings: *const Binding,
    pub(crate) n_bindings: u32,
    pub(crate) threads: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) n_order: u32,
    pub(crate) cluster: u32,
    pub(crate) order: *const u32,
    pub(crate) seed: u64,
}

pub(crate) mod kind {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const BOUNDS: u32 = 1;
    pub(crate) const ALIGNMENT: u32 = 2;
    pub(crate) const DIVERGENCE: u32 = 3;
    pub(crate) const THREADGROUP_MEMORY: u32 = 4;
    pub(crate) const UNKNOWN_MEMORY: u32 = 5;
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Report {
    pub(crate) kind: u32,
    pub(crate) binding: i32,
    pub(crate) offset: i64,
    pub(crate) bytes: u64,
    pub(crate) size: u64,
    pub(crate) address: u64,
    pub(crate) thread: u32,
    pub(crate) threadgroup: [u32; 3],
    pub(crate) name: [c_char; 64],
    pub(crate) text: [c_char; 512],
}

impl Report {
    pub(crate) const EMPTY: Report = Report {
        kind: kind::NONE,
        binding: 0,
        offset: 0,
        bytes: 0,
        size: 0,
        address: 0,
        thread: 0,
        threadgroup: [0; 3],
        name: [0; 64],
        text: [0; 512],
    };
}

/// `lily_machine_new`.
pub(crate) type MachineNewFn = unsafe extern "C" fn() -> *mut c_void;
/// `lily_run`.
pub(crate) type RunFn = unsafe extern "C" fn(*mut c_void, *const Launch, *mut Report) -> u32;
