//! The text of a sequence, token by token, up to a stop string.

use data::{Decoder, Tokenizer};
use std::ops::ControlFlow;

/// The continuation of a prompt.
pub struct Continued<'a> {
    /// `None` once the text has ended.
    decoder: Option<Decoder>,
    stops: &'a [String],
    text: String,
    /// Bytes of `text` that were taken.
    taken: usize,
    /// Whether a stop string ended the text.
    pub stopped: bool,
}

impl<'a> Continued<'a> {
    /// Creates an empty continuation that will end before the first of `stops`, none of which may be empty.
    pub fn new(tokenizer: &Tokenizer, stops: &'a [String]) -> Self {
        Self { decoder: Some(tokenizer.decoder()), stops, text: String::new(), taken: 0, stopped: false }
    }

    /// Adds a token; breaks once a stop string is complete.
    pub fn push(&mut self, token: u32) -> ControlFlow<()> {
        let more = self.decoder.as_mut().map(|decoder| decoder.push(token));
        self.add(&more.unwrap_or_default());
        if self.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn add(&mut self, more: &str) {
        // A stop string may begin in the earlier text.
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.text.floor_char_boundary(self.text.len().saturating_sub(longest));
        self.text.push_str(more);
        let found = self.stops.iter().filter_map(|stop| Some(from + self.text[from..].find(stop.as_str())?)).min();
        if let Some(end) = found {
            self.text.truncate(end);
            self.stopped = true;
        }
    }

    /// The text that is new since the last call and final: it excludes a possible beginning of a stop string.
    pub fn take(&mut self) -> &str {
        let held = if self.stopped || self.decoder.is_none() { 0 } else { self.held() };
        let (from, to) = (self.taken, self.text.len() - held);
        self.taken = to.max(from);
        &self.text[from..self.taken]
    }

    /// Bytes at the end that may begin a stop string.
    fn held(&self) -> usize {
        let held = |stop: &String| {
            let starts = stop.char_indices().skip(1).map(|(at, _)| at);
            starts.filter(|at| self.text.ends_with(&stop[..*at])).max().unwrap_or(0)
        };
        self.stops.iter().map(held).max().unwrap_or(0)
    }

    /// Marks the text as ended; no token may follow.
    pub fn end(&mut self) {
        let rest = self.decoder.take().filter(|_| !self.stopped).map(Decoder::finish);
        self.add(&rest.unwrap_or_default());
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_before_the_first_stop_string_and_shows_nothing_of_it() {
        let stops = ["\n\n".to_string(), "END".into(), "é!".into()];
        for (given, expected, stopped) in [
            ("one\ntwo\n\nthree", "one\ntwo", true),
            ("EEND\n\n", "E", true),
            ("ENENEND", "ENEN", true),
            ("caf\u{e9}! no", "caf", true),
            ("caf\u{e9}\nEN", "caf\u{e9}\nEN", false),
            ("END", "", true),
            ("", "", false),
        ] {
            let mut text = Continued::new(&Tokenizer::byte(), &stops);
            let mut shown = String::new();
            for byte in given.bytes() {
                let flow = text.push(u32::from(byte));
                shown += text.take();
                assert!(expected.starts_with(&shown), "{given:?} shows {shown:?}");
                if flow.is_break() {
                    break;
                }
            }
            assert_eq!(text.stopped, stopped, "{given:?}");
            text.end();
            assert_eq!(text.text(), expected, "{given:?}");
            assert_eq!(shown + text.take(), expected, "{given:?}");
        }
    }

    #[test]
    fn without_stop_strings_each_character_shows_at_once() {
        let mut text = Continued::new(&Tokenizer::byte(), &[]);
        let shown: Vec<String> = "a\u{e9}b"
            .bytes()
            .map(|byte| {
                assert!(text.push(u32::from(byte)).is_continue());
                text.take().to_string()
            })
            .collect();
        assert_eq!(shown, ["a", "", "\u{e9}", "b"]);
    }
}
