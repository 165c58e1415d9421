//! What answers requests before there is a model, and from then on.

use std::any::Any;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::Method;
use axum::http::Uri;
use axum::middleware::from_fn;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::middleware::auth;
use crate::middleware::cors;
use crate::middleware::host;
use crate::middleware::log;
use crate::middleware::protocol;
use crate::options::ServerOptions;
use crate::routes::health;
use crate::routes::metrics;
use crate::routes::page;

/// How far a model has been loaded; clones share it.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress(Arc<LoadedBytes>);

#[derive(Debug, Default)]
struct LoadedBytes {
    done: AtomicU64,
    total: AtomicU64,
}

impl LoadProgress {
    /// `done` of `total` bytes are loaded.
    pub fn advance(&self, done: u64, total: u64) {
        self.0.total.store(total, Ordering::Relaxed);
        self.0.done.store(done, Ordering::Relaxed);
    }

    /// The loaded part, between 0 and 1; `None` before the first byte.
    pub(crate) fn fraction(&self) -> Option<f64> {
        let total = self.0.total.load(Ordering::Relaxed);
        let done = self.0.done.load(Ordering::Relaxed).min(total);
        (total > 0).then(|| done as f64 / total as f64)
    }
}

/// What is known before there is a model, and what stands in front of all
/// routes; cheap to clone.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) options: Arc<ServerOptions>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) loading: LoadProgress,
}

impl Front {
    pub(crate) fn new(options: ServerOptions) -> Front {
        let metrics = Arc::new(Metrics::new(&options));
        Front { options: Arc::new(options), metrics, loading: LoadProgress::default() }
    }

    /// Demands a key where there are keys.
    pub(crate) fn protect<S>(&self, routes: Router<S>) -> Router<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        routes.route_layer(from_fn_with_state(self.clone(), auth::require_key))
    }

    /// Puts what concerns every request around the routes: the log outermost, so
    /// that it sees what the others refuse.
    pub(crate) fn guard(&self, routes: Router) -> Router {
        let routes = routes.layer(CatchPanicLayer::custom(panicked));
        let routes = match cors::layer(&self.options.cors) {
            Some(cors) => routes.layer(cors),
            None => routes,
        };
        routes
            .layer(from_fn_with_state(self.clone(), host::check))
            .layer(from_fn(protocol::shape_errors))
            .layer(from_fn_with_state(self.clone(), log::each_request))
    }

    /// Health and metrics; everything else is told to come back.
    fn while_loading(&self) -> Router {
        let metrics = self.protect(Router::new().route("/metrics", get(metrics::loading)));
        let routes = Router::new()
            .route("/health", get(health::loading))
            .merge(metrics)
            .merge(page::routes())
            .fallback(come_back)
            .with_state(self.clone());
        self.guard(routes)
    }
}

/// While there is no model. The page is there already, and waits by itself.
async fn come_back(method: Method, uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    page::instead_of_api(&method, &uri, &headers).ok_or(ApiError::Loading)
}

/// The answer of a route that panicked: its client is told, and no other notices.
fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::Internal("the request made the server panic".to_owned()).into_response()
}

/// The routes of now; clones share them.
#[derive(Clone)]
pub(crate) struct Site {
    loading: Router,
    ready: Arc<OnceLock<Router>>,
}

impl Site {
    /// A site that has no model yet.
    pub(crate) fn loading(front: &Front) -> Site {
        Site { loading: front.while_loading(), ready: Arc::default() }
    }

    /// From now on these are the routes; only the first call counts.
    pub(crate) fn open(&self, routes: Router) {
        let _ = self.ready.set(routes);
    }

    pub(crate) fn router(&self) -> Router {
        self.ready.get().unwrap_or(&self.loading).clone()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_browser_finds_the_page_while_the_model_loads_and_clients_are_told_to_come_back() {
        let routes = Front::new(ServerOptions::default()).while_loading();
        for (accept, status) in [("text/html,*/*;q=0.8", 307), ("*/*", 503)] {
            let request = Request::get("/v1").header("accept", accept).header("host", "localhost");
            let request = request.body(Body::empty()).unwrap();
            let response = routes.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), status, "{accept}");
        }
    }

    #[tokio::test]
    async fn a_route_that_panics_is_a_500_in_json() {
        let panics = || async {
            if true {
                panic!("in a test")
            }
        };
        let routes = Router::new().route("/panics", get(panics));
        let routes = Front::new(ServerOptions::default()).guard(routes);
        let request = Request::get("/panics").body(Body::empty()).unwrap();
        let response = routes.oneshot(request).await.unwrap();
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key(log::REQUEST_ID));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["type"], "server_error");
    }
}
