//! Which names the server answers to, and to pages of which origin.

use std::net::IpAddr;

use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::HeaderName;
use axum::http::Uri;
use axum::http::header::HOST;
use axum::http::header::ORIGIN;
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::Response;

use crate::error::ApiError;
use crate::site::Front;

/// Refuses requests that a web page made behind its user's back: under a foreign
/// name where no key is asked for (DNS rebinding), or from an origin that is
/// neither the server's own nor allowed.
pub(crate) async fn check(
    State(front): State<Front>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if front.options.checks_host() {
        check_names(&request, &front.options.allowed_hosts)?;
    }
    let headers = request.headers();
    if let Some(origin) = headers.get(ORIGIN) {
        let own = origin.to_str().is_ok_and(|origin| is_own(origin, headers));
        if !own && !front.options.cors.admits(origin) {
            let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
            return Err(ApiError::Origin { origin });
        }
    }
    Ok(next.run(request).await)
}

/// Every name that the request calls the server by must be one of its own.
/// Browsers always send one; a request without any comes from elsewhere.
fn check_names(request: &Request, allowed: &[String]) -> Result<(), ApiError> {
    let headers = request.headers().get_all(HOST).iter().map(|value| value.to_str().ok());
    let target = request.uri().authority().map(Authority::as_str).map(Some);
    for name in headers.chain(target) {
        if !name.is_some_and(|name| is_known(name, allowed)) {
            return Err(ApiError::Host { host: name.unwrap_or_default().to_owned() });
        }
    }
    Ok(())
}

/// An address cannot be rebound, `localhost` not by anyone else.
fn is_known(authority: &str, allowed: &[String]) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok()
        || bare.eq_ignore_ascii_case("localhost")
        || allowed.iter().any(|name| name.eq_ignore_ascii_case(bare))
}

/// Whether an origin is the server itself, as the browser knows it.
fn is_own(origin: &str, headers: &HeaderMap) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return false };
    let web = matches!(origin.scheme_str(), Some("http" | "https"));
    let host = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    web && origin.authority().is_some_and(|authority| {
        host(HOST).is_some_and(|host| host.eq_ignore_ascii_case(authority.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_allowed_names_are_known_with_any_port() {
        let allowed = ["mac.local".to_owned()];
        for name in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:8000",
            "[::1]:8000",
            "[::1]",
            "192.168.1.7:8000",
            "Mac.local",
            "mac.local:99",
        ] {
            assert!(is_known(name, &allowed), "{name}");
        }
        for name in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "user@evil.example",
            "mac.locale",
            "a b",
            "localhost/",
        ] {
            assert!(!is_known(name, &allowed), "{name}");
        }
    }
}
