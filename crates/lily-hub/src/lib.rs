//! Fetches models from a Hugging Face hub into the cache folder that other tools share.
#![forbid(unsafe_code)]
