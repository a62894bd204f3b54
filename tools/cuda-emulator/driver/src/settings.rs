//! What the environment sets.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `KILN_EMULATED_CARDS` | `1` | number of cards, at most 16 |
//! | `KILN_EMULATED_ARCH` | `sm_80` | `sm_80` (like an A100 80GB) or `sm_90a` (like an H100; also `sm_90`) |
//! | `KILN_EMULATED_MEMORY` | `8G` | memory of each card in bytes, or with `K`, `M`, `G`; at least `64K` |
//! | `KILN_EMULATED_CHECKS` | | checks of kernels to turn off, separated by commas; `+exited_barriers` turns that one on |
//! | `KILN_EMULATED_SEED` | `0` | chooses among the orders in which work may run |
//! | `KILN_EMULATED_LATE` | `2` | milliseconds that queued work lies if nobody waits for it; `0` starts it at once |
//! | `KILN_EMULATED_THREADS` | all cores | host threads that execute the blocks of a launch |
//! | `KILN_EMULATED_PROFILE` | | file for a table by kernel at exit; `-` is stderr |
//! | `KILN_EMULATED_LEAKS` | `0` | `1` reports at exit what was not freed |
//! | `KILN_EMULATED_PTXAS` | | path of `ptxas`; assembles every module that is loaded |
//! | `KILN_EMULATED_TRACE` | `0` | `1` prints every call of the driver API with its code |

use crate::say::say;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The environment, read once.
pub struct Settings {
    /// Number of cards.
    pub cards: usize,
    /// Architecture of every card.
    pub arch: Arch,
    /// Memory of a card, in bytes.
    pub memory: u64,
    /// Checks that are off, and with `+` those that are on.
    pub checks: Vec<String>,
    /// Seed of every order that is free.
    pub seed: u64,
    /// How long work lies if nobody waits for it.
    pub late: Duration,
    /// Host threads of a launch.
    pub threads: usize,
    /// Where the table by kernel goes.
    pub profile: Option<PathBuf>,
    /// Whether to report leaks.
    pub leaks: bool,
    /// Assembler to check modules with.
    pub ptxas: Option<PathBuf>,
    /// Whether to print calls.
    pub trace: bool,
}

/// Checks of kernels that can be turned off, or on with `+`.
const CHECKS: [&str; 7] = [
    "uninitialised",
    "races",
    "global_races",
    "divergent_barriers",
    "partial_stores",
    "shared_bounds",
    "+exited_barriers",
];

/// Which card is emulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    /// Ampere, compute capability 8.0.
    Sm80,
    /// Hopper, compute capability 9.0, with the instructions of `sm_90a`.
    Sm90a,
}

/// The settings of this process.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter_map(|name| unknown(&name)).for_each(|line| say(&line));
        read(|name| std::env::var(format!("KILN_EMULATED_{name}")).ok().filter(|v| !v.is_empty()))
    })
}

/// All settings, without their prefix.
const NAMES: [&str; 11] =
    ["CARDS", "ARCH", "MEMORY", "CHECKS", "SEED", "LATE", "THREADS", "PROFILE", "LEAKS", "PTXAS", "TRACE"];

/// A line on a variable that looks like a setting and is none.
fn unknown(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("KILN_EMULATED_").filter(|name| !NAMES.contains(name))?;
    Some(format!("KILN_EMULATED_{name} is no setting and changes nothing; there are {}", NAMES.join(", ")))
}

/// Reads every setting. A value that is not accepted is named on stderr with those that are, and the default is taken.
fn read(get: impl Fn(&str) -> Option<String>) -> Settings {
    let parsed = Parsed(&get);
    let flag = |name: &str| {
        parsed.of(name, false, "0 or 1", |value| match value {
            "0" | "no" | "false" => Some(false),
            "1" | "yes" | "true" => Some(true),
            _ => None,
        })
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Settings {
        cards: parsed.of("CARDS", 1, "a number from 0 to 16", |v| v.parse().ok().filter(|n| (0..=16).contains(n))),
        arch: parsed.of("ARCH", Arch::Sm80, "sm_80 or sm_90a", |v| match v {
            "sm_80" => Some(Arch::Sm80),
            "sm_90a" | "sm_90" => Some(Arch::Sm90a),
            _ => None,
        }),
        memory: parsed.of("MEMORY", 8 << 30, "at least 64K, such as 512M or 8G", bytes),
        checks: parsed.of("CHECKS", Vec::new(), &format!("some of {}", CHECKS.join(",")), |v| {
            let names: Vec<_> =
                v.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
            names.iter().all(|name| CHECKS.contains(&name.as_str())).then_some(names)
        }),
        seed: parsed.of("SEED", 0, "a whole number", |v| v.parse().ok()),
        late: parsed
            .of("LATE", Duration::from_millis(2), "milliseconds", |v| v.parse().ok().map(Duration::from_millis)),
        threads: parsed
            .of("THREADS", cores, "a number from 1 to 1024", |v| v.parse().ok().filter(|n| (1..=1024).contains(n))),
        profile: get("PROFILE").map(PathBuf::from),
        leaks: flag("LEAKS"),
        ptxas: get("PTXAS").map(PathBuf::from),
        trace: flag("TRACE"),
    }
}

/// Reads values with this function.
struct Parsed<'a, G>(&'a G);

impl<G: Fn(&str) -> Option<String>> Parsed<'_, G> {
    fn of<T>(&self, name: &str, default: T, accepted: &str, parse: impl Fn(&str) -> Option<T>) -> T {
        let Some(value) = (self.0)(name) else { return default };
        parse(&value).unwrap_or_else(|| {
            say(&format!("KILN_EMULATED_{name}=\"{value}\" is not accepted: give {accepted}. The default is taken"));
            default
        })
    }
}

/// `512M` as a number of bytes.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.trim_end_matches(['B', 'b']).to_ascii_uppercase() {
        text if text.ends_with('K') => (text, 1 << 10),
        text if text.ends_with('M') => (text, 1 << 20),
        text if text.ends_with('G') => (text, 1 << 30),
        text => (text, 1),
    };
    let number: u64 = digits.trim_end_matches(['K', 'M', 'G']).parse().ok()?;
    number.checked_mul(unit).filter(|&total| total >= 1 << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_wrong_values_leave_the_default() {
        assert_eq!(bytes("3G"), Some(3 << 30));
        assert_eq!(bytes("131072"), Some(131_072));
        assert_eq!(bytes("much"), None);
        let set = read(|name| match name {
            "CARDS" => Some("three".into()),
            "ARCH" => Some("sm_90a".into()),
            "CHECKS" => Some("races, +exited_barriers".into()),
            _ => None,
        });
        assert_eq!((set.cards, set.arch, set.memory), (1, Arch::Sm90a, 8 << 30));
        assert_eq!(set.checks, ["races", "+exited_barriers"]);
        assert!(unknown("KILN_EMULATED_CARD").is_some_and(|line| line.contains("CARDS")));
        assert_eq!((unknown("KILN_EMULATED_CARDS"), unknown("PATH")), (None, None));
    }
}
