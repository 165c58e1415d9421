//! The chat page as the server hands it out. What it does in a browser is
//! tested in `page/e2e`.

mod common;

use common::TestServer;
use common::options;
use lily_server::ApiKeys;
use lily_server::ServerOptions;

const FILES: [(&str, &str); 5] = [
    ("/", "text/html; charset=utf-8"),
    ("/page.js", "text/javascript; charset=utf-8"),
    ("/page.css", "text/css; charset=utf-8"),
    ("/icon.svg", "image/svg+xml"),
    ("/notices.txt", "text/plain; charset=utf-8"),
];

#[tokio::test]
async fn each_file_comes_with_its_type_and_the_headers_that_lock_the_page_in() {
    let server = TestServer::start(Vec::new()).await;
    let client = server.client;
    for (path, content_type) in FILES {
        let response = client.get(path).await;
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(response.header("content-type"), Some(content_type), "{path}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(response.header("x-frame-options"), Some("DENY"), "{path}");
        assert_eq!(response.header("referrer-policy"), Some("no-referrer"), "{path}");
        assert_eq!(response.header("cache-control"), Some("no-cache"), "{path}");
        let policy = response.header("content-security-policy").unwrap();
        let directives: Vec<&str> = policy.split("; ").collect();
        assert_eq!(
            directives,
            [
                "default-src 'none'",
                "script-src 'self'",
                "style-src 'self'",
                "connect-src 'self'",
                "img-src 'self'",
                "base-uri 'none'",
                "form-action 'none'",
                "frame-ancestors 'none'",
                "require-trusted-types-for 'script'",
                "trusted-types dompurify",
            ],
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_page_needs_no_key_where_the_api_does() {
    let options = ServerOptions { api_keys: ApiKeys::new(["secret"]).unwrap(), ..options() };
    let server = TestServer::with_options(options, Vec::new()).await;
    let client = server.client;
    for (path, _) in FILES {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    assert_eq!(client.get("/v1/models").await.status, 401);
}

#[tokio::test]
async fn a_file_that_the_browser_has_is_not_sent_again() {
    let server = TestServer::start(Vec::new()).await;
    let client = server.client;
    let mut tags = Vec::new();
    for (path, _) in FILES {
        let tag = client.get(path).await.header("etag").unwrap().to_owned();
        for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()]
        {
            let headers = [("if-none-match", known.as_str())];
            let response = client.send("GET", path, &headers, b"").await;
            assert_eq!(response.status, 304, "{path} {known}");
            assert_eq!(response.body, "", "{path} {known}");
            assert_eq!(response.header("etag"), Some(tag.as_str()));
        }
        let other = client.send("GET", path, &[("if-none-match", "\"other\"")], b"").await;
        assert_eq!(other.status, 200, "{path}");
        tags.push(tag);
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), FILES.len(), "two files have the same tag");
}

#[tokio::test]
async fn a_browser_that_opens_the_address_of_the_api_is_sent_to_the_page() {
    let server = TestServer::start(Vec::new()).await;
    let accepts = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    for (path, place) in [("/v1", "./"), ("/v1/", "../")] {
        let response = server.client.send("GET", path, &accepts, b"").await;
        assert_eq!(response.status, 307, "{path}");
        assert_eq!(response.header("location"), Some(place), "{path}");
        assert_eq!(response.header("vary"), Some("accept"), "{path}");
        assert_eq!(server.client.send("POST", path, &accepts, b"").await.status, 404, "{path}");
    }
    assert_eq!(server.client.send("GET", "/v1/nothing", &accepts, b"").await.status, 404);
}

#[tokio::test]
async fn nothing_but_get_and_head_is_taken() {
    let server = TestServer::start(Vec::new()).await;
    let client = server.client;
    let response = client.send("POST", "/", &[], b"").await;
    assert_eq!(response.status, 405);
    assert_eq!(response.error("code"), "method_not_supported");
    let head = client.send("HEAD", "/", &[], b"").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn the_page_holds_nothing_that_its_own_policy_would_block() {
    let server = TestServer::start(Vec::new()).await;
    let page = server.client.get("/").await.body;
    assert!(!page.contains("style="), "a style attribute");
    assert!(!page.contains("<style"), "an inline style");
    assert!(!page.contains("://"), "an address of another server");
    for script in page.split("<script").skip(1) {
        assert!(script.starts_with(" type=\"module\" src=\""), "an inline script");
    }
    let attributes = page.split([' ', '\n']).filter(|word| word.starts_with("on"));
    let listeners: Vec<&str> = attributes.filter(|word| word.contains('=')).collect();
    assert_eq!(listeners, [""; 0], "inline listeners");
}
