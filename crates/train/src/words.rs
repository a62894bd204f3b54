//! Numbers in lines for the user.

/// `1 rank`, `2 ranks`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {}", plural(number, noun))
}

/// `1 token`, `2.3K tokens`.
pub(crate) fn human_count(number: usize, noun: &str) -> String {
    format!("{} {}", human(number), plural(number, noun))
}

/// `1234567` as `1.2M`.
pub(crate) fn human(count: usize) -> String {
    let units = [(1e9, "B"), (1e6, "M"), (1e3, "K")];
    match units.iter().find(|(size, _)| count as f64 >= *size) {
        Some((size, unit)) => format!("{:.1}{unit}", count as f64 / size),
        None => count.to_string(),
    }
}

/// `1234567` bytes as `1.23 MB`.
pub(crate) fn bytes(count: usize) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")];
    match units.iter().find(|(size, _)| count as f64 >= *size).map(|(size, unit)| (count as f64 / size, unit)) {
        Some((number @ ..10.0, unit)) => format!("{number:.2} {unit}"),
        Some((number, unit)) => format!("{number:.1} {unit}"),
        None => format!("{count} B"),
    }
}

/// `rank 3`, `ranks 3, 5 and 7`, `ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more`.
pub(crate) fn ranks(ranks: &[usize]) -> String {
    const NAMED: usize = 8;
    let name = |ranks: &[usize]| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match ranks {
        [rank] => format!("rank {rank}"),
        [first @ .., last] if ranks.len() <= NAMED => format!("ranks {} and {last}", name(first)),
        _ => format!("ranks {} and {} more", name(&ranks[..NAMED.min(ranks.len())]), ranks.len().saturating_sub(NAMED)),
    }
}

fn plural(number: usize, noun: &str) -> String {
    let plural = if noun.ends_with("ch") { "es" } else { "s" };
    format!("{noun}{}", if number == 1 { "" } else { plural })
}
