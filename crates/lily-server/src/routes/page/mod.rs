//! `GET /`: a chat page, embedded in the program.
//!
//! The files in `dist` are made by `page/` at the root of the repository and
//! committed, so that no build of lily needs Node. They ask for no key, for they
//! hold nothing; what the page then asks of `/v1` does.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hash as _;
use std::hash::Hasher as _;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::HeaderName;
use axum::http::Method;
use axum::http::StatusCode;
use axum::http::Uri;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::get;

/// What the page may do: run its own script and style, and talk to this server.
/// Nothing is loaded from elsewhere and no text ever becomes code, whatever a
/// model says.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// One file of the page.
struct File {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

const FILES: [File; 5] = [
    File {
        path: "/",
        content_type: "text/html; charset=utf-8",
        text: include_str!("dist/index.html"),
    },
    File {
        path: "/page.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("dist/page.js"),
    },
    File {
        path: "/page.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("dist/page.css"),
    },
    File { path: "/icon.svg", content_type: "image/svg+xml", text: include_str!("dist/icon.svg") },
    File {
        path: "/notices.txt",
        content_type: "text/plain; charset=utf-8",
        text: include_str!("dist/notices.txt"),
    },
];

/// The routes of the page, which need nothing: not even a model that is loaded.
pub(crate) fn routes<S>() -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    FILES.iter().fold(Router::new(), |router, file| {
        let tag = entity_tag(file.text);
        router.route(file.path, get(async move |headers: HeaderMap| answer(file, &tag, &headers)))
    })
}

/// Where a browser is sent that opens the address of the API, which is what the server says when it is
/// ready; `None` for every other request. The place is relative: a proxy may have put a path in front.
pub(crate) fn instead_of_api(method: &Method, uri: &Uri, request: &HeaderMap) -> Option<Response> {
    let place = match uri.path() {
        "/v1" => "./",
        "/v1/" => "../",
        _ => return None,
    };
    let mut accepted =
        request.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let browser = accepted.any(|value| value.contains("text/html"));
    let headers = [(header::LOCATION, place), (header::VARY, "accept")];
    (browser && method == Method::GET)
        .then(|| (StatusCode::TEMPORARY_REDIRECT, headers).into_response())
}

fn answer(file: &File, tag: &str, request: &HeaderMap) -> Response {
    // Kept by browsers, and asked about each time: a new lily is a new page at once.
    let caching = [(header::CACHE_CONTROL, "no-cache"), (header::ETAG, tag)];
    if is_known(tag, request) {
        return (StatusCode::NOT_MODIFIED, HEADERS, caching).into_response();
    }
    (HEADERS, caching, [(header::CONTENT_TYPE, file.content_type)], file.text).into_response()
}

/// Whether the client says that it has what `tag` stands for.
fn is_known(tag: &str, request: &HeaderMap) -> bool {
    let known =
        request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

/// A name for the content; equal within one build, which is all that caches need.
fn entity_tag(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}
