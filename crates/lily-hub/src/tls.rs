//! Encrypted connections without a C library: rustls with graviola, and the system's own list of
//! certificate authorities (`SSL_CERT_FILE` and `SSL_CERT_DIR` name another one).

use ureq::tls::TlsConfig;

use crate::error::HubError;

/// What connections to `https` addresses use.
///
/// # Errors
/// [`HubError::NoTls`] where the processor lacks what graviola needs, and where the system has no
/// list of authorities.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn config() -> Result<TlsConfig, HubError> {
    use std::sync::Arc;

    use ureq::tls::{Certificate, RootCerts};

    if !graviola::util::is_cpu_supported() {
        let reason = "this processor lacks AES or the instructions beside it".to_owned();
        return Err(HubError::NoTls { reason });
    }
    if let Some(file) = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty())
        && let Err(error) = std::fs::File::open(&file)
    {
        // What SSL_CERT_DIR holds would be taken alone, and the connection be refused for another reason.
        let reason = format!("cannot read {file:?}, which SSL_CERT_FILE names: {error}");
        return Err(HubError::NoTls { reason });
    }
    let found = rustls_native_certs::load_native_certs();
    let certificates: Vec<_> =
        found.certs.iter().map(|c| Certificate::from_der(c.as_ref()).to_owned()).collect();
    if certificates.is_empty() {
        let reason = match found.errors.first() {
            Some(error) => format!("the system's certificate authorities: {error}"),
            None => "the system has no list of certificate authorities".to_owned(),
        };
        return Err(HubError::NoTls { reason });
    }
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&certificates))
        .unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()))
        .build())
}

/// What connections to `https` addresses use.
///
/// # Errors
/// [`HubError::NoTls`]: graviola has no code for this processor.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn config() -> Result<TlsConfig, HubError> {
    Err(HubError::NoTls { reason: "this kind of processor is not supported".to_owned() })
}
