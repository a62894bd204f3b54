//! The dotted words behind an opcode, sorted by what they say.

use super::Type;
use std::fmt;

/// What was not known, with the instruction it is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Which index of a matrix runs fastest in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `.row`: the elements of a row are side by side.
    Row,
    /// `.col`: the elements of a column are side by side.
    Column,
}

/// Rows of `a` and `d`, columns of `b` and `d`, and the length of the sums.
pub(super) type Shape = (usize, usize, usize);

/// An instruction's words, sorted.
#[derive(Debug)]
pub(super) struct Modifiers<'a> {
    name: String,
    pub shape: Option<Shape>,
    pub types: Vec<Type>,
    pub layouts: Vec<Layout>,
    flags: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    /// Sorts `words`, of which those that are no shape, type or layout have to be among `known`.
    pub fn sort(opcode: &str, words: &[&'a str], known: &[&str]) -> Result<Self, Refused> {
        let mut name = opcode.to_owned();
        words.iter().for_each(|word| name.extend([".", word]));
        let mut all = Self { name, shape: None, types: vec![], layouts: vec![], flags: vec![] };
        for &word in words {
            if let Some(of) = Type::parse(word) {
                all.types.push(of);
            } else if word == "row" || word == "col" {
                all.layouts.push(if word == "row" { Layout::Row } else { Layout::Column });
            } else if let Some(shape) = shape(word) {
                if all.shape.replace(shape).is_some() {
                    return Err(all.refuse("it has two shapes"));
                }
            } else if known.contains(&word) {
                all.flags.push(word);
            } else {
                return Err(all.refuse(format!("\".{word}\" is not known here")));
            }
        }
        Ok(all)
    }

    /// Whether the word is there.
    pub fn has(&self, word: &str) -> bool {
        self.flags.contains(&word)
    }

    /// Refuses an instruction without one of these words.
    pub fn require(&self, words: &[&str]) -> Result<(), Refused> {
        match words.iter().find(|word| !self.has(word)) {
            Some(word) => Err(self.refuse(format!("\".{word}\" is missing"))),
            None => Ok(()),
        }
    }

    /// The shape, or a refusal.
    pub fn shape(&self) -> Result<Shape, Refused> {
        self.shape.ok_or_else(|| self.refuse("it has no shape"))
    }

    /// A refusal for this reason.
    pub fn refuse(&self, why: impl fmt::Display) -> Refused {
        Refused(format!("{}: {why}", self.name))
    }
}

/// `m16n8k16` as numbers.
fn shape(word: &str) -> Option<Shape> {
    let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}
