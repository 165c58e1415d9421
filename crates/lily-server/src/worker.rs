//! The one thread that owns the session, and the bounded queue in front of it.
//!
//! A request becomes a [`Job`]. A waiting job that was cancelled leaves the queue
//! without running.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use tokio::sync::watch;

use crate::error::ApiError;
use crate::error::ServerError;
use crate::generator::GenerateError;
use crate::generator::Generator;
use crate::job;
use crate::job::EventSender;
use crate::job::Record;
use crate::job::Timeouts;
use crate::metrics::Load;
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::turn::Turn;
use crate::watch::Watched;

pub(crate) use crate::job::Events;
pub(crate) use crate::job::LastOutcome;

/// `Retry-After` where no request has ended yet that would tell more.
const RETRY: Duration = Duration::from_secs(5);

/// Longest `Retry-After`: an estimate is no better than that.
const LONGEST_RETRY: Duration = Duration::from_secs(120);

/// What the worker is able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The generator is being made; jobs may already wait.
    Loading,
    /// Jobs run.
    Ready,
    /// The server is going down; no job is taken any more.
    Closing,
    /// The thread is gone; no job will ever run.
    Dead,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Status::Loading => "loading",
            Status::Ready => "ready",
            Status::Closing => "stopping",
            Status::Dead => "dead",
        }
    }
}

/// A turn together with the way back to the one who asked for it.
struct Job {
    turn: Turn,
    events: EventSender,
    record: Arc<Record>,
}

impl Job {
    fn is_wanted(&self) -> bool {
        !self.record.cancel.is_cancelled()
    }
}

struct Queue {
    waiting: VecDeque<Job>,
    running: Option<Running>,
    status: Status,
    /// The ticket of the next job.
    ticket: u64,
    /// How long jobs have taken lately, each half as much as the one after it.
    recent: Option<Duration>,
}

struct Running {
    record: Arc<Record>,
    since: Instant,
}

impl Queue {
    /// Notes how long the job took that has just ended.
    fn finish_running(&mut self) {
        if let Some(running) = self.running.take() {
            let took = running.since.elapsed();
            self.recent = Some(self.recent.map_or(took, |recent| (recent + took) / 2));
        }
    }

    /// When the running job may be done, and a place free.
    fn next_place(&self) -> Duration {
        let Some(recent) = self.recent else { return RETRY };
        let elapsed = self.running.as_ref().map_or(Duration::ZERO, |job| job.since.elapsed());
        // A job that takes longer than the others may take longer yet.
        recent.saturating_sub(elapsed).max(recent / 4).min(LONGEST_RETRY)
    }

    /// As [`Queue::next_place`], in the whole seconds of a header.
    fn retry_seconds(&self) -> u64 {
        (self.next_place().as_secs_f64().ceil() as u64).max(1)
    }
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Tells that the status is not [`Status::Loading`] any more.
    loaded: Condvar,
    limit: usize,
    timeouts: Timeouts,
    stream_events: usize,
    metrics: Arc<Metrics>,
}

impl Shared {
    // Every critical section below leaves the queue whole, so a poisoned lock
    // still guards a usable one.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the current job and waits for the next one; `None` when closing.
    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        queue.finish_running();
        loop {
            if queue.status == Status::Closing {
                return None;
            }
            match queue.waiting.pop_front() {
                Some(job) if !job.is_wanted() => {}
                Some(job) => {
                    let record = Arc::clone(&job.record);
                    queue.running = Some(Running { record, since: Instant::now() });
                    return Some(job);
                }
                None => queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn stop(&self, status: Status) {
        let mut queue = self.lock();
        queue.status = status;
        // Their channels close with them, which every waiting request sees.
        queue.waiting.clear();
        if let Some(running) = queue.running.take() {
            running.record.cancel.cancel();
        }
        drop(queue);
        self.wake.notify_all();
        self.loaded.notify_all();
    }
}

/// Handle to the worker thread.
#[derive(Clone)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    ended: watch::Receiver<()>,
}

impl Worker {
    /// Starts the thread. `start` runs on it, for a generator may take a while
    /// to make.
    pub(crate) fn spawn<G, F>(
        start: F,
        options: &ServerOptions,
        metrics: Arc<Metrics>,
    ) -> Result<Worker, ServerError>
    where
        G: Generator,
        F: FnOnce() -> Result<G, GenerateError> + Send + 'static,
    {
        let queue = Queue {
            waiting: VecDeque::new(),
            running: None,
            status: Status::Loading,
            ticket: 0,
            recent: None,
        };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            loaded: Condvar::new(),
            limit: options.queue_limit,
            timeouts: Timeouts { queue: options.queue_timeout, request: options.request_timeout },
            stream_events: options.limits.stream_events,
            metrics,
        });
        let (end, ended) = watch::channel(());
        let worker = Worker { shared: Arc::clone(&shared), ended };
        std::thread::Builder::new()
            .name("lily-worker".to_owned())
            .spawn(move || {
                let _end = end;
                run(&shared, start);
            })
            .map_err(|source| ServerError::Io { action: "start the worker thread", source })?;
        Ok(worker)
    }

    /// Waits for the thread to have its generator, or to have failed to make it.
    pub(crate) fn wait_until_loaded(&self) {
        let waited = self
            .shared
            .loaded
            .wait_while(self.shared.lock(), |queue| queue.status == Status::Loading);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn status(&self) -> Status {
        self.shared.lock().status
    }

    /// What the metrics tell of the queue.
    pub(crate) fn load(&self) -> Load {
        let queue = self.shared.lock();
        let waiting = queue.waiting.iter().filter(|job| job.is_wanted()).count();
        Load { status: queue.status, waiting, running: usize::from(queue.running.is_some()) }
    }

    /// The place of a waiting job; the next to run has the first.
    pub(crate) fn place(&self, ticket: u64) -> Option<usize> {
        let queue = self.shared.lock();
        let mut wanted = queue.waiting.iter().filter(|job| job.is_wanted());
        wanted.position(|job| job.record.ticket == ticket).map(|before| before + 1)
    }

    /// In how many seconds there may be a place in the queue.
    pub(crate) fn retry_seconds(&self) -> u64 {
        self.shared.lock().retry_seconds()
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Puts a turn into the queue, whose request arrived at `arrival`.
    pub(crate) fn submit(&self, turn: Turn, arrival: Instant) -> Result<Events, ApiError> {
        let mut queue = self.shared.lock();
        match queue.status {
            Status::Loading | Status::Ready => {}
            Status::Closing => return Err(ApiError::ShuttingDown),
            Status::Dead => return Err(ApiError::WorkerDead),
        }
        queue.waiting.retain(Job::is_wanted);
        let waiting = queue.waiting.len();
        if waiting + usize::from(queue.running.is_some()) > self.shared.limit {
            return Err(ApiError::QueueFull { waiting, retry_seconds: queue.retry_seconds() });
        }
        queue.ticket += 1;
        let record = Arc::new(Record::new(queue.ticket, self.shared.timeouts, arrival));
        let (sender, events) =
            job::channel(Arc::clone(&record), self.clone(), self.shared.stream_events);
        queue.waiting.push_back(Job { turn, events: sender, record });
        drop(queue);
        self.shared.wake.notify_one();
        Ok(events)
    }

    /// Takes no more jobs, cancels the running one and fails the waiting ones.
    pub(crate) fn close(&self) {
        self.shared.stop(Status::Closing);
    }

    /// Waits until the thread has ended.
    pub(crate) async fn ended(&mut self) {
        // The sender never sends: this returns once the thread has dropped it.
        let _ = self.ended.changed().await;
    }
}

fn run<G, F>(shared: &Shared, start: F)
where
    G: Generator,
    F: FnOnce() -> Result<G, GenerateError>,
{
    // The generator is abandoned after a panic, so nothing half changed is used again.
    let served = catch_unwind(AssertUnwindSafe(|| {
        let mut generator = match start() {
            Ok(generator) => Watched::new(generator, Arc::clone(&shared.metrics)),
            Err(error) => {
                tracing::error!(%error, "the generator could not be made");
                return false;
            }
        };
        let mut queue = shared.lock();
        if queue.status == Status::Loading {
            queue.status = Status::Ready;
        }
        drop(queue);
        shared.loaded.notify_all();
        while let Some(job) = shared.next() {
            generator.watch(&job.record);
            let ran = catch_unwind(AssertUnwindSafe(|| {
                job.turn.run(&mut generator, &job.record.cancel, &job.events)
            }));
            if !matches!(ran, Ok(Ok(()))) {
                // Before the job and its channel go, so that whoever sees the
                // channel close finds the reason.
                shared.stop(Status::Dead);
                return false;
            }
        }
        true
    }));
    if !matches!(served, Ok(true)) {
        tracing::error!("the generation worker has died");
        shared.stop(Status::Dead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(recent: Option<u64>, elapsed: u64) -> Queue {
        let record = Arc::new(Record::new(1, Timeouts::default(), Instant::now()));
        let since = Instant::now().checked_sub(Duration::from_secs(elapsed)).unwrap();
        Queue {
            waiting: VecDeque::new(),
            running: Some(Running { record, since }),
            status: Status::Ready,
            ticket: 1,
            recent: recent.map(Duration::from_secs),
        }
    }

    #[test]
    fn the_time_to_come_back_follows_from_how_long_requests_have_taken() {
        assert_eq!(queue(None, 0).retry_seconds(), 5, "nothing is known yet");
        assert_eq!(queue(Some(40), 0).retry_seconds(), 40);
        assert_eq!(queue(Some(40), 25).retry_seconds(), 15);
        assert_eq!(queue(Some(40), 60).retry_seconds(), 10, "it may take longer yet");
        assert_eq!(queue(Some(0), 0).retry_seconds(), 1);
        assert_eq!(queue(Some(10_000), 0).retry_seconds(), 120);
    }

    #[test]
    fn the_latest_requests_count_most() {
        let mut queue = queue(Some(100), 0);
        queue.finish_running();
        assert_eq!(queue.recent.unwrap().as_secs(), 50);
    }
}
