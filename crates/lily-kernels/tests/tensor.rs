//! The tensor-unit library goes to Metal and to the emulator, and nowhere else.

use lily_kernels::launch::Module;
use lily_kernels::sources;
use lily_kernels::translate::{self, Problem};

#[test]
fn the_emulator_gets_the_tensor_library() {
    let library = sources::library(Module::Tensor, &[]).unwrap();
    let host = translate::host(&library).unwrap_or_else(|error| panic!("{error}"));
    assert!(host.code.contains("tensor<bfloat, dextents<int32_t, 2>, tensor_inline>"));
}

#[test]
fn cuda_refuses_it_with_file_and_line() {
    let library = sources::library(Module::Tensor, &[]).unwrap();
    let error = translate::cuda(&library).unwrap_err();
    assert_eq!(error.problem, Problem::Tensor);
    assert!(error.to_string().starts_with("kernels/tensor/block.h:"), "{error}");
}

#[test]
fn only_the_tensor_library_needs_headers_that_older_systems_lack() {
    for module in Module::ALL {
        let source = sources::module(module).unwrap();
        let newer = ["<metal_tensor>", "<MetalPerformancePrimitives/"];
        let needs = newer.iter().any(|header| source.contains(header));
        assert_eq!(needs, module == Module::Tensor, "{module:?}");
    }
}
