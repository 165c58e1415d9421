//! The seam between the server and what makes tokens.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::PoisonError;

use lily_engine::CancelToken;
use lily_engine::Engine;
use lily_engine::EngineError;
use lily_engine::FinishReason;
use lily_engine::GenerateOptions;
use lily_engine::GeneratedToken;
use lily_engine::Guide;
use lily_engine::Session;

/// Why a generation failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Another generator failed.
    #[error("{0}")]
    Failed(String),
    /// The generator will never answer again; the worker ends with it.
    #[error("the generator is lost: {0}")]
    Lost(String),
}

/// One thing that happens while a generator works.
#[derive(Debug)]
pub enum Step {
    /// This many tokens of the prompt are done.
    Prefill {
        /// Tokens processed.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The next token of the prompt, where its log probabilities are asked for.
    PromptToken(GeneratedToken),
    /// The next token of the answer; stop tokens do not show.
    Token(GeneratedToken),
}

/// Takes the steps of a generation; once it breaks it wants no more of them.
pub type Sink<'a> = dyn FnMut(Step) -> ControlFlow<()> + Send + 'a;

/// What makes tokens: the engine, or a script in tests.
///
/// It lives on the worker thread and runs one request at a time.
pub trait Generator: Send + 'static {
    /// Answers `prompt` from an empty context, handing every step to `sink`
    /// until it breaks, `cancel` is set or the answer ends. Each token is one
    /// that `guide` allows.
    ///
    /// # Errors
    /// Whatever made the answer impossible; the generator must be able to take
    /// the next request afterwards.
    fn generate(
        &mut self,
        prompt: &[u32],
        options: GenerateOptions,
        guide: Option<Box<dyn Guide>>,
        cancel: &CancelToken,
        sink: &mut Sink<'_>,
    ) -> Result<FinishReason, GenerateError>;
}

/// One session of an engine, started afresh for each request.
pub(crate) struct EngineGenerator {
    engine: Engine,
    /// `None` after the device failed, until the next request.
    session: Option<Session>,
}

impl EngineGenerator {
    pub(crate) fn new(engine: Engine) -> Result<EngineGenerator, GenerateError> {
        let session = Some(engine.new_session()?);
        Ok(EngineGenerator { engine, session })
    }
}

impl Generator for EngineGenerator {
    fn generate(
        &mut self,
        prompt: &[u32],
        options: GenerateOptions,
        guide: Option<Box<dyn Guide>>,
        cancel: &CancelToken,
        sink: &mut Sink<'_>,
    ) -> Result<FinishReason, GenerateError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.engine.new_session().map_err(|e| GenerateError::Lost(e.to_string()))?,
        };
        session.reset();
        match answer(&mut session, prompt, options, guide, cancel, sink) {
            // Nothing that runs on this session can be trusted any more.
            Err(error @ (EngineError::Device(_) | EngineError::SessionLost)) => Err(error.into()),
            result => {
                self.session = Some(session);
                Ok(result?)
            }
        }
    }
}

fn answer(
    session: &mut Session,
    prompt: &[u32],
    options: GenerateOptions,
    guide: Option<Box<dyn Guide>>,
    cancel: &CancelToken,
    sink: &mut Sink<'_>,
) -> Result<FinishReason, EngineError> {
    // A receiver that has enough ends this generation, not what else the caller's token covers.
    let cancel = &cancel.child();
    // The prefill hook and the loop below use the sink by turns; the lock is
    // never waited for.
    let sink = Mutex::new(sink);
    let step = |step| {
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        // The token that a prefill ends with comes after its last step, wanted or not.
        if !cancel.is_cancelled() && sink(step).is_break() {
            cancel.cancel();
        }
    };
    let mut generation = session
        .generate(prompt, options, cancel)?
        .on_prefill(|done, total| step(Step::Prefill { done, total }))
        .on_prompt_token(|token| step(Step::PromptToken(token)));
    if let Some(guide) = guide {
        generation = generation.guided_by(guide);
    }
    generation.for_each(|token| -> Result<_, EngineError> {
        step(Step::Token(token));
        let done = cancel.is_cancelled();
        Ok(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if cancel.is_cancelled() {
        return Ok(FinishReason::Cancelled);
    }
    Ok(generation.finish_reason().unwrap_or(FinishReason::Cancelled))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lily_checkpoint::Checkpoint;
    use lily_cpu::CpuDevice;
    use lily_cpu::CpuOptions;
    use lily_device::NoProgress;
    use lily_engine::EngineOptions;

    use super::*;

    /// Prompt tokens of a step, of which the prompt takes four.
    const CHUNK: usize = 16;

    fn demo() -> EngineGenerator {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let checkpoint = Checkpoint::open(&root.join("models/demo/checkpoint")).unwrap();
        let device = CpuDevice::new(CpuOptions::default());
        let options =
            EngineOptions { context: Some(256), prefill_chunk: CHUNK, ..EngineOptions::default() };
        let engine = Engine::load(&checkpoint, &device, options, &NoProgress).unwrap();
        EngineGenerator::new(engine).unwrap()
    }

    /// Runs up to `stop` steps, at the last of which `at_stop` happens, and counts all.
    fn steps(
        generator: &mut EngineGenerator,
        stop: usize,
        at_stop: fn(&CancelToken) -> ControlFlow<()>,
    ) -> usize {
        let (cancel, mut steps) = (CancelToken::new(), 0);
        let defaults = generator.engine.default_options();
        let options =
            GenerateOptions { max_tokens: Some(100), stop_tokens: Vec::new(), ..defaults };
        let result = generator.generate(&[1; 4 * CHUNK], options, None, &cancel, &mut |_| {
            steps += 1;
            if steps == stop { at_stop(&cancel) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(result.unwrap(), FinishReason::Cancelled);
        steps
    }

    #[test]
    fn a_request_nobody_wants_ends_at_once_in_prefill_and_while_it_answers() {
        let mut generator = demo();
        for stop in [1, 3, 4, 5, 9] {
            assert_eq!(steps(&mut generator, stop, |_| ControlFlow::Break(())), stop);
        }
    }

    #[test]
    fn a_cancelled_request_ends_with_the_step_it_is_in() {
        let mut generator = demo();
        for stop in [1, 3, 4, 5, 9] {
            let taken = steps(&mut generator, stop, |cancel| {
                cancel.cancel();
                ControlFlow::Continue(())
            });
            assert_eq!(taken, stop);
        }
    }
}
