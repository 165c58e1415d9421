//! When a failed request is worth repeating, and when.

use std::time::{Duration, SystemTime};

use crate::error::HubError;

/// How often and how soon.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Failures in a row, without a byte gained between them, after which a transfer is given up.
    pub failures: u32,
    /// Wait after the first failure; it doubles with each further one.
    pub first: Duration,
    /// Longest wait of ours.
    pub longest: Duration,
    /// Longest wait that a server may ask for.
    pub patience: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            failures: 6,
            first: Duration::from_secs(1),
            longest: Duration::from_secs(20),
            patience: Duration::from_secs(300),
        }
    }
}

impl Retry {
    /// The wait after failure `failures` in a row, counted from 1.
    pub(crate) fn wait(&self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

/// A request that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Perhaps only now. `after` is what the server asks for.
    Passing { error: HubError, after: Option<Duration> },
    /// The same request would fail again.
    Lasting(HubError),
}

impl Failure {
    pub(crate) fn passing(error: HubError) -> Self {
        Failure::Passing { error, after: None }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Failure::Lasting(error)
    }
}

/// `Retry-After`: seconds, or a date.
pub(crate) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

/// Seconds until a quota is full again, of `RateLimit: "api";r=0;t=55`; `None` where some is left.
pub(crate) fn reset_of(text: &str) -> Option<Duration> {
    let value = |key: &str| -> Option<u32> {
        text.split(';').find_map(|part| part.trim().strip_prefix(key)?.parse().ok())
    };
    let reset = value("t=").filter(|_| value("r=") == Some(0))?;
    Some(Duration::from_secs(reset.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let retry = Retry {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(5),
            ..Retry::default()
        };
        let waits: Vec<_> = (1..=5).map(|n| retry.wait(n).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        assert_eq!(retry.wait(u32::MAX).as_secs(), 5);
    }

    #[test]
    fn a_quota_that_is_used_up_says_when_it_is_full_again() {
        assert_eq!(reset_of("\"api\";r=0;t=55"), Some(Duration::from_secs(55)));
        for text in ["", "\"api\";r=3;t=55", "\"api\";r=0", "r=0;t=x", "t=55"] {
            assert_eq!(reset_of(text), None, "{text}");
        }
    }

    #[test]
    fn a_server_may_ask_in_seconds_or_by_a_date() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2015 07:28:00 GMT").unwrap();
        let of = |text| retry_after(text, now).map(|wait| wait.as_secs());
        assert_eq!(of(" 17 "), Some(17));
        assert_eq!(of("Wed, 21 Oct 2015 07:29:30 GMT"), Some(90));
        assert_eq!(of("Wed, 21 Oct 2015 07:00:00 GMT"), Some(0));
        for text in ["", "-1", "1.5", "soon", "99999999999"] {
            assert_eq!(of(text), None, "{text:?}");
        }
    }
}
