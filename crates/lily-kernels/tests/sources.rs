//! The sources as they are put together.

use lily_kernels::launch::{Kernel, Module};
use lily_kernels::sources;

#[test]
fn every_module_has_a_source_without_project_includes() {
    for module in Module::ALL {
        let text = sources::module(module).unwrap();
        assert!(text.contains("#include <metal_stdlib>"), "{module:?}");
        assert!(!text.contains("#include \""), "{module:?} still includes a project file");
        assert!(!text.contains("#pragma once"), "{module:?}");
    }
}

#[test]
fn an_included_file_and_what_follows_it_keep_their_names_and_lines() {
    let text = sources::module(Module::Norm).unwrap();
    let prelude =
        text.find("#line 1 \"kernels/common/prelude.h\"").expect("the prelude's first line");
    let line = sources::file("norm/norm.metal").unwrap();
    let include = line.lines().position(|l| l.contains("common/prelude.h")).unwrap();
    let back = format!("#line {} \"kernels/norm/norm.metal\"", include + 2);
    assert!(text[prelude..].contains(&back), "{back} is missing");
}

#[test]
fn a_library_ends_with_the_instantiations_that_were_asked_for() {
    let kernel = Kernel {
        module: Module::Norm,
        template: "rms_norm",
        args: vec!["float".into(), "128".into()],
    };
    let text = sources::library(Module::Norm, &[&kernel]).unwrap();
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with("template [[host_name(\"rms_norm_float_128\")]] [[kernel]]"),
        "{last}"
    );
}

#[test]
fn a_file_that_does_not_exist_is_named() {
    let error = sources::flatten("norm/no_such.h").unwrap_err();
    assert_eq!(error.to_string(), "there is no kernel source \"norm/no_such.h\"");
}
