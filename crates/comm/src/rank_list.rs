//! Lists of ranks: for people, and short in files.

use serde::{Deserialize, Deserializer, Serializer, de};

/// Most entries of a list for people, and the most ranks that it names one by one.
const ENTRIES: usize = 6;

/// Most ranks of a list in a file.
const MOST: usize = 1 << 20;

/// Formats ranks as `rank 3` or `ranks 0, 1 and 2`, and more of them as `ranks 0 to 6 and 8 to 15` or
/// `512 ranks (0, 2, 4, 6, 8, 10, ...)`.
pub fn rank_list(ranks: &[usize]) -> String {
    if let [rank] = ranks {
        return format!("rank {rank}");
    }
    let mut entries: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    if ranks.len() > ENTRIES {
        let run = |run: &[usize]| match run {
            [rank] => rank.to_string(),
            run => format!("{} to {}", run[0], run[run.len() - 1]),
        };
        entries = ranks.chunk_by(|one, next| *next == one + 1).map(run).collect();
    }
    if entries.len() > ENTRIES {
        entries.truncate(ENTRIES);
        return format!("{} ranks ({}, ...)", ranks.len(), entries.join(", "));
    }
    match entries.split_last() {
        Some((last, [])) => format!("ranks {last}"),
        Some((last, before)) => format!("ranks {} and {last}", before.join(", ")),
        None => "no rank".into(),
    }
}

/// Writes ranks as ranges, for `#[serde(with)]`: `0-6,8` are the ranks 0 to 6 and 8, and `0-56:8` is every eighth.
pub(crate) fn serialize<S: Serializer>(ranks: &[usize], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&ranges(ranks))
}

/// Reads what [`serialize`] writes.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| de::Error::custom(format!("\"{text}\" is no list of ranks such as 0-6,8")))
}

fn ranges(ranks: &[usize]) -> String {
    let (mut entries, mut rest) = (vec![], ranks);
    while let [first, after @ ..] = rest {
        let step = after.first().map_or(0, |next| next.saturating_sub(*first));
        let steps = rest.windows(2).take_while(|pair| step > 0 && pair[1].checked_sub(pair[0]) == Some(step)).count();
        // Two ranks that are apart are shorter one by one, and the second may begin a range.
        let steps = if step > 1 && steps < 2 { 0 } else { steps };
        let last = rest[steps];
        entries.push(match (steps, step) {
            (0, _) => first.to_string(),
            (_, 1) => format!("{first}-{last}"),
            _ => format!("{first}-{last}:{step}"),
        });
        rest = &rest[steps + 1..];
    }
    entries.join(",")
}

fn parse(text: &str) -> Option<Vec<usize>> {
    let mut ranks = vec![];
    for entry in text.split(',').filter(|_| !text.is_empty()) {
        let (range, step) = entry.split_once(':').unwrap_or((entry, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last, step]: [usize; 3] = [first.parse().ok()?, last.parse().ok()?, step.parse().ok()?];
        if step == 0 || last < first || ranks.len() + (last - first) / step >= MOST {
            return None;
        }
        ranks.extend((first..=last).step_by(step));
    }
    Some(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_read_few_ranks_one_by_one_and_many_as_ranges() {
        for (ranks, expected) in [
            (vec![], "no rank"),
            (vec![3], "rank 3"),
            (vec![0, 1, 2], "ranks 0, 1 and 2"),
            ((0..7).chain(8..16).collect(), "ranks 0 to 6 and 8 to 15"),
            ((0..16).collect(), "ranks 0 to 15"),
            ((0..1024).step_by(2).collect(), "512 ranks (0, 2, 4, 6, 8, 10, ...)"),
        ] {
            assert_eq!(rank_list(&ranks), expected);
        }
    }

    #[test]
    fn groups_of_a_mesh_are_short_in_files() {
        for (ranks, expected) in [
            (vec![], ""),
            (vec![5], "5"),
            ((0..1024).collect(), "0-1023"),
            ((3..1024).step_by(8).collect(), "3-1019:8"),
            (vec![0, 1, 8, 9], "0-1,8-9"),
            (vec![0, 8], "0,8"),
            ((0..4).chain(16..20).collect(), "0-3,16-19"),
        ] {
            assert_eq!(ranges(&ranks), expected);
        }
        for wrong in ["a", "0-", "3-1", "0-8:0", "0-99999999999", "0,,1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_list_is_read_as_it_was_written(ranks in proptest::collection::vec(0usize..40, 0..20)) {
            prop_assert_eq!(parse(&ranges(&ranks)), Some(ranks));
        }
    }
}
