//! A parallel-for over a fixed set of threads.
//!
//! A job is a closure and a number of tasks; the caller and the workers take task numbers from one
//! counter until none is left. A worker takes part only if it arrives while the job is open, so a
//! worker that sleeps or was descheduled never delays a job that the others have finished.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle worker looks for the next job before it parks. Steps of a decode follow each
/// other within microseconds; waking a parked thread costs several of them.
const SPIN: Duration = Duration::from_micros(100);

/// Set in [`Shared::gate`] while workers may join; the low bits count those inside, the bits above
/// count jobs.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const JOB: u64 = OPEN << 1;

type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// The current job. Written only while the gate is closed and nobody is inside.
struct Job {
    task: *const Task<'static>,
    n_tasks: usize,
}

struct Shared {
    gate: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    stop: AtomicBool,
    asleep: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the thread that holds `Pool::turn` while the gate is closed and empty,
// and read by workers only after they joined through the gate (acquire) and before they leave it
// (release), so writes and reads never overlap. The other fields are `Sync` themselves.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` refers to a `Sync` closure that outlives every use (see `run`).
unsafe impl Send for Shared {}

/// Threads that run tasks together with the caller.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    threads: Vec<Thread>,
    /// One job at a time.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] counted; at least one.
    ///
    /// Where the system refuses a thread the pool is smaller.
    pub fn new(threads: usize) -> Self {
        let workers = threads.clamp(1, INSIDE as usize) - 1;
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { task: &|_: usize, _: usize| {}, n_tasks: 0 }),
            stop: AtomicBool::new(false),
            asleep: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        let handles: Vec<_> = (0..workers)
            .map_while(|worker| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("lily-cpu-{}", worker + 1))
                    .spawn(move || shared.serve(worker))
                    .ok()
            })
            .collect();
        let threads = handles.iter().map(|h| h.thread().clone()).collect();
        Pool { shared, handles, threads, turn: Mutex::new(()) }
    }

    /// Threads that work on a job.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `task(i, worker)` once for each `i` below `n_tasks`, in any order, and returns when all
    /// have ended. `worker` is below [`Pool::threads`] and belongs to one thread for the whole job.
    ///
    /// # Panics
    /// With the payload of the first task that panicked; the other tasks still run.
    pub fn run(&self, n_tasks: usize, task: impl Fn(usize, usize) + Sync) {
        if n_tasks == 0 {
            return;
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if n_tasks == 1 || self.threads.is_empty() {
            for i in 0..n_tasks {
                self.shared.guarded(&task, i, 0);
            }
        } else {
            self.share(n_tasks, &task);
        }
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    fn share(&self, n_tasks: usize, task: &Task<'_>) {
        let shared = &*self.shared;
        let task: *const Task<'_> = task;
        // SAFETY: only the lifetime changes; `close` below returns after the last worker has left,
        // so nobody uses the pointer after this function.
        let task = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        // SAFETY: `turn` is held and the gate is closed and empty, so no one else looks at the job.
        unsafe { *shared.job.get() = Job { task, n_tasks } };
        shared.next.store(0, Ordering::Relaxed);
        let before = shared.gate.load(Ordering::Relaxed);
        shared.gate.store(before.wrapping_add(JOB) | OPEN, Ordering::Release);
        fence(Ordering::SeqCst);
        for (asleep, thread) in shared.asleep.iter().zip(&self.threads) {
            if asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Relaxed) {
                thread.unpark();
            }
        }
        shared.take_tasks(0);
        shared.close();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.unpark();
        }
        for handle in self.handles.drain(..) {
            // A worker catches the panics of tasks, so there is nothing to report.
            let _ = handle.join();
        }
    }
}

impl Shared {
    fn guarded(&self, task: &Task<'_>, i: usize, worker: usize) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(i, worker))) {
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(payload);
        }
    }

    /// Runs tasks of the open job. The caller is the owner of the job or has joined the gate.
    fn take_tasks(&self, worker: usize) {
        // SAFETY: the job is not written while its owner or anyone inside the gate is here.
        let (task, n_tasks) = unsafe { ((*self.job.get()).task, (*self.job.get()).n_tasks) };
        // SAFETY: the closure lives until its owner has closed the gate and seen it empty.
        let task = unsafe { &*task };
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= n_tasks {
                return;
            }
            self.guarded(task, i, worker);
        }
    }

    /// Ends a job: nobody can join any more, and everyone inside has left.
    fn close(&self) {
        self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while self.gate.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins.is_multiple_of(1024) {
                // Whoever is inside may need this core.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Enters the open job, unless its number is `seen`; returns its number.
    fn join(&self, seen: u64) -> Option<u64> {
        let mut gate = self.gate.load(Ordering::Relaxed);
        loop {
            if gate & OPEN == 0 || gate / JOB == seen {
                return None;
            }
            match self.gate.compare_exchange_weak(
                gate,
                gate + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(gate / JOB),
                Err(now) => gate = now,
            }
        }
    }

    /// The life of one worker.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        let mut idle_since = Instant::now();
        let mut spins = 0u32;
        while !self.stop.load(Ordering::Acquire) {
            if let Some(job) = self.join(seen) {
                seen = job;
                self.take_tasks(worker + 1);
                self.gate.fetch_sub(1, Ordering::Release);
                idle_since = Instant::now();
                continue;
            }
            spins = spins.wrapping_add(1);
            if !spins.is_multiple_of(64) || idle_since.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            self.sleep(worker, seen);
            idle_since = Instant::now();
        }
    }

    /// Parks until the next job. The flag is raised before the gate is looked at once more, and a
    /// job's owner opens the gate before it looks at the flag: one of the two sees the other.
    fn sleep(&self, worker: usize, seen: u64) {
        let asleep = &self.asleep[worker];
        asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while asleep.load(Ordering::Relaxed) && !self.stop.load(Ordering::Acquire) {
            let gate = self.gate.load(Ordering::Acquire);
            if gate & OPEN != 0 && gate / JOB != seen {
                break;
            }
            std::thread::park();
        }
        asleep.store(false, Ordering::Relaxed);
    }
}

/// A slice that several tasks write at once, each its own elements.
#[derive(Clone, Copy, Debug)]
pub struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: elements are reached only through unsafe methods whose callers promise disjoint access.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Borrows a slice for the life of the handle and its copies.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedSlice { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// A slice given by its address.
    ///
    /// # Safety
    /// `start` points to `len` initialised elements that stay valid for `'a`.
    pub unsafe fn from_raw_parts(start: *mut T, len: usize) -> Self {
        SharedSlice { start, len, owner: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` elements from `first` on.
    ///
    /// # Safety
    /// While the result lives no one else reads or writes these elements.
    ///
    /// # Panics
    /// When the range does not lie inside.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn slice(&self, first: usize, len: usize) -> &'a mut [T] {
        assert!(first <= self.len && len <= self.len - first, "range outside the shared slice");
        // SAFETY: the range was checked, and exclusivity is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for n_tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<_> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(n_tasks, |i, worker| {
                    assert!(worker < pool.threads());
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_worker_number_is_never_used_by_two_threads_at_once() {
        let pool = Pool::new(4);
        let busy: Vec<_> = (0..4).map(|_| AtomicBool::new(false)).collect();
        for _ in 0..200 {
            pool.run(64, |_, worker| {
                assert!(!busy[worker].swap(true, Ordering::Acquire));
                std::hint::black_box((0..50).sum::<usize>());
                busy[worker].store(false, Ordering::Release);
            });
        }
    }

    #[test]
    fn writes_of_a_job_are_seen_after_it() {
        let pool = Pool::new(3);
        let mut data = vec![0usize; 300];
        for round in 1..=500 {
            let shared = SharedSlice::new(&mut data);
            pool.run(300, |i, _| {
                // SAFETY: each task has its own element.
                unsafe { shared.slice(i, 1)[0] += i };
            });
            assert!(data.iter().enumerate().all(|(i, &v)| v == i * round));
        }
    }

    #[test]
    fn the_panic_of_a_task_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for threads_seen in 0..3 {
            let ran = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, |i, _| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    assert!(i != 3, "task three of round {threads_seen}");
                });
            }));
            let payload = result.unwrap_err();
            let message = payload.downcast_ref::<String>().unwrap();
            assert!(message.contains("task three"));
            assert_eq!(ran.load(Ordering::Relaxed), 20);
        }
    }

    #[test]
    fn jobs_from_several_threads_take_turns() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.run(10, |i, _| {
                            total.fetch_add(i, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 4 * 100 * 45);
    }
}
