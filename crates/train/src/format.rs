//! Formatting of numbers and words in lines for the user.

use std::time::Duration;

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

/// `0.04 s`, `2.5 s`, `45 s`, `1 min 33 s`, `2 h 5 min`, `3 d 4 h`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match [seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60] {
        [0, 0, 0, 0] => format!("{:.2} s", time.as_secs_f64()),
        [0, 0, 0, 1..10] => format!("{:.1} s", time.as_secs_f64()),
        [0, 0, 0, seconds] => format!("{seconds} s"),
        [0, 0, minutes, seconds] => format!("{minutes} min {seconds} s"),
        [0, hours, minutes, _] => format!("{hours} h {minutes} min"),
        [days, hours, ..] => format!("{days} d {hours} h"),
    }
}

/// Breaks a text into lines of at most `room` characters, at spaces, and within words that are longer.
pub(crate) fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        let used = lines[lines.len() - 1].chars().count();
        if used > 0 && used + 1 + word.len() > room {
            lines.push(String::new());
        } else if used > 0 {
            lines.last_mut().expect("there is a line").push(' ');
        }
        while word.len() > room {
            let rest = word.split_off(room);
            lines.last_mut().expect("there is a line").extend(std::mem::replace(&mut word, rest));
            lines.push(String::new());
        }
        lines.last_mut().expect("there is a line").extend(word);
    }
    lines
}

/// Quotes `text` as one word of a shell command line.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=@%+".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn plural(number: usize, noun: &str) -> String {
    let plural = if noun.ends_with("ch") { "es" } else { "s" };
    format!("{noun}{}", if number == 1 { "" } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_two_units_at_most() {
        let said = |seconds: f64| duration(Duration::from_secs_f64(seconds));
        let times = [0.04, 9.4, 9.96, 59.7, 93.0, 7500.0, 273_600.0].map(said);
        assert_eq!(times, ["0.04 s", "9.4 s", "10 s", "1 min 0 s", "1 min 33 s", "2 h 5 min", "3 d 4 h"]);
    }

    #[test]
    fn a_shell_reads_a_quoted_word_as_it_was() {
        for word in ["runs/a-001", "my run", "it's", "$HOME;`ls`", "", "a\nb", "\u{e9}"] {
            let echo = format!("printf %s {}", quoted(word));
            let answer = std::process::Command::new("sh").args(["-c", &echo]).output().unwrap();
            assert_eq!(String::from_utf8(answer.stdout).unwrap(), word);
        }
    }
}
