//! A generator whose steps are timed.

use std::sync::Arc;
use std::time::Instant;

use lily_engine::CancelToken;
use lily_engine::FinishReason;
use lily_engine::GenerateOptions;
use lily_engine::Guide;

use crate::generator::GenerateError;
use crate::generator::Generator;
use crate::generator::Sink;
use crate::generator::Step;
use crate::job::Record;
use crate::metrics::Metrics;

/// Passes everything on, and notes for the metrics, the log and the deadline when
/// what came.
pub(crate) struct Watched<G> {
    generator: G,
    metrics: Arc<Metrics>,
    record: Arc<Record>,
}

impl<G> Watched<G> {
    pub(crate) fn new(generator: G, metrics: Arc<Metrics>) -> Watched<G> {
        // Stands for no job; the first one takes its place.
        let record = Arc::new(Record::new(0, Default::default(), Instant::now()));
        Watched { generator, metrics, record }
    }

    /// Whose steps those to come are.
    pub(crate) fn watch(&mut self, record: &Arc<Record>) {
        self.record = Arc::clone(record);
    }
}

impl<G: Generator> Generator for Watched<G> {
    fn generate(
        &mut self,
        prompt: &[u32],
        options: GenerateOptions,
        guide: Option<Box<dyn Guide>>,
        cancel: &CancelToken,
        sink: &mut Sink<'_>,
    ) -> Result<FinishReason, GenerateError> {
        let Watched { generator, metrics, record } = self;
        metrics.started(record.start(), prompt.len());
        record.prefill(0, prompt.len());
        let mut last = None;
        let mut step = |step: Step| {
            let now = Instant::now();
            match step {
                Step::Prefill { done, total } => record.prefill(done, total),
                Step::PromptToken(_) => {}
                Step::Token(_) => {
                    let since = last.replace(now);
                    let took = now.duration_since(since.unwrap_or(record.arrival));
                    metrics.token(took, since.is_none());
                    record.token(now);
                }
            }
            record.check_deadline(now);
            sink(step)
        };
        generator.generate(prompt, options, guide, cancel, &mut step)
    }
}
