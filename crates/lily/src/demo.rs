//! The demonstration model inside the binary: lily answers on a fresh machine without a download.

/// Name of the embedded model in requests and reports.
pub(crate) const NAME: &str = "lily-demo";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../models/demo/checkpoint/", $name)).as_slice())),*]
    };
}

/// The checkpoint's files by name; `mtp.safetensors` is not used yet and stays out.
pub(crate) fn files() -> Vec<(&'static str, &'static [u8])> {
    files![
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ]
    .to_vec()
}
