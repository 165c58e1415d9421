//! The one thread that owns the session, and the bounded queue in front of it.
//!
//! A request becomes a [`Job`]; what comes of it travels back over the job's own
//! channel. That channel is not bounded: a client that reads slowly must not
//! hold up the others, and a generation is bounded by the context anyway.
//! Dropping the [`Events`] end cancels the job within one step; a waiting job
//! that was cancelled leaves the queue without running.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::task::Context;
use std::task::Poll;

use lily_engine::CancelToken;
use tokio::sync::mpsc;
use tokio::sync::watch;

use crate::error::ApiError;
use crate::error::ServerError;
use crate::generator::GenerateError;
use crate::generator::Generator;
use crate::turn::Event;
use crate::turn::Outcome;
use crate::turn::Turn;

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

/// A turn together with the way back to the one who asked for it.
struct Job {
    turn: Turn,
    events: mpsc::UnboundedSender<Event>,
    cancel: CancelToken,
}

struct Queue {
    waiting: VecDeque<Job>,
    running: Option<CancelToken>,
    status: Status,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    limit: usize,
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
        queue.running = None;
        loop {
            if queue.status == Status::Closing {
                return None;
            }
            match queue.waiting.pop_front() {
                Some(job) if job.cancel.is_cancelled() => {}
                Some(job) => {
                    queue.running = Some(job.cancel.clone());
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
            running.cancel();
        }
        drop(queue);
        self.wake.notify_all();
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
    pub(crate) fn spawn<G, F>(start: F, limit: usize) -> Result<Worker, ServerError>
    where
        G: Generator,
        F: FnOnce() -> Result<G, GenerateError> + Send + 'static,
    {
        let queue = Queue { waiting: VecDeque::new(), running: None, status: Status::Loading };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), wake: Condvar::new(), limit });
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

    pub(crate) fn status(&self) -> Status {
        self.shared.lock().status
    }

    /// Puts a turn into the queue.
    pub(crate) fn submit(&self, turn: Turn) -> Result<Events, ApiError> {
        let mut queue = self.shared.lock();
        match queue.status {
            Status::Loading | Status::Ready => {}
            Status::Closing => return Err(ApiError::ShuttingDown),
            Status::Dead => return Err(ApiError::WorkerDead),
        }
        queue.waiting.retain(|job| !job.cancel.is_cancelled());
        let waiting = queue.waiting.len();
        if waiting + usize::from(queue.running.is_some()) > self.shared.limit {
            return Err(ApiError::QueueFull { waiting });
        }
        let (events, receiver) = mpsc::unbounded_channel();
        let cancel = CancelToken::new();
        queue.waiting.push_back(Job { turn, events, cancel: cancel.clone() });
        drop(queue);
        self.shared.wake.notify_one();
        let (worker, outcome) = (self.clone(), LastOutcome::default());
        Ok(Events { receiver, cancel, worker, ended: false, outcome })
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
            Ok(generator) => generator,
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
        while let Some(job) = shared.next() {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                job.turn.run(&mut generator, &job.cancel, &job.events)
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

/// What a job gives back, in order. Dropping it cancels the job.
pub(crate) struct Events {
    receiver: mpsc::UnboundedReceiver<Event>,
    cancel: CancelToken,
    worker: Worker,
    ended: bool,
    outcome: LastOutcome,
}

/// How a turn ended, once it has ended well; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastOutcome(Arc<OnceLock<Outcome>>);

impl LastOutcome {
    pub(crate) fn get(&self) -> Option<Outcome> {
        self.0.get().copied()
    }
}

impl Events {
    /// The next event; `None` after [`Event::Finished`] or [`Event::Failed`],
    /// one of which always comes.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = match self.receiver.poll_recv(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(event)) => event,
            Poll::Ready(None) if self.worker.status() == Status::Closing => {
                Event::Failed(ApiError::ShuttingDown)
            }
            Poll::Ready(None) => Event::Failed(ApiError::WorkerDead),
        };
        self.ended = matches!(event, Event::Finished(_) | Event::Failed(_));
        if let Event::Finished(outcome) = event {
            // There is one end to a turn.
            let _ = self.outcome.0.set(outcome);
        }
        Poll::Ready(Some(event))
    }

    /// Where the end of the turn will be found by whoever does not read the events.
    pub(crate) fn outcome(&self) -> LastOutcome {
        self.outcome.clone()
    }

    /// [`Events::poll_next`] for `async` code.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
