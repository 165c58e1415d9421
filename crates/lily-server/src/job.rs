//! One request on its way through the queue and the worker.
//!
//! What comes of it travels back over a channel of its own. The worker never
//! waits for that channel: what a client leaves unread is kept up to a limit, and
//! beyond it the job is cancelled. Dropping the [`Events`] end cancels the job
//! within one step.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;
use std::time::Instant;

use lily_engine::CancelToken;
use tokio::sync::Semaphore;
use tokio::sync::mpsc;
use tokio::time::Sleep;

use crate::error::ApiError;
use crate::metrics::Cancelled;
use crate::turn::Event;
use crate::turn::Outcome;
use crate::worker::Status;
use crate::worker::Worker;

/// How long a job may wait and take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timeouts {
    pub(crate) queue: Option<Duration>,
    pub(crate) request: Option<Duration>,
}

/// What is known of a job, shared by the queue, the worker and whoever asked.
pub(crate) struct Record {
    /// Tells jobs apart.
    pub(crate) ticket: u64,
    pub(crate) cancel: CancelToken,
    pub(crate) timeouts: Timeouts,
    pub(crate) arrival: Instant,
    /// Before it the request was prepared.
    queued: Instant,
    started: OnceLock<Instant>,
    first_token: OnceLock<Instant>,
    prefilled: AtomicUsize,
    prompt: AtomicUsize,
    tokens: AtomicUsize,
    overrun: AtomicBool,
    outcome: OnceLock<Outcome>,
    cancelled: OnceLock<Cancelled>,
    failed: OnceLock<&'static str>,
}

impl Record {
    pub(crate) fn new(ticket: u64, timeouts: Timeouts, arrival: Instant) -> Record {
        Record {
            ticket,
            cancel: CancelToken::new(),
            timeouts,
            arrival,
            queued: Instant::now(),
            started: OnceLock::new(),
            first_token: OnceLock::new(),
            prefilled: AtomicUsize::new(0),
            prompt: AtomicUsize::new(0),
            tokens: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            outcome: OnceLock::new(),
            cancelled: OnceLock::new(),
            failed: OnceLock::new(),
        }
    }

    /// The worker has taken the job up; gives how long it waited.
    pub(crate) fn start(&self) -> Duration {
        self.started.get_or_init(Instant::now).duration_since(self.queued)
    }

    pub(crate) fn prefill(&self, done: usize, total: usize) {
        self.prompt.store(total, Ordering::Relaxed);
        self.prefilled.store(done, Ordering::Relaxed);
    }

    pub(crate) fn token(&self, now: Instant) {
        self.first_token.get_or_init(|| now);
        self.tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// Cancels a job whose time is over. The one who asked does so too, but may
    /// not look while its client does not read.
    pub(crate) fn check_deadline(&self, now: Instant) {
        let over = |limit| now.duration_since(self.arrival) >= limit;
        if self.timeouts.request.is_some_and(over) {
            let _ = self.cancelled.set(Cancelled::Deadline);
            self.cancel.cancel();
        }
    }

    fn seconds(limit: Option<Duration>) -> u64 {
        limit.unwrap_or_default().as_secs_f64().ceil() as u64
    }
}

/// The worker's end of a job's channel.
pub(crate) struct EventSender {
    sender: mpsc::Sender<Event>,
    record: Arc<Record>,
}

/// Nobody takes the events of a job any more, or not fast enough.
#[derive(Debug)]
pub(crate) struct Unheard;

impl EventSender {
    /// Sends without waiting.
    ///
    /// # Errors
    /// The other end is gone, or more events wait than may; then none is sent from
    /// here on.
    pub(crate) fn send(&self, event: Event) -> Result<(), Unheard> {
        if self.record.overrun.load(Ordering::Relaxed) {
            return Err(Unheard);
        }
        self.sender.try_send(event).map_err(|error| {
            if matches!(error, mpsc::error::TrySendError::Full(_)) {
                self.record.overrun.store(true, Ordering::Relaxed);
            }
            Unheard
        })
    }
}

/// What a job gives back, in order. Dropping it cancels the job.
pub(crate) struct Events {
    receiver: mpsc::Receiver<Event>,
    record: Arc<Record>,
    worker: Worker,
    queue_timeout: Option<Pin<Box<Sleep>>>,
    deadline: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

/// Both ends of a job's channel, in which at most `limit` events wait.
pub(crate) fn channel(record: Arc<Record>, worker: Worker, limit: usize) -> (EventSender, Events) {
    let (sender, receiver) = mpsc::channel(limit.clamp(1, Semaphore::MAX_PERMITS));
    let at = |from: Instant, limit: Option<Duration>| {
        let end = limit.and_then(|limit| from.checked_add(limit));
        end.map(|end| Box::pin(tokio::time::sleep_until(end.into())))
    };
    let queue_timeout = at(record.queued, record.timeouts.queue);
    let deadline = at(record.arrival, record.timeouts.request);
    let sender = EventSender { sender, record: Arc::clone(&record) };
    (sender, Events { receiver, record, worker, queue_timeout, deadline, ended: false })
}

impl Events {
    /// The next event; `None` after [`Event::Finished`] or [`Event::Failed`],
    /// one of which always comes.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = match self.receiver.poll_recv(context) {
            Poll::Pending => match self.poll_timeouts(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(error) => Event::Failed(error),
            },
            Poll::Ready(Some(Event::Failed(ApiError::ShuttingDown))) | Poll::Ready(None) => {
                Event::Failed(self.broken_off())
            }
            Poll::Ready(Some(event)) => event,
        };
        match &event {
            Event::Finished(outcome) => drop(self.record.outcome.set(*outcome)),
            Event::Failed(error) => drop(self.record.failed.set(error.label())),
            _ => return Poll::Ready(Some(event)),
        }
        self.end();
        Poll::Ready(Some(event))
    }

    /// Gives the job up once its time is over.
    fn poll_timeouts(&mut self, context: &mut Context<'_>) -> Poll<ApiError> {
        let timeouts = self.record.timeouts;
        let mut over = |sleep: &mut Option<Pin<Box<Sleep>>>| {
            sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(context).is_ready())
        };
        if over(&mut self.deadline) {
            return Poll::Ready(self.give_up(Cancelled::Deadline));
        }
        if over(&mut self.queue_timeout) {
            self.queue_timeout = None;
            if self.record.started.get().is_none() {
                let _ = self.record.cancelled.set(Cancelled::QueueTimeout);
                self.record.cancel.cancel();
                let seconds = Record::seconds(timeouts.queue);
                let retry_seconds = self.worker.retry_seconds();
                return Poll::Ready(ApiError::QueueTimeout { seconds, retry_seconds });
            }
        }
        Poll::Pending
    }

    /// Why the job ended without telling.
    fn broken_off(&self) -> ApiError {
        if self.record.cancelled.get() == Some(&Cancelled::Deadline) {
            return self.give_up(Cancelled::Deadline);
        }
        if self.record.overrun.load(Ordering::Relaxed) {
            return self.give_up(Cancelled::SlowClient);
        }
        match self.worker.status() {
            Status::Dead => ApiError::WorkerDead,
            _ => self.give_up(Cancelled::Shutdown),
        }
    }

    fn give_up(&self, reason: Cancelled) -> ApiError {
        let _ = self.record.cancelled.set(reason);
        self.record.cancel.cancel();
        match reason {
            Cancelled::Deadline => {
                ApiError::Deadline { seconds: Record::seconds(self.record.timeouts.request) }
            }
            Cancelled::SlowClient => ApiError::SlowClient,
            _ => ApiError::ShuttingDown,
        }
    }

    fn end(&mut self) {
        let ended = std::mem::replace(&mut self.ended, true);
        if !ended
            && self.record.outcome.get().is_none()
            && let Some(reason) = self.record.cancelled.get()
        {
            self.worker.metrics().cancelled(*reason);
        }
    }

    /// Where the end of the turn will be found by whoever does not read the events.
    pub(crate) fn outcome(&self) -> LastOutcome {
        LastOutcome(Arc::clone(&self.record))
    }

    /// What to tell a client that has heard nothing for a while.
    pub(crate) fn progress(&self) -> String {
        let record = &self.record;
        if record.started.get().is_none() {
            return match self.worker.place(record.ticket) {
                Some(place) => format!("queue {place}"),
                None => "keep-alive".to_owned(),
            };
        }
        let (done, total) =
            (record.prefilled.load(Ordering::Relaxed), record.prompt.load(Ordering::Relaxed));
        if record.first_token.get().is_none() && done < total {
            return format!("prefill {done}/{total}");
        }
        "keep-alive".to_owned()
    }

    /// [`Events::poll_next`] for `async` code.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.record.cancelled.set(Cancelled::Disconnect);
        }
        self.record.cancel.cancel();
        self.end();
    }
}

/// How a job went, as far as it has gone; clones share it.
#[derive(Clone)]
pub(crate) struct LastOutcome(Arc<Record>);

impl LastOutcome {
    /// How the turn ended, once it has ended well.
    pub(crate) fn get(&self) -> Option<Outcome> {
        self.0.outcome.get().copied()
    }

    /// Why it did not end well: the reason it was cancelled for, or an error's code.
    pub(crate) fn broken_by(&self) -> Option<&'static str> {
        self.0.cancelled.get().map(|reason| reason.name()).or(self.error())
    }

    /// The code of the error that it ended with.
    pub(crate) fn error(&self) -> Option<&'static str> {
        self.0.failed.get().copied()
    }

    /// Tokens of the answer so far.
    pub(crate) fn tokens(&self) -> usize {
        self.0.tokens.load(Ordering::Relaxed)
    }

    /// How long the job waited for its turn.
    pub(crate) fn waited(&self) -> Option<Duration> {
        self.0.started.get().map(|started| started.duration_since(self.0.queued))
    }

    /// How long the job's first token took from its arrival.
    pub(crate) fn first_token(&self) -> Option<Duration> {
        self.0.first_token.get().map(|first| first.duration_since(self.0.arrival))
    }
}
