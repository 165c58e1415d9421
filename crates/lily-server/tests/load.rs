//! Many clients at once, some of which leave, against the demo model over real sockets.
//!
//! Every answer that is read to its end must equal the one that the same request
//! got alone. `LILY_LOAD_SECONDS` and `LILY_LOAD_CLIENTS` make it longer and
//! wider; `--nocapture` shows the figures.

#![allow(clippy::print_stdout, reason = "the figures are for whoever runs it with --nocapture")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use common::client;
use common::client::Client;
use common::client::Response;
use common::demo;
use common::options;
use serde_json::Value;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;

/// One in so many requests is left before its answer is complete.
const LEAVING: usize = 4;

/// Growth in bytes that is no leak: what threads and the allocator keep for the next request.
const SLACK: f64 = 16e6;

/// The text of an answer and why it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    reasoning: String,
    content: String,
    finish: String,
}

impl Answer {
    fn of(response: &Response) -> Answer {
        let field = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if response.header("content-type") != Some("text/event-stream") {
            let choice = &response.json()["choices"][0];
            let message = &choice["message"];
            return Answer {
                reasoning: field(&message["reasoning_content"]),
                content: field(&message["content"]),
                finish: field(&choice["finish_reason"]),
            };
        }
        assert!(
            response.body.ends_with("data: [DONE]\n\n"),
            "a stream broke off: {}",
            response.body
        );
        let events = response.events();
        let joined = |name: &str| {
            events.iter().map(|event| field(&event["choices"][0]["delta"][name])).collect()
        };
        let ends = events.iter().map(|event| field(&event["choices"][0]["finish_reason"]));
        Answer {
            reasoning: joined("reasoning_content"),
            content: joined("content"),
            finish: ends.collect(),
        }
    }
}

/// Requests of all kinds; each has one right answer.
fn requests() -> Vec<Value> {
    let questions =
        ["What is the capital of Japan?", "What is 127 + 58?", "Hello!", "What is 2 + 3?"];
    let mut requests = Vec::new();
    for (number, question) in questions.into_iter().enumerate() {
        for thinking in [false, true] {
            for stream in [false, true] {
                for sampling in
                    [json!({"temperature": 0}), json!({"temperature": 1.2, "seed": number})]
                {
                    let mut body = json!({
                        "messages": [{"role": "user", "content": question}],
                        "enable_thinking": thinking,
                        "stream": stream,
                        "max_tokens": 48,
                    });
                    body.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
                    requests.push(body);
                }
            }
        }
    }
    requests
}

/// Times in buckets a hundredth wide, so that many of them take no more memory than few.
#[derive(Default)]
struct Times(BTreeMap<i32, u64>);

impl Times {
    fn add(&mut self, time: Duration) {
        let micros = time.as_secs_f64().max(1e-6) * 1e6;
        *self.0.entry((micros.ln() / 1.01_f64.ln()).ceil() as i32).or_default() += 1;
    }

    /// In milliseconds.
    fn quantile(&self, part: f64) -> f64 {
        let total: u64 = self.0.values().sum();
        let mut left = (total as f64 * part).ceil() as u64;
        for (bucket, count) in &self.0 {
            left = left.saturating_sub(*count);
            if left == 0 {
                return 1.01_f64.powi(*bucket) / 1e3;
            }
        }
        0.0
    }
}

#[derive(Default)]
struct Tally {
    completed: usize,
    left: usize,
    turned_away: usize,
    first_token: Times,
    inter_token: Times,
}

/// Reads an answer as it comes and notes when its tokens do.
async fn read_timed(client: &Client, body: &Value, tally: &Mutex<Tally>) -> Response {
    let start = Instant::now();
    let mut connection = client.begin_chat(body).await;
    let (mut bytes, mut seen, mut last) = (Vec::new(), 0, start);
    while connection.read_buf(&mut bytes).await.unwrap() > 0 {
        let now = Instant::now();
        // The first event of a stream holds the role alone; the last one is no token.
        let tokens = String::from_utf8_lossy(&bytes).matches("\"finish_reason\":null").count();
        let mut tally = tally.lock().unwrap();
        for number in seen.max(1)..tokens {
            let times = if number == 1 { &mut tally.first_token } else { &mut tally.inter_token };
            times.add(now - last);
            last = now;
        }
        seen = tokens.max(seen);
    }
    client::parse(bytes)
}

/// Begins a request and leaves, at once or in the middle of the answer.
async fn leave(client: &Client, body: &Value) {
    let mut connection = client.begin_chat(body).await;
    let most = fastrand::usize(..4000);
    let mut bytes = Vec::new();
    while bytes.len() < most && connection.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {}
}

async fn one_client(
    client: Client,
    cases: Arc<Vec<(Value, Answer)>>,
    tally: Arc<Mutex<Tally>>,
    end: Instant,
) {
    while Instant::now() < end {
        let (body, expected) = &cases[fastrand::usize(..cases.len())];
        if fastrand::usize(..LEAVING) == 0 {
            leave(&client, body).await;
            tally.lock().unwrap().left += 1;
            continue;
        }
        let response = read_timed(&client, body, &tally).await;
        if response.status == 429 {
            let seconds = response.header("retry-after").unwrap().parse::<u64>().unwrap();
            assert!((1..=120).contains(&seconds), "come back in {seconds} s");
            tally.lock().unwrap().turned_away += 1;
            // Not all at the same moment, and not after the end.
            let wait = Duration::from_secs(seconds).mul_f64(0.5 + fastrand::f64());
            tokio::time::sleep(wait.min(end.saturating_duration_since(Instant::now()))).await;
            continue;
        }
        assert_eq!(response.status, 200, "{}", response.body);
        assert_eq!(Answer::of(&response), *expected, "{body}");
        tally.lock().unwrap().completed += 1;
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_get_what_each_would_get_alone() {
    let seconds = setting("LILY_LOAD_SECONDS", 3);
    let clients = setting("LILY_LOAD_CLIENTS", 64);
    let (shutdown, asked) = oneshot::channel::<()>();
    let asked = async { drop(asked.await) };
    let (client, serving) = demo::start_until(options(), asked).await;
    let mut cases = Vec::new();
    for body in requests() {
        let answer = Answer::of(&client.chat(&body).await);
        cases.push((body, answer));
    }
    let (cases, tally) = (Arc::new(cases), Arc::new(Mutex::new(Tally::default())));
    let resident = async || client.metric("process_resident_memory_bytes").await.unwrap();

    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let running: Vec<_> = (0..clients)
        .map(|_| tokio::spawn(one_client(client, Arc::clone(&cases), Arc::clone(&tally), end)))
        .collect();
    // A third of the time is for warming up.
    tokio::time::sleep(Duration::from_secs(seconds) / 3).await;
    let before = resident().await;
    for client in running {
        client.await.unwrap();
    }
    let took = start.elapsed();
    client.until_metric("lily_requests_waiting", 0.0).await;
    client.until_metric("lily_requests_running", 0.0).await;
    let after = resident().await;
    let tokens = client.metric("lily_completion_tokens_total").await.unwrap();
    let _idle = client.raw("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    shutdown.send(()).unwrap();
    serving.await.unwrap().unwrap();

    let tally = tally.lock().unwrap();
    let quantiles = |times: &Times| (times.quantile(0.5), times.quantile(0.99));
    let (first, inter) = (quantiles(&tally.first_token), quantiles(&tally.inter_token));
    println!(
        "{clients} clients for {:.0} s: {} answers read to the end, all equal to their solo run;",
        took.as_secs_f64(),
        tally.completed
    );
    println!(
        "{} left early, {} turned away with 429 and Retry-After;",
        tally.left, tally.turned_away
    );
    println!("time to first token p50 {:.1} ms, p99 {:.1} ms;", first.0, first.1);
    println!("inter-token latency p50 {:.2} ms, p99 {:.2} ms;", inter.0, inter.1);
    println!(
        "{tokens:.0} tokens in all; resident {:.1} MB after warm-up, {:.1} MB at the end",
        before / 1e6,
        after / 1e6
    );
    assert!(tally.completed > 0 && tally.left > 0);
    assert!(after - before < SLACK, "memory grew from {before} to {after} bytes");
}
