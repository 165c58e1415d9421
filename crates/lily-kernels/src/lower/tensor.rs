//! Products on the tensor units of newer Apple GPUs.

use crate::launch::{Launch, Module};

/// Kernels that have a twin in `kernels/tensor`, the twin, and which template argument is the type of
/// their activations. A twin takes the same arguments, operands, grid and threads.
const TWINS: [(&str, &str, usize); 4] = [
    ("matmul", "tensor_matmul", 1),
    ("gated_matmul", "tensor_gated_matmul", 2),
    ("expert_matmul", "tensor_expert_matmul", 1),
    ("expert_gated_matmul", "tensor_expert_gated_matmul", 2),
];

/// The same launch with the twin of its kernel, where there is one that takes its operands: tensor
/// units multiply `f32` activations no faster than other units, and less exactly.
pub(super) fn on_tensor_units(mut launch: Launch) -> Launch {
    let kernel = &mut launch.kernel;
    let twin = TWINS.iter().find(|(template, ..)| *template == kernel.template);
    if let Some((_, twin, activations)) = twin
        && kernel.args.get(*activations).is_some_and(|ty| ty == "bfloat")
    {
        kernel.module = Module::Tensor;
        kernel.template = twin;
    }
    launch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Extent, Kernel};

    fn launch(module: Module, template: &'static str, args: &[&str]) -> Launch {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        let kernel = Kernel { module, template, args };
        Launch { kernel, grid: [Extent::Fixed(1); 3], threads: 128, bindings: Vec::new() }
    }

    #[test]
    fn products_of_bfloat_have_twins_with_the_same_arguments() {
        for (module, template, twin, args) in [
            (Module::Linear, "matmul", "tensor_matmul", vec!["F", "bfloat", "8"]),
            (Module::Linear, "gated_matmul", "tensor_gated_matmul", vec!["F", "F", "bfloat"]),
            (Module::Moe, "expert_matmul", "tensor_expert_matmul", vec!["F", "bfloat", "8"]),
            (
                Module::Moe,
                "expert_gated_matmul",
                "tensor_expert_gated_matmul",
                vec!["F", "F", "bfloat", "float"],
            ),
        ] {
            let changed = on_tensor_units(launch(module, template, &args));
            assert_eq!(changed, launch(Module::Tensor, twin, &args));
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for launch in [
            launch(Module::Linear, "matmul", &["F", "float", "bfloat"]),
            launch(Module::Moe, "expert_gated_matmul", &["F", "bfloat", "float", "bfloat"]),
            launch(Module::Linear, "matvec", &["F", "bfloat"]),
            launch(Module::Linear, "matmul", &[]),
        ] {
            assert_eq!(on_tensor_units(launch.clone()), launch);
        }
    }
}
