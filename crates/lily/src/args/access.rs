//! Flags of `serve` that say who may use the server, and how much of it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::shared::{positive, unless_empty};

/// Who is let in, and from where.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// Demand this key (`Authorization: Bearer KEY` or `x-api-key: KEY`); may be repeated for several,
    /// and the variable LILY_API_KEY holds one more. Other users of this machine can read a program's
    /// flags: the variable or a file keeps it from them
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// Demand one of the keys in this file: one on each line, `#` begins a comment
    #[arg(long, value_name = "FILE", env = unless_empty("LILY_API_KEY_FILE"))]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Listen for other machines (--host) although no key is demanded
    #[arg(long)]
    pub(crate) allow_no_key: bool,
    /// Without a key, answer to this host name too, besides localhost and plain addresses; may be
    /// repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Let web pages of this origin use the server, such as `https://chat.example.org`; `*` lets all; may
    /// be repeated
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    /// Speak TLS with the certificates in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file without a password
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// How much is taken on, and how long it may take.
#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// Requests that may wait behind the running one; further ones are told to come back (429)
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true)]
    pub(crate) queue: usize,
    /// Give a request up that has waited this long for its turn (503) [default: never]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = positive)]
    pub(crate) queue_timeout: Option<usize>,
    /// Cancel a request that takes longer than this in all (504) [default: never]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = positive)]
    pub(crate) request_timeout: Option<usize>,
    /// Open connections; further ones wait until one ends
    #[arg(
        long,
        value_name = "N",
        default_value_t = 200,
        allow_negative_numbers = true,
        value_parser = positive
    )]
    pub(crate) max_connections: usize,
}

/// What is written to standard error.
#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Write a line for each request as well
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Form of the lines
    #[arg(long, value_name = "FORMAT", default_value = "text", ignore_case = true)]
    pub(crate) log_format: LogFormat,
    /// Write what users send as well, which the log does not hold otherwise; implies --verbose
    #[arg(long)]
    pub(crate) log_prompts: bool,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object on each line
    Json,
}
