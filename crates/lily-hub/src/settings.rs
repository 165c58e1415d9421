//! Where the hub and the cache are, by the environment variables of the hub's own tools.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::Uri;

use crate::error::HubError;

/// The hub where none is set.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// More is no token, whatever the file is.
const MAX_TOKEN_BYTES: u64 = 4096;

/// An access token; it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token by its text; white space around it does not count.
    ///
    /// # Errors
    /// [`HubError::Token`] unless it is printable ASCII; `source_name` is who is to blame.
    pub fn new(text: &str, source_name: &str) -> Result<Self, HubError> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(HubError::Token { source_name: source_name.to_owned() });
        }
        Ok(Token(text.to_owned()))
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// How to reach the hub, and where its files go.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Scheme and host of the hub, and perhaps a path; no slash at the end.
    pub endpoint: String,
    /// The folder with one folder per repository.
    pub cache: PathBuf,
    /// For private and gated repositories. Sent to the endpoint only, never to where it redirects.
    pub token: Option<Token>,
    /// No request is sent.
    pub offline: bool,
    /// Longest wait for a connection, and between two reads.
    pub timeout: Duration,
    /// Whether `HTTPS_PROXY` and its like are obeyed.
    pub proxy: bool,
}

impl Settings {
    /// From the environment: `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_DISABLE_IMPLICIT_TOKEN`, `HF_HUB_OFFLINE`,
    /// `HF_HUB_DOWNLOAD_TIMEOUT` (seconds).
    ///
    /// # Errors
    /// [`HubError::Setting`], [`HubError::Token`], [`HubError::NoHome`], [`HubError::Io`] for a token
    /// file that exists and cannot be read.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_variables(&|name| env::var_os(name))
    }

    /// As [`Settings::from_env`], of variables by name.
    ///
    /// # Errors
    /// As there.
    pub fn from_variables(get: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let variables = Variables(get);
        let home = variables.hub_home();
        let cache = match variables.path("HF_HUB_CACHE").or(variables.path("HUGGINGFACE_HUB_CACHE"))
        {
            Some(cache) => cache,
            None => home.clone().ok_or(HubError::NoHome)?.join("hub"),
        };
        Ok(Settings {
            endpoint: variables.endpoint()?,
            cache,
            token: variables.token(home.as_deref())?,
            offline: variables.flag("HF_HUB_OFFLINE"),
            timeout: variables.timeout()?,
            proxy: true,
        })
    }
}

/// The address of the hub, by `HF_ENDPOINT`.
///
/// # Errors
/// [`HubError::Setting`].
pub fn endpoint_from_env() -> Result<String, HubError> {
    Variables(&|name| env::var_os(name)).endpoint()
}

struct Variables<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Variables<'_> {
    /// What is set to nothing counts as unset.
    fn value(&self, name: &str) -> Option<OsString> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &'static str) -> Option<String> {
        Some(self.value(name)?.to_string_lossy().into_owned())
    }

    /// A tilde that no shell replaced means the home folder, as it does for the hub's own tools.
    fn path(&self, name: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.value(name)?);
        let Ok(rest) = path.strip_prefix("~") else { return Some(path) };
        Some(PathBuf::from(self.value("HOME")?).join(rest))
    }

    fn flag(&self, name: &'static str) -> bool {
        let on = |text: String| ["1", "on", "yes", "true"].contains(&&*text.to_ascii_lowercase());
        self.text(name).is_some_and(on)
    }

    fn hub_home(&self) -> Option<PathBuf> {
        if let Some(home) = self.path("HF_HOME") {
            return Some(home);
        }
        let cache = self
            .path("XDG_CACHE_HOME")
            .or_else(|| Some(PathBuf::from(self.value("HOME")?).join(".cache")))?;
        Some(cache.join("huggingface"))
    }

    fn endpoint(&self) -> Result<String, HubError> {
        const VARIABLE: &str = "HF_ENDPOINT";
        let Some(text) = self.text(VARIABLE) else { return Ok(DEFAULT_ENDPOINT.to_owned()) };
        let endpoint = text.trim_end_matches('/');
        let usable = endpoint.parse::<Uri>().is_ok_and(|uri| {
            let host = uri.host().is_some_and(|host| !host.is_empty());
            let user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
            matches!(uri.scheme_str(), Some("http" | "https"))
                && host
                && !user
                && uri.query().is_none()
        });
        if usable {
            return Ok(endpoint.to_owned());
        }
        let expected = "an address such as https://hub.example";
        Err(HubError::Setting { variable: VARIABLE, found: text, expected })
    }

    fn token(&self, home: Option<&Path>) -> Result<Option<Token>, HubError> {
        for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            if let Some(text) = self.text(name).filter(|text| !text.trim().is_empty()) {
                return Token::new(&text, name).map(Some);
            }
        }
        if self.flag("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            return Ok(None);
        }
        let Some(path) = self.path("HF_TOKEN_PATH").or(home.map(|home| home.join("token"))) else {
            return Ok(None);
        };
        match read_token(&path) {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => Token::new(&text, &path.display().to_string()).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(HubError::io("read", &path)(error)),
        }
    }

    fn timeout(&self) -> Result<Duration, HubError> {
        const VARIABLE: &str = "HF_HUB_DOWNLOAD_TIMEOUT";
        let Some(text) = self.text(VARIABLE) else { return Ok(DEFAULT_TIMEOUT) };
        match text.trim().parse::<u32>() {
            Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds.into())),
            _ => Err(HubError::Setting {
                variable: VARIABLE,
                found: text,
                expected: "a number of seconds above 0",
            }),
        }
    }
}

fn read_token(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(
        &mut io::Read::take(fs::File::open(path)?, MAX_TOKEN_BYTES),
        &mut text,
    )?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::from_variables(&|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_cache_is_where_the_first_of_its_variables_says() {
        let of = |variables: &[(&str, &str)]| settings(variables).unwrap().cache;
        let all = [
            ("HF_HUB_CACHE", "/a"),
            ("HF_HOME", "/b"),
            ("XDG_CACHE_HOME", "/c"),
            ("HOME", "/home/me"),
        ];
        assert_eq!(of(&all), Path::new("/a"));
        assert_eq!(of(&all[1..]), Path::new("/b/hub"));
        assert_eq!(of(&all[2..]), Path::new("/c/huggingface/hub"));
        assert_eq!(of(&all[3..]), Path::new("/home/me/.cache/huggingface/hub"));
        assert_eq!(of(&[("HF_HOME", "~/x"), ("HOME", "/home/me")]), Path::new("/home/me/x/hub"));
        assert_eq!(of(&[("HF_HOME", ""), ("HOME", "/h")]), Path::new("/h/.cache/huggingface/hub"));
        assert!(matches!(settings(&[]), Err(HubError::NoHome)));
    }

    #[test]
    fn the_endpoint_is_an_address_without_a_slash_at_its_end() {
        let of = |text| settings(&[("HOME", "/h"), ("HF_ENDPOINT", text)]).map(|s| s.endpoint);
        assert_eq!(of("").unwrap(), DEFAULT_ENDPOINT);
        assert_eq!(of("http://127.0.0.1:80/hub//").unwrap(), "http://127.0.0.1:80/hub");
        for text in [
            "hub.example",
            "ftp://hub.example",
            "https://",
            "https://me:pw@hub.example",
            "http://a/?x=1",
        ] {
            assert!(
                matches!(of(text), Err(HubError::Setting { variable: "HF_ENDPOINT", .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn a_token_comes_from_a_variable_or_a_file_and_is_never_shown() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().to_str().unwrap();
        let of = |more: &[(&str, &str)]| {
            settings(&[&[("HF_HOME", path)], more].concat()).map(|settings| settings.token)
        };
        assert_eq!(of(&[]).unwrap(), None);
        fs::write(home.path().join("token"), "from-file\n").unwrap();
        assert_eq!(of(&[]).unwrap().unwrap().bearer(), "Bearer from-file");
        assert_eq!(of(&[("HF_TOKEN", " direct ")]).unwrap().unwrap().bearer(), "Bearer direct");
        assert_eq!(of(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).unwrap(), None);
        fs::write(home.path().join("other"), "other").unwrap();
        let other = home.path().join("other");
        let found = of(&[("HF_TOKEN_PATH", other.to_str().unwrap())]).unwrap().unwrap();
        assert_eq!(found.bearer(), "Bearer other");
        assert!(!format!("{found:?}").contains("other"));
        let error = of(&[("HF_TOKEN", "secret\r\nX: y")]).unwrap_err().to_string();
        assert!(error.contains("HF_TOKEN") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn offline_and_timeouts_are_read_and_nonsense_is_refused() {
        let of = |name, text| settings(&[("HOME", "/h"), (name, text)]);
        for (text, offline) in
            [("1", true), ("True", true), ("yes", true), ("0", false), ("", false)]
        {
            assert_eq!(of("HF_HUB_OFFLINE", text).unwrap().offline, offline, "{text}");
        }
        assert_eq!(of("HF_HUB_DOWNLOAD_TIMEOUT", "3").unwrap().timeout, Duration::from_secs(3));
        for text in ["0", "-1", "soon", "1e99"] {
            assert!(of("HF_HUB_DOWNLOAD_TIMEOUT", text).is_err(), "{text}");
        }
    }
}
