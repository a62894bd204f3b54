//! Which types and words go together. Assemblers refuse all else, so it is refused here, too.

use super::forms::{FORMS, Form};
use super::operands::{Op, Result, space};
use crate::code::Space;
use crate::lanes::convert::Kind;

fn lists(list: &str, separator: char, word: &str) -> bool {
    list.split(separator).any(|one| one == word)
}

/// Whether types and words are those of a form.
fn goes((_, types, words): &Form, of: &[&str], others: &[&str]) -> bool {
    let mut expected = types.split(", ").filter(|one| !one.is_empty());
    if !of.iter().all(|of| expected.next().is_some_and(|one| lists(one, ' ', of))) || expected.next().is_some() {
        return false;
    }
    let mut found = 0;
    let each = words.split(' ').filter(|one| !one.is_empty()).all(|one| {
        let choices = one.trim_end_matches('?');
        let count = others.iter().filter(|word| lists(choices, '/', word)).count();
        found += count;
        count == 1 || count == 0 && choices.len() < one.len()
    });
    each && found == others.len()
}

/// Refuses types and words that do not go together.
pub(super) fn check(op: &Op<'_>) -> Result<()> {
    let (of, others): (Vec<&str>, Vec<&str>) =
        op.words.iter().partition(|word| crate::parse::ast::type_bits(word).is_some());
    if op.name == "cp" && op.has("tensor") {
        return Ok(());
    }
    let forms: Vec<&Form> = FORMS.iter().filter(|form| lists(form.0, ' ', op.name)).collect();
    if !forms.is_empty() && !forms.iter().any(|form| goes(form, &of, &others)) {
        let knows = |word: &str| forms.iter().any(|form| form.2.split([' ', '/', '?']).any(|one| one == word));
        return Err(match others.iter().find(|word| !knows(word)) {
            Some(word) => format!("'.{word}' is not emulated here"),
            None => "these types and modifiers do not go together".to_owned(),
        });
    }
    let hinted = op.words.iter().any(|word| word.starts_with("L1::") || word.starts_with("L2::"));
    if hinted && matches!(op.name, "ld" | "st" | "atom" | "red") && !matches!(space(op), Space::Generic | Space::Global)
    {
        return Err("only global memory has hints for caches".to_owned());
    }
    if op.name == "cvt" { conversion(op) } else { Ok(()) }
}

/// Rounding is asked for where digits are lost, and nowhere else.
fn conversion(op: &Op<'_>) -> Result<()> {
    let [to_name, from_name] = op.types()[..] else { return Ok(()) };
    let (Some(to), Some(from)) = (Kind::parse(to_name), Kind::parse(from_name)) else { return Ok(()) };
    let any = |words: &str| words.split(' ').any(|word| op.has(word));
    let (integral, fractional) = (any("rni rzi rmi rpi"), any("rn rz rm rp"));
    let small = to == Kind::Bf16 || from == Kind::Bf16;
    let rounds = match (to.is_float(), from.is_float()) {
        (true, true) if to == from => !fractional,
        (true, true) if to.bits() < from.bits() => fractional && !integral,
        // To a wider type nothing is lost; bf16 lets one ask all the same.
        (true, true) => !integral && (small || !fractional),
        _ => true,
    };
    if !rounds {
        return Err("this conversion is rounded otherwise".to_owned());
    }
    let signs = from.signed() && !to.signed();
    let fits =
        !to.is_float() && !from.is_float() && from.bits() + u32::from(!from.signed() && to.signed()) <= to.bits();
    if op.has("sat") && (small || fits && !signs) || op.has("ftz") && to != Kind::F32 && from != Kind::F32 {
        return Err("'.sat' and '.ftz' have no meaning here".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_instruction_has_a_row_in_the_list_of_instructions() {
        let elsewhere = ["ldmatrix", "stmatrix", "mma", "wmma", "wgmma", "vabsdiff2", "vabsdiff4"];
        let known: BTreeSet<&str> = FORMS.iter().flat_map(|form| form.0.split(' ')).chain(elsewhere).collect();
        let rows = include_str!("../../INSTRUCTIONS.md").lines().filter(|line| line.starts_with("| `"));
        let listed: Vec<&str> = rows
            .filter_map(|row| row.split('|').nth(1))
            .flat_map(|names| names.split('`').skip(1).step_by(2))
            .collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), known);
        assert_eq!(listed.len(), known.len(), "an instruction has two rows");
    }
}
