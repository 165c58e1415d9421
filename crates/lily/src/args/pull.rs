//! The commands that fetch and list models.

use clap::Args;
use lily_hub::{HubError, RepoRef, endpoint_from_env};

use super::commands::with_help;
use super::shared::{PlanningArgs, positive};
use crate::hub::DEFAULT_REPO;

/// Fetch a model from a Hugging Face hub into the cache
///
/// Only the files that lily reads are fetched: config.json, tokenizer, chat template, index and
/// safetensors. Whether lily can run the model, whether it fits into memory and onto the disk is
/// checked before the weights are transferred. A pull that was interrupted goes on where it ended;
/// every file is compared with its checksum. The folder of the model is printed to standard output;
/// --model-path takes OWNER/NAME as well.
///
/// The cache is the one of the hub's own tools. Environment: HF_HOME, HF_HUB_CACHE (folders),
/// HF_ENDPOINT (address of the hub), HF_TOKEN, HF_TOKEN_PATH (access token), HF_HUB_OFFLINE (use the
/// cache alone), HF_HUB_DOWNLOAD_TIMEOUT (seconds without a byte), HTTPS_PROXY, SSL_CERT_FILE.
#[derive(Debug, Args)]
#[command(mut_args(|arg| with_help(arg, "device", FITTED_DEVICE)))]
#[command(after_help = "\
Examples:
  lily pull                                      Qwen3.6-35B-A3B in 4 bits, 20.4 GB
  lily pull mlx-community/Qwen3.6-35B-A3B-4bit@main --jobs 8
  HF_TOKEN=hf_... lily pull OWNER/PRIVATE-MODEL
  lily bench --model-path \"$(lily pull)\"

--json prints one object: repo, revision, commit, path, files, bytes, downloaded_bytes.")]
pub(crate) struct PullArgs {
    /// Repository, and branch, tag or commit of it; or the address of its page on the hub
    #[arg(value_name = "REPO[@REV]", default_value = DEFAULT_REPO, value_parser = repo)]
    pub(crate) repo: RepoRef,
    /// Transfers at the same time
    #[arg(long, value_name = "N", default_value_t = 4, allow_negative_numbers = true, value_parser = jobs)]
    pub(crate) jobs: usize,
    /// Fetch a model that does not fit into memory too
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object instead of the path
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) planning: PlanningArgs,
}

/// Help of `--device` where it is asked for its memory alone.
const FITTED_DEVICE: &str = "Machine that the model should fit";

/// `OWNER/NAME[@REV]`, or an address as people copy it from a browser.
fn repo(text: &str) -> Result<RepoRef, HubError> {
    if text.contains("://") {
        return RepoRef::from_address(text, &endpoint_from_env()?);
    }
    text.parse()
}

/// More connections than these help nobody.
fn jobs(text: &str) -> Result<usize, String> {
    match positive(text)? {
        n if n <= 64 => Ok(n),
        n => Err(format!("{n} is more than 64")),
    }
}

/// List the models in the cache
///
/// Names are as --model-path takes them. A size is that of all revisions of a model together.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily models
  lily models --json

--json prints one object: cache, and models with repo, bytes, incomplete_bytes and revisions, each
with revision, commit and path.")]
pub(crate) struct ModelsArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
