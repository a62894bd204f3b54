//! The regular expressions of a `tokenizer.json`, matched within a time limit.
//!
//! They come with the file and are matched by backtracking, as in Python. An expression like `(a|aa)+$` takes hours on
//! a page of text. Those of GPT-2, Llama 3, Qwen or DeepSeek look at each character a few times.

use std::cell::Cell;
use std::time::{Duration, Instant};

use onig::{MatchParam, Regex, Region, SearchOptions};
use serde_json::Value;
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, Offsets, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    Result, SplitDelimiterBehavior,
};

/// CPU time that a text's patterns may take, plus an allowance per byte: a thousand times what they need.
const TIME: Duration = Duration::from_secs(20);
const TIME_PER_BYTE: Duration = Duration::from_micros(20);

/// How often a match at one place may backtrack, which takes seconds at most, and how many places are tried between two
/// looks at the clock.
const STEPS_BACK: u32 = 20_000_000;
const PLACES: usize = 16;

/// How often all matches of a search together may backtrack before the search proceeds place by place. Few in tests.
const STEPS_BACK_IN_ALL: u64 = if cfg!(test) { 1 << 10 } else { 1 << 30 };

/// Backtracking positions that may be kept per byte of the text.
const PLACES_KEPT: usize = 8;

/// How a tokenizer with its own patterns normalizes and splits a text.
#[derive(Debug)]
pub struct Patterns {
    normalizer: Option<Steps<Normalize>>,
    splits: Vec<PreTokenize>,
}

#[derive(Debug)]
struct Steps<T>(Vec<T>);

#[derive(Debug)]
enum Normalize {
    Replace(Regex, String),
    Other(NormalizerWrapper),
}

#[derive(Debug)]
enum PreTokenize {
    Split(Regex, SplitDelimiterBehavior, bool),
    Other(PreTokenizerWrapper),
}

impl Patterns {
    /// The patterns of `tokenizer`. None if it has none.
    ///
    /// # Errors
    /// If a pattern is invalid, or if the decoder has one, which no known tokenizer does.
    pub fn of(tokenizer: &tokenizers::Tokenizer) -> Result<Option<Self>> {
        if let Some(decoder) = tokenizer.get_decoder()
            && has_regex(&serde_json::to_value(decoder)?)
        {
            return Err("its decoder has a regular expression, which is not supported".into());
        }
        let (mut replaces, mut splits) = (Vec::new(), Vec::new());
        tokenizer.get_normalizer().map_or(Ok(()), |normalizer| add_normalizer(normalizer, &mut replaces))?;
        tokenizer.get_pre_tokenizer().map_or(Ok(()), |splitter| add_splits(splitter, &mut splits))?;
        let own = replaces.iter().any(|step| matches!(step, Normalize::Replace(..)))
            || splits.iter().any(|step| matches!(step, PreTokenize::Split(..)));
        let normalizer = (!replaces.is_empty()).then_some(Steps(replaces));
        Ok(own.then_some(Self { normalizer, splits }))
    }

    /// Normalizes and splits `text` as `tokenizer` does.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn split(&self, tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<PreTokenizedString> {
        Clock::start(text.len());
        FAILED.set(None);
        let mut split = tokenizer.get_added_vocabulary().extract_and_normalize(self.normalizer.as_ref(), text);
        // The crate treats a text that could not be normalized as one that needs no change.
        if let Some(error) = FAILED.take() {
            return Err(error);
        }
        for step in &self.splits {
            match step {
                PreTokenize::Other(other) => other.pre_tokenize(&mut split)?,
                PreTokenize::Split(regex, behavior, invert) => split.split(|_, text| match invert {
                    true => text.split(Invert(Timed(regex)), *behavior),
                    false => text.split(Timed(regex), *behavior),
                })?,
            }
        }
        Ok(split)
    }
}

fn add_normalizer(normalizer: &NormalizerWrapper, steps: &mut Vec<Normalize>) -> Result<()> {
    match normalizer {
        NormalizerWrapper::Sequence(all) => return all.as_ref().iter().try_for_each(|one| add_normalizer(one, steps)),
        NormalizerWrapper::Replace(replace) => {
            // The crate does not expose the pattern.
            let json = serde_json::to_value(replace)?;
            if let Some(regex) = json["pattern"]["Regex"].as_str() {
                steps.push(Normalize::Replace(Regex::new(regex)?, replace.content.clone()));
                return Ok(());
            }
        }
        _ => {}
    }
    steps.push(Normalize::Other(normalizer.clone()));
    Ok(())
}

fn add_splits(splitter: &PreTokenizerWrapper, steps: &mut Vec<PreTokenize>) -> Result<()> {
    match splitter {
        PreTokenizerWrapper::Sequence(all) => return all.as_ref().iter().try_for_each(|one| add_splits(one, steps)),
        PreTokenizerWrapper::Split(split) => {
            if let SplitPattern::Regex(regex) = &split.pattern {
                steps.push(PreTokenize::Split(Regex::new(regex)?, split.behavior, split.invert));
                return Ok(());
            }
        }
        _ => {}
    }
    steps.push(PreTokenize::Other(splitter.clone()));
    Ok(())
}

fn has_regex(json: &Value) -> bool {
    match json {
        Value::Object(object) => object.iter().any(|(key, value)| key == "Regex" || has_regex(value)),
        Value::Array(list) => list.iter().any(has_regex),
        _ => false,
    }
}

impl Normalizer for Steps<Normalize> {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        let failed = self.0.iter().try_for_each(|step| match step {
            Normalize::Replace(regex, content) => text.replace(Timed(regex), content),
            Normalize::Other(other) => other.normalize(text),
        });
        failed.inspect_err(|error| FAILED.set(Some(error.to_string().into())))
    }
}

/// A pattern that stops when the time for this thread's text runs out.
struct Timed<'a>(&'a Regex);

impl Pattern for Timed<'_> {
    fn find_matches(&self, text: &str) -> Result<Vec<(Offsets, bool)>> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let (mut matches, mut end) = (Vec::new(), 0);
        let mut region = Region::new();
        let (mut from, mut last) = (0, None);
        while from <= text.len()
            && let Some((start, stop)) = self.search(text, from, &mut region)?
        {
            // Like `find_iter`: no empty match where the previous one ended.
            if start == stop && last == Some(stop) {
                from += text[from..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            (from, last) = (stop, Some(stop));
            if end < start {
                matches.push(((end, start), false));
            }
            matches.push(((start, stop), true));
            end = stop;
        }
        if end < text.len() {
            matches.push(((end, text.len()), false));
        }
        Ok(matches)
    }
}

impl Timed<'_> {
    /// The first match at or after `from`.
    fn search(&self, text: &str, from: usize, region: &mut Region) -> Result<Option<(usize, usize)>> {
        Clock::check()?;
        // Seconds at most for all places of the text together, because the library does not look at the clock.
        let few = (STEPS_BACK_IN_ALL / text.len() as u64).clamp(10, u32::MAX.into()) as u32;
        let options = SearchOptions::SEARCH_OPTION_NONE;
        region.clear();
        if let Ok(found) = self.0.search_with_param(text, from, text.len(), options, Some(region), limits(text, few)) {
            return Ok(found.and_then(|_| region.pos(0)));
        }
        // Something backtracks a lot: search place by place and look at the clock in between.
        let places = text[from..].char_indices().map(|(at, _)| from + at).chain([text.len()]);
        for (number, at) in places.enumerate() {
            if number % PLACES == 0 {
                Clock::check()?;
            }
            region.clear();
            let options = SearchOptions::SEARCH_OPTION_NONE;
            let found = self.0.match_with_param(text, at, options, Some(region), limits(text, STEPS_BACK));
            if found.map_err(|error| format!("{TOO_LONG} ({})", error.description()))?.is_some() {
                return Ok(region.pos(0));
            }
        }
        Ok(None)
    }
}

/// Limits of a match that may backtrack this often at one place.
fn limits(text: &str, steps_back: u32) -> MatchParam {
    let mut limits = MatchParam::default();
    limits.set_retry_limit_in_match(steps_back);
    limits.set_match_stack_limit((1000 + text.len() * PLACES_KEPT).try_into().unwrap_or(u32::MAX));
    limits
}

/// The message for the user of a hostile file.
const TOO_LONG: &str =
    "a regular expression of the tokenizer takes too long on it; take a tokenizer from a source you trust";

/// When the time for this thread's text runs out.
#[derive(Clone, Copy)]
struct Clock {
    started: Instant,
    used: Duration,
    limit: Duration,
}

thread_local! {
    /// Why a text of this thread could not be normalized.
    static FAILED: Cell<Option<tokenizers::Error>> = const { Cell::new(None) };
    static CLOCK: Cell<Option<Clock>> = const { Cell::new(None) };
}

impl Clock {
    fn start(bytes: usize) {
        let limit = TIME + TIME_PER_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX);
        CLOCK.set(Some(Self { started: Instant::now(), used: used(), limit }));
    }

    /// An error if the time has run out.
    fn check() -> Result<()> {
        let Some(clock) = CLOCK.get() else { return Ok(()) };
        // CPU time takes longer to query and is shorter: a machine may be busy or asleep.
        if clock.started.elapsed() > clock.limit && used().saturating_sub(clock.used) > clock.limit {
            return Err(TOO_LONG.into());
        }
        Ok(())
    }
}

/// CPU time that this thread has used.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;
    use tokenizers::utils::SysRegex;

    /// Patterns of GPT-2, of Llama 3 and GPT-4, of DeepSeek-V2, of DeepSeek-V3, and a few that match rarely, match
    /// nothing, or match at the ends.
    const KNOWN: [&str; 11] = [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[\r\n]",
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯ]+",
        r"[一-龥ࠀ-一가-퟿]+",
        r"\p{N}{1,3}",
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        r" {2,}",
        r"x*",
        r"$|^a",
        r"(?<=b)\w|\bc",
    ];

    proptest! {
        #[test]
        fn known_patterns_find_what_the_crate_finds(
            unit in "([a-d 一é\n\r\t.'1]|\\PC){0,80}", times in 1usize..300, pattern in select(KNOWN.to_vec()),
        ) {
            let text = unit.repeat(times);
            let regex = Regex::new(pattern).unwrap();
            prop_assert_eq!(Timed(&regex).find_matches(&text).unwrap(), (&regex).find_matches(&text).unwrap());
            prop_assert_eq!(
                Timed(&regex).find_matches(&text).unwrap(), (&SysRegex::new(pattern).unwrap()).find_matches(&text).unwrap()
            );
        }
    }

    #[test]
    fn long_runs_are_within_the_limits_of_known_patterns() {
        for pattern in KNOWN {
            let regex = Regex::new(pattern).unwrap();
            for unit in [" ", "a", "\n", "一", "1", "-"] {
                assert!(Timed(&regex).find_matches(&unit.repeat(1 << 18)).is_ok(), "{pattern} {unit:?}");
            }
        }
    }

    #[test]
    fn patterns_that_go_back_without_end_are_errors_and_no_panics() {
        let text = "a".repeat(10_000) + "b";
        for pattern in ["(a|aa)+$", "(a+){2,}$"] {
            let regex = Regex::new(pattern).unwrap();
            let error = Timed(&regex).find_matches(&text).unwrap_err().to_string();
            assert!(error.contains("takes too long"), "{pattern}: {error}");
        }
    }

    #[test]
    fn the_time_of_a_text_is_over_when_it_is_used() {
        CLOCK.set(Some(Clock {
            started: Instant::now() - Duration::from_secs(2),
            used: used(),
            limit: Duration::ZERO,
        }));
        let regex = Regex::new("(a?){12}a{12}|.").unwrap();
        let result = Timed(&regex).find_matches(&"a".repeat(100_000));
        CLOCK.set(None);
        assert!(result.unwrap_err().to_string().contains("takes too long"));
    }
}
