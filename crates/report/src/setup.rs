//! How a run was set up: what its processes report, or for older runs the configuration and the events.

use crate::config::{self, Entries};
use crate::lines::Setup;
use crate::log::{Log, RESUMED};
use std::collections::HashMap;

/// The setups of a run, without those that differ from the previous one only in their time and step.
pub(crate) fn setups(log: &Log, config: &Entries) -> Vec<Setup> {
    let mut setups = if log.setups.is_empty() { of_older(log, config) } else { log.setups.clone() };
    name_data_alike(setups.iter_mut());
    setups.dedup_by(|later, before| {
        let later = Setup { started: before.started.clone(), step: before.step, ..later.clone() };
        later == *before
    });
    setups
}

/// Gives the same data the name that it had first. Two paths name the same data if one ends with the other, as
/// `/home/me/text.txt` ends with `text.txt`, and the numbers of tokens are equal.
pub(crate) fn name_data_alike<'a>(setups: impl Iterator<Item = &'a mut Setup>) {
    // Keyed by what all names of the same data share, so that few are compared.
    let mut names = HashMap::<_, Vec<String>>::new();
    for setup in setups {
        let Some(data) = &mut setup.data else { continue };
        let file = parts(data).next().map(str::to_owned);
        let names = names.entry((file, setup.train_tokens, setup.val_tokens)).or_default();
        match names.iter().take(NAMES).find(|name| parts(name).zip(parts(data)).all(|(a, b)| a == b)) {
            Some(name) => data.clone_from(name),
            None => names.push(data.clone()),
        }
    }
}

/// Maximum number of compared names that share the last part and the numbers of tokens.
const NAMES: usize = 100;

/// A path's parts from its end, up to a `..`, beyond which they no longer identify the location.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.rsplit('/').filter(|part| !["", "."].contains(part)).take_while(|part| *part != "..")
}

/// The setups of a run whose processes do not report them. The configuration is that of the last process; the events
/// give the number of ranks of the resumed ones.
fn of_older(log: &Log, config: &Entries) -> Vec<Setup> {
    let text = |key| config::get(config, key).map(str::to_owned);
    let whole = |key| config::get(config, key).and_then(|value| value.parse().ok());
    let setup = |step, ranks| Setup {
        step,
        ranks,
        strategy: text("parallel.strategy"),
        data: text("data.source"),
        device: text("train.device"),
        global_batch_size: whole("train.global_batch_size"),
        micro_batch_size: whole("train.micro_batch_size"),
        seq_len: whole("train.seq_len"),
        ..Setup::default()
    };
    let resumed = log.events.iter().filter_map(|(step, text)| Some((*step, text.strip_prefix(RESUMED)?)));
    let ranks = |text: &str| text.rsplit_once(" on ")?.1.split(' ').next()?.parse().ok();
    let mut setups: Vec<_> = resumed.map(|(step, text)| setup(step, ranks(text))).collect();
    let starts_anew = setups.first().is_none_or(|first| log.steps.first().is_some_and(|step| step.step <= first.step));
    if starts_anew {
        let ranks = if setups.is_empty() { whole("parallel.gpus") } else { None };
        setups.insert(0, setup(0, ranks));
    }
    setups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(setups: &[Setup]) -> Vec<(u64, Option<u64>)> {
        setups.iter().map(|setup| (setup.step, setup.ranks)).collect()
    }

    #[test]
    fn a_setup_is_kept_where_it_changes() {
        let lines = [
            r#"{"started":"a","step":0,"ranks":4,"data":"x"}"#,
            r#"{"started":"b","step":100,"ranks":4,"data":"x"}"#,
            r#"{"started":"c","step":120,"ranks":2,"data":"x"}"#,
        ];
        let setups = setups(&Log::of(&lines), &vec![]);
        assert_eq!(ranks(&setups), [(0, Some(4)), (120, Some(2))]);
        assert_eq!(setups[0].started.as_deref(), Some("a"));
    }

    #[test]
    fn the_same_data_by_another_path_are_the_same() {
        let named = |names: &[&str]| -> Vec<String> {
            let setup = |data: &&str| Setup { data: Some((*data).into()), train_tokens: Some(9), ..Setup::default() };
            let mut setups: Vec<_> = names.iter().map(setup).collect();
            name_data_alike(setups.iter_mut());
            setups.into_iter().filter_map(|setup| setup.data).collect()
        };
        assert_eq!(named(&["data/ru.txt", "/home/a/data/ru.txt", "./ru.txt", "../data/ru.txt"]), ["data/ru.txt"; 4]);
        assert_eq!(named(&["/a/ru.txt", "/b/ru.txt"]), ["/a/ru.txt", "/b/ru.txt"]);
        assert_eq!(named(&["shakespeare", "copies/shakespeare", "/"]), ["shakespeare", "shakespeare", "/"]);

        let lines = [
            r#"{"started":"a","step":0,"ranks":1,"data":"data/ru.txt","train_tokens":9}"#,
            r#"{"started":"b","step":10,"ranks":1,"data":"/home/a/data/ru.txt","train_tokens":9}"#,
            r#"{"started":"c","step":20,"ranks":1,"data":"/home/a/data/ru.txt","train_tokens":8}"#,
        ];
        let setups = setups(&Log::of(&lines), &vec![]);
        let told: Vec<_> = setups.iter().map(|setup| (setup.step, setup.train_tokens)).collect();
        assert_eq!(told, [(0, Some(9)), (20, Some(8))], "fewer tokens are other data");
    }

    #[test]
    fn an_older_run_has_what_configuration_and_events_tell() {
        let config = vec![("parallel.gpus".to_owned(), "2".to_owned()), ("data.source".to_owned(), "x".to_owned())];
        let of_config = setups(&Log::of(&[r#"{"step":1,"loss":2}"#]), &config);
        assert_eq!((ranks(&of_config), of_config[0].data.as_deref()), (vec![(0, Some(2))], Some("x")));
        let resumed = r#"{"step":1,"event":"resumed from a/step-1 on 2 ranks"}"#;
        assert_eq!(
            ranks(&setups(&Log::of(&[r#"{"step":1,"loss":2}"#, resumed]), &config)),
            [(0, None), (1, Some(2))],
            "how many the first process had is not known"
        );
        let elsewhere = [resumed, r#"{"step":2,"loss":2}"#];
        assert_eq!(ranks(&setups(&Log::of(&elsewhere), &config)), [(1, Some(2))], "it began as a copy of another run");
    }
}
