//! What the environment sets.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `KILN_EMULATED_CARDS` | `1` | number of cards, at most 16 |
//! | `KILN_EMULATED_ARCH` | `sm_80` | `sm_80` (like an A100 80GB) or `sm_90a` (like an H100) |
//! | `KILN_EMULATED_MEMORY` | `8G` | memory of each card in bytes, or with `K`, `M`, `G` |
//! | `KILN_EMULATED_CHECKS` | | checks of kernels to turn off, separated by commas; `+exited_barriers` turns that one on |
//! | `KILN_EMULATED_SEED` | `0` | chooses among the orders in which work may run |
//! | `KILN_EMULATED_LATE` | `2` | milliseconds that queued work lies if nobody waits for it; `0` starts it at once |
//! | `KILN_EMULATED_THREADS` | all cores | host threads that execute the blocks of a launch |
//! | `KILN_EMULATED_PROFILE` | | file for a table by kernel at exit; `-` is stderr |
//! | `KILN_EMULATED_LEAKS` | `0` | `1` reports at exit what was not freed |
//! | `KILN_EMULATED_PTXAS` | | path of `ptxas`; assembles every module that is loaded |
//! | `KILN_EMULATED_TRACE` | `0` | `1` prints every call of the driver API with its code |

use crate::call::say;
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
    SETTINGS.get_or_init(|| read(|name| std::env::var(format!("KILN_EMULATED_{name}")).ok().filter(|v| !v.is_empty())))
}

/// Reads every setting; a value that cannot be read is named on stderr, and its default is taken.
fn read(get: impl Fn(&str) -> Option<String>) -> Settings {
    fn parsed<T>(name: &str, value: Option<String>, default: T, parse: impl Fn(&str) -> Option<T>) -> T {
        let Some(value) = value else { return default };
        parse(&value).unwrap_or_else(|| {
            say(&format!("KILN_EMULATED_{name}=\"{value}\" cannot be read; the default is taken"));
            default
        })
    }
    let flag = |name: &str| {
        parsed(name, get(name), false, |value| match value {
            "0" | "no" | "false" => Some(false),
            "1" | "yes" | "true" => Some(true),
            _ => None,
        })
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Settings {
        cards: parsed("CARDS", get("CARDS"), 1, |v| v.parse().ok().filter(|n| (0..=16).contains(n))),
        arch: parsed("ARCH", get("ARCH"), Arch::Sm80, |v| match v {
            "sm_80" => Some(Arch::Sm80),
            "sm_90a" | "sm_90" => Some(Arch::Sm90a),
            _ => None,
        }),
        memory: parsed("MEMORY", get("MEMORY"), 8 << 30, bytes),
        checks: parsed("CHECKS", get("CHECKS"), Vec::new(), |v| {
            let names: Vec<_> =
                v.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
            names.iter().all(|name| CHECKS.contains(&name.as_str())).then_some(names)
        }),
        seed: parsed("SEED", get("SEED"), 0, |v| v.parse().ok()),
        late: parsed("LATE", get("LATE"), Duration::from_millis(2), |v| v.parse().ok().map(Duration::from_millis)),
        threads: parsed("THREADS", get("THREADS"), cores, |v| v.parse().ok().filter(|&n| n > 0)),
        profile: get("PROFILE").map(PathBuf::from),
        leaks: flag("LEAKS"),
        ptxas: get("PTXAS").map(PathBuf::from),
        trace: flag("TRACE"),
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
    }
}
