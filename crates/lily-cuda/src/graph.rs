//! The steps of a plan as one CUDA graph.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::error::{CudaError, describe, driver};
use crate::launch::{PreparedLaunch, ReadyLaunch};
use crate::memory::Address;
use crate::options::{Programmatic, Submission};
use crate::order::Order;

/// A plan with all addresses, ready to be submitted as often as wanted.
#[derive(Debug)]
pub(crate) enum Executable {
    /// As one graph.
    Graph(Graph),
    /// Step by step, in this order; with the step's name and whether it may start early.
    Steps(Vec<(String, ReadyLaunch, bool)>),
}

impl Executable {
    /// Puts the plan's steps together for buffers at these addresses, by buffer index.
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        launches: &[PreparedLaunch],
        order: &Order,
        buffers: &[Address],
        submission: Submission,
        programmatic: Programmatic,
    ) -> Result<Self, CudaError> {
        match submission {
            Submission::Graph | Submission::Chain => {
                let graph = Graph::new(context, launches, order, buffers, programmatic)?;
                Ok(Executable::Graph(graph))
            }
            Submission::Stream | Submission::Checked => {
                let may = submission == Submission::Stream && programmatic != Programmatic::Off;
                let ready = order.steps.iter().enumerate().map(|(at, &step)| {
                    let launch = &launches[step];
                    // The first step never starts early: kernels read control block, cache and state
                    // of the run before ahead of their wait.
                    let early = may && at > 0 && launch.function.waits;
                    (launch.step.clone(), launch.at(buffers), early)
                });
                Ok(Executable::Steps(ready.collect()))
            }
        }
    }

    /// Submits all steps to a stream. With `checked` waits for each, so that an error names its step.
    ///
    /// # Safety
    /// The buffers must stay allocated until the stream has passed the steps, and nothing but the
    /// stream's own work may use them meanwhile.
    pub(crate) unsafe fn submit(
        &self,
        stream: &CudaStream,
        checked: bool,
    ) -> Result<(), (Option<&str>, CudaError)> {
        match self {
            // SAFETY: as the caller promises.
            Executable::Graph(graph) => unsafe { graph.launch(stream) }.map_err(|e| (None, e)),
            Executable::Steps(steps) => {
                for (name, launch, early) in steps {
                    // SAFETY: as the caller promises.
                    let launched = unsafe { launch.launch(stream, *early) };
                    let ended = launched.and_then(|()| match checked {
                        true => stream.synchronize().map_err(driver("cuStreamSynchronize")),
                        false => Ok(()),
                    });
                    ended.map_err(|error| (Some(name.as_str()), error))?;
                }
                Ok(())
            }
        }
    }
}

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct Graph {
    context: Arc<CudaContext>,
    executable: sys::CUgraphExec,
    /// Keeps the kernels' modules loaded.
    _launches: Vec<ReadyLaunch>,
}

// SAFETY: the handle has no thread affinity, and calls with it are made through a model's lock.
unsafe impl Send for Graph {}

/// A graph under construction.
struct Draft(sys::CUgraph);

impl Drop for Draft {
    fn drop(&mut self) {
        // SAFETY: the handle came from `cuGraphCreate` and is destroyed once; executables made from
        // it live on their own.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

impl Graph {
    fn new(
        context: &Arc<CudaContext>,
        launches: &[PreparedLaunch],
        order: &Order,
        buffers: &[Address],
        programmatic: Programmatic,
    ) -> Result<Self, CudaError> {
        context.bind_to_thread().map_err(driver("cuCtxSetCurrent"))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current; the call writes one handle.
        unsafe { sys::cuGraphCreate(&raw mut handle, 0) }
            .result()
            .map_err(driver("cuGraphCreate"))?;
        let draft = Draft(handle);
        let ready: Vec<ReadyLaunch> = launches.iter().map(|launch| launch.at(buffers)).collect();
        // SAFETY: the graph is alive and known to this function only.
        let nodes = ready.iter().map(|launch| unsafe { launch.add_to(draft.0) });
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let edges = Edges::new(launches, order, &nodes, programmatic);
        edges.add_to(&draft)?;
        let executable = instantiate(draft.0)?;
        Ok(Graph { context: Arc::clone(context), executable, _launches: ready })
    }

    /// # Safety
    /// As [`Executable::submit`].
    unsafe fn launch(&self, stream: &CudaStream) -> Result<(), CudaError> {
        // SAFETY: the executable is alive until `drop`; buffers as the caller promises.
        unsafe { result::graph::launch(self.executable, stream.cu_stream()) }
            .map_err(driver("cuGraphLaunch"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: the handle came from an instantiation and is destroyed once; the driver waits for
        // a launch in flight by itself.
        let _ = unsafe { result::graph::exec_destroy(self.executable) };
    }
}

fn instantiate(graph: sys::CUgraph) -> Result<sys::CUgraphExec, CudaError> {
    let mut parameters = sys::CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: 0,
        hUploadStream: std::ptr::null_mut(),
        hErrNode_out: std::ptr::null_mut(),
        result_out: sys::CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS,
    };
    let mut executable = std::ptr::null_mut();
    // SAFETY: the graph is alive; the call writes one handle and the outputs of the parameters.
    let status = unsafe {
        sys::cuGraphInstantiateWithParams(&raw mut executable, graph, &raw mut parameters)
    };
    status.result().map_err(|error| CudaError::Driver {
        call: "cuGraphInstantiate",
        message: format!("{}: {:?}", describe(error), parameters.result_out),
    })?;
    Ok(executable)
}

/// Edges as the driver takes them.
#[derive(Default)]
struct Edges {
    from: Vec<sys::CUgraphNode>,
    to: Vec<sys::CUgraphNode>,
    data: Vec<sys::CUgraphEdgeData>,
}

impl Edges {
    fn new(
        launches: &[PreparedLaunch],
        order: &Order,
        nodes: &[sys::CUgraphNode],
        programmatic: Programmatic,
    ) -> Self {
        let mut edges = Edges::default();
        for (to, waits_for) in order.waits_for.iter().enumerate() {
            let early = early(programmatic, waits_for.len(), launches[to].function.waits);
            for &from in waits_for {
                edges.from.push(nodes[from]);
                edges.to.push(nodes[to]);
                edges.data.push(edge(early));
            }
        }
        edges
    }

    fn add_to(&self, draft: &Draft) -> Result<(), CudaError> {
        if self.from.is_empty() {
            return Ok(());
        }
        // SAFETY: the graph is alive and all nodes belong to it; the three arrays have one entry per
        // edge.
        let status = unsafe {
            sys::cuGraphAddDependencies_v2(
                draft.0,
                self.from.as_ptr(),
                self.to.as_ptr(),
                self.data.as_ptr(),
                self.from.len(),
            )
        };
        status.result().map_err(driver("cuGraphAddDependencies"))
    }
}

/// Whether a step that waits for `n` others may start before they have ended. A kernel without a wait
/// of its own never may, and then its end still comes after theirs, so that edges which follow from
/// others can be left out.
fn early(programmatic: Programmatic, n: usize, waits: bool) -> bool {
    waits
        && match programmatic {
            Programmatic::Off => false,
            Programmatic::Decode | Programmatic::Chains => n == 1,
            Programmatic::All => true,
        }
}

fn edge(early: bool) -> sys::CUgraphEdgeData {
    use sys::CUgraphDependencyType_enum as Type;
    let (port, kind) = match early {
        true => (
            sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
            Type::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC,
        ),
        false => (sys::CU_GRAPH_KERNEL_NODE_PORT_DEFAULT, Type::CU_GRAPH_DEPENDENCY_TYPE_DEFAULT),
    };
    sys::CUgraphEdgeData { from_port: port as u8, to_port: 0, type_: kind as u8, reserved: [0; 5] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kernel_that_waits_by_itself_starts_early() {
        assert!(!early(Programmatic::All, 1, false));
        assert!(early(Programmatic::All, 2, true));
        assert!(early(Programmatic::Chains, 1, true));
        assert!(!early(Programmatic::Chains, 2, true));
        assert!(!early(Programmatic::Off, 1, true));
    }

    #[test]
    fn an_early_edge_leaves_its_kernel_by_the_programmatic_port() {
        assert_eq!(
            edge(false),
            sys::CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] }
        );
        assert_eq!((edge(true).from_port, edge(true).type_), (1, 1));
    }
}
