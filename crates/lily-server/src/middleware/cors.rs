//! Cross-origin resource sharing: off unless origins are named.

use std::time::Duration;

use axum::http::HeaderName;
use axum::http::Method;
use axum::http::header::RETRY_AFTER;
use tower_http::cors::AllowHeaders;
use tower_http::cors::AllowOrigin;
use tower_http::cors::CorsLayer;

use crate::middleware::log::REQUEST_ID;
use crate::options::Cors;

/// How long a browser may remember the answer to a preflight.
const PREFLIGHT_AGE: Duration = Duration::from_secs(3600);

/// Answers preflights and marks answers for the named origins. Preflights carry
/// no key, and none is asked of them; the request that follows needs one.
pub(crate) fn layer(cors: &Cors) -> Option<CorsLayer> {
    let origins = match cors {
        Cors::Off => return None,
        Cors::Origins(list) => AllowOrigin::list(list.iter().cloned()),
        Cors::Any => AllowOrigin::any(),
    };
    let layer = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        // Clients of each protocol bring headers of their own; none means anything to a browser.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static(REQUEST_ID), RETRY_AFTER])
        .allow_private_network(true)
        .max_age(PREFLIGHT_AGE);
    Some(layer)
}
