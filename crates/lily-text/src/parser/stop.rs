//! Stop strings, found across any split of the text.

/// Watches text for stop strings and holds back what may become one.
///
/// The first stop string to be completed ends the text; of several completed
/// by the same character the longest counts. Cost per byte is constant
/// (Knuth-Morris-Pratt), whatever a client sends as stop strings.
#[derive(Debug, Default)]
pub(super) struct StopFilter {
    patterns: Vec<Pattern>,
    held: String,
    /// Position, among the strings given, of the one that ended the text.
    stopped: Option<usize>,
}

#[derive(Debug)]
struct Pattern {
    /// Position among the strings given.
    index: usize,
    bytes: Vec<u8>,
    /// `fallback[n]`: longest proper prefix that is also a suffix of the first `n` bytes.
    fallback: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(index: usize, text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut matched = 0;
        for n in 1..bytes.len() {
            while matched > 0 && bytes[n] != bytes[matched] {
                matched = fallback[matched];
            }
            if bytes[n] == bytes[matched] {
                matched += 1;
            }
            fallback[n + 1] = matched;
        }
        Self { index, bytes, fallback, matched: 0 }
    }

    /// Takes one byte and says whether it completes the pattern.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

impl StopFilter {
    pub(super) fn new(stop: &[String]) -> Self {
        let given = stop.iter().enumerate().filter(|(_, text)| !text.is_empty());
        let patterns = given.map(|(index, text)| Pattern::new(index, text));
        Self { patterns: patterns.collect(), ..Self::default() }
    }

    /// Position, among the strings given, of the one that ended the text.
    pub(super) fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Bytes that are held back.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes more text and gives what is certain to stand before any stop string.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        if self.patterns.is_empty() {
            return text.to_owned();
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            // (length, position) of the longest string that ends here.
            let mut completed: Option<(usize, usize)> = None;
            for pattern in &mut self.patterns {
                let length = pattern.bytes.len();
                if pattern.advance(byte) && completed.is_none_or(|(longest, _)| length > longest) {
                    completed = Some((length, pattern.index));
                }
            }
            if let Some((length, index)) = completed {
                self.stopped = Some(index);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(before + offset + 1 - length);
                return text;
            }
        }
        let keep = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Gives what was held back: nothing that follows can complete it.
    pub(super) fn flush(&mut self) -> String {
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stop: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>) {
        let stop: Vec<String> = stop.iter().map(|text| (*text).to_owned()).collect();
        let mut filter = StopFilter::new(&stop);
        let mut out: Vec<String> = pieces.iter().map(|piece| filter.push(piece)).collect();
        out.push(filter.flush());
        (out, filter.stopped())
    }

    #[test]
    fn a_stop_string_over_several_pieces_is_found_and_never_shown() {
        let (out, stopped) = run(&["beta gamma"], &["alpha b", "eta", " gam", "ma delta", "more"]);
        assert_eq!(out.concat(), "alpha ");
        assert_eq!(stopped, Some(0));
    }

    #[test]
    fn what_may_start_a_stop_string_is_held_and_given_back_when_it_does_not() {
        let (out, stopped) = run(&["beta gamma"], &["alpha beta", " delta"]);
        assert_eq!(out, ["alpha ", "beta delta", ""]);
        assert_eq!(stopped, None);
    }

    #[test]
    fn a_failed_start_that_contains_another_start_is_followed() {
        assert_eq!(run(&["aab"], &["aa", "aab"]).0.concat(), "aa");
        assert_eq!(run(&["abac"], &["ababac"]).0.concat(), "ab");
    }

    #[test]
    fn of_several_stop_strings_the_first_completed_counts() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]).0.concat(), "xa");
        assert_eq!(run(&["bc", "abc"], &["xabcd"]).0.concat(), "x");
    }

    #[test]
    fn the_string_that_ended_the_text_is_known_by_its_place_in_the_list() {
        assert_eq!(run(&["", "zz", "bc"], &["xabcd"]).1, Some(2));
        assert_eq!(run(&["bc", "abc"], &["xabcd"]).1, Some(1));
        assert_eq!(run(&["bc", "bc"], &["xabcd"]).1, Some(0));
    }

    #[test]
    fn an_empty_stop_string_never_matches() {
        let (out, stopped) = run(&[""], &["text"]);
        assert_eq!(out.concat(), "text");
        assert_eq!(stopped, None);
    }

    #[test]
    fn a_stop_string_of_wide_characters_is_cut_at_a_character() {
        assert_eq!(run(&["日本"], &["今日は日", "本"]).0.concat(), "今日は");
    }
}
