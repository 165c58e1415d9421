//! Prints a source of `kernels/` as a back end would compile it.
//!
//! `cargo run -p lily-kernels --example translate -- cuda norm/norm.metal 'rms_norm<float, 128>' ...`
#![allow(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::fmt::Write as _;

use lily_kernels::{sources, translate};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [target, name, kernels @ ..] = args.as_slice() else {
        return Err("usage: translate cuda|host|metal FILE 'template<args>'...".into());
    };
    let mut text = sources::flatten(name)?;
    text.push_str("#line 1 \"instantiations\"\n");
    for kernel in kernels {
        let host_name: String =
            kernel.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        writeln!(
            text,
            "template [[host_name(\"{host_name}\")]] [[kernel]] decltype({kernel}) {kernel};"
        )?;
    }
    match target.as_str() {
        "metal" => println!("{text}"),
        "cuda" => {
            println!("{}\n{}", sources::flatten("runtime/cuda.cuh")?, translate::cuda(&text)?.code);
        }
        "host" => {
            println!("{}\n{}", sources::flatten("runtime/host.hpp")?, translate::host(&text)?.code);
        }
        other => return Err(format!("there is no target {other:?}").into()),
    }
    Ok(())
}
