//! TLS by rustls, with cryptography that needs no C compiler.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem;
use rustls::pki_types::pem::PemObject;
use tokio_rustls::TlsAcceptor;

use crate::error::ServerError;
use crate::options::TlsFiles;

/// Reads certificate and key, and checks that they belong together.
///
/// # Errors
/// [`ServerError::TlsProcessor`], [`ServerError::TlsFile`], [`ServerError::TlsPem`]
/// or [`ServerError::Tls`].
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServerError> {
    let provider = provider()?;
    let chain = certificates(&files.certificate)?;
    let key = private_key(&files.key)?;
    let refused = |source| ServerError::Tls {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        source,
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(refused)?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).map_err(refused)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerError> {
    let text = read(path)?;
    let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match chain.map_err(|error| error.to_string()) {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(no_pem(path, "a certificate", "it has no CERTIFICATE section".to_owned())),
        Err(reason) => Err(no_pem(path, "a certificate", reason)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ServerError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| {
        let reason = match error {
            pem::Error::NoItemsFound => "it has no PRIVATE KEY section".to_owned(),
            other => other.to_string(),
        };
        no_pem(path, "a private key", reason)
    })
}

fn read(path: &Path) -> Result<Vec<u8>, ServerError> {
    fs::read(path).map_err(|source| ServerError::TlsFile { path: path.to_owned(), source })
}

fn no_pem(path: &Path, expected: &'static str, reason: String) -> ServerError {
    ServerError::TlsPem { path: path.to_owned(), expected, reason }
}

/// The cryptography, where this processor has the instructions it is written in:
/// it would end the process on another.
#[cfg(target_arch = "x86_64")]
fn provider() -> Result<CryptoProvider, ServerError> {
    let able = is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("adx")
        && is_x86_feature_detected!("pclmulqdq");
    able.then(rustls_graviola::default_provider).ok_or(ServerError::TlsProcessor)
}

#[cfg(target_arch = "aarch64")]
fn provider() -> Result<CryptoProvider, ServerError> {
    use std::arch::is_aarch64_feature_detected;
    let able = is_aarch64_feature_detected!("neon")
        && is_aarch64_feature_detected!("aes")
        && is_aarch64_feature_detected!("pmull")
        && is_aarch64_feature_detected!("sha2");
    able.then(rustls_graviola::default_provider).ok_or(ServerError::TlsProcessor)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn provider() -> Result<CryptoProvider, ServerError> {
    Err(ServerError::TlsProcessor)
}
