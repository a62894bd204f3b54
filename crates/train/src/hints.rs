//! Errors of `data` and `checkpoint` in the words of the command line: where those crates name what a caller can do,
//! this names the flag, the key or the command.

use crate::format::quoted;
use crate::host::launch::number_among_several;
use crate::program;
use crate::run::folder::run_of;
use checkpoint::CheckpointError;
use data::DataError;
use std::path::Path;

/// The message of an error of `data`.
pub(crate) fn data(error: &DataError) -> String {
    let (text, program) = (error.to_string(), program::name());
    let say = |caller: &str, user: &str| replace_last(&text, caller, user);
    match error {
        DataError::NoSource => {
            "no data is named, and a run that was imported has none yet: give a text or tokens with --data SRC".into()
        }
        DataError::Missing { advice, .. } if advice.ends_with("give other data") => {
            say("give other data", "give other data (to a run with --data)")
        }
        DataError::JsonField { .. }
        | DataError::ParquetColumn { .. }
        | DataError::ParquetType { .. }
        | DataError::TableColumn { other: None, .. } => say(
            "as text_field",
            &format!(
                "as data.text_field (--text-field NAME of `{program} prepare` and `{program} eval`, --set data.text_field=NAME in \
                 training)"
            ),
        ),
        DataError::Tokens { .. } => say("prepare it again", &format!("prepare it again ({program} prepare)")),
        DataError::Meta { .. } => {
            say("prepare the folder again", &format!("prepare the folder again ({program} prepare)"))
        }
        DataError::DamagedCache { source, .. } => say(&source.to_string(), &data(source)),
        DataError::ValFraction { .. } => {
            say("val_fraction", &format!("data.val_fraction (--val-fraction of `{program} prepare`)"))
        }
        DataError::MissingCrate { .. } | DataError::NotLocked { .. } => say("(shakespeare)", "(--data shakespeare)"),
        DataError::OtherTokenizer { .. } => say(
            "use the tokenizer of these tokens, give this folder as tokenizer",
            "train with the tokenizer of these tokens, set data.tokenizer to this folder (a resume then needs --partial \
             and --set model.vocab_size=0)",
        ),
        DataError::TooShort { .. } => {
            text.replace("lower seq_len", "lower train.seq_len").replace(" val_fraction", " data.val_fraction")
        }
        DataError::ValidationText { .. } => say("made those that train", "made those that train (data.tokenizer)"),
        DataError::NoRow { .. } => say("shorter rows", "shorter rows (data.buckets)"),
        _ => text,
    }
}

/// The message of an error of `checkpoint`.
pub(crate) fn checkpoint(error: &CheckpointError) -> String {
    let (text, program) = (error.to_string(), program::name());
    let say = |caller: &str, user: &str| replace_last(&text, caller, user);
    match error {
        CheckpointError::Write { .. } => say("write to another folder", "give the run another folder with --out"),
        CheckpointError::Read { path, .. } | CheckpointError::Broken { path, .. }
            if ["; take the one before (", "; take another one ("].iter().any(|advice| text.contains(advice)) =>
        {
            text + &path.ancestors().find_map(run_of).map_or(String::new(), look_for_whole)
        }
        CheckpointError::OtherFormat { .. } => {
            let (export, import) = (format!("{program} export --out DIR"), format!("{program} import --hf DIR"));
            text + &format!(
                ", or with that version `{export}` and with this one `{import}`, which takes the weights but not AdamW's \
                 moments"
            )
        }
        CheckpointError::NoBest { .. } => {
            say("no best validation", "no best validation (train.val_every, checkpoint.keep_best)")
        }
        _ => text,
    }
}

/// Says what looks for a checkpoint of a run that is whole. Processes of mpirun do not look at every byte.
fn look_for_whole(run: &Path) -> String {
    let run = quoted(&run.display().to_string());
    match number_among_several() {
        None => format!("; in training, `--resume auto --out {run}` takes the newest one that is whole"),
        Some(_) => String::new(),
    }
}

/// The message for a run whose checkpoints are damaged, each with its problem, the newest first.
pub(crate) fn all_damaged(run: &Path, problems: &[String], upload: Option<&str>) -> String {
    const SHOWN: usize = 5;
    let (which, is) = match problems.len() {
        1 => ("the only checkpoint".into(), "is"),
        all => (format!("all {all} checkpoints"), "are"),
    };
    let more = problems.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    let list: String = problems.iter().take(SHOWN).map(|problem| format!("\n  {problem}")).collect();
    let advice = match upload {
        Some(url) => format!("`--resume {url} --out DIR` resumes from the newest uploaded one, in a new folder DIR"),
        None => format!(
            "start a new run with another --out, or one from an earlier export: `{} import --hf EXPORT --out DIR`, then \
             `--resume DIR`",
            program::name()
        ),
    };
    format!("{which} of {} {is} damaged:{list}{more}\n{advice}", run.display())
}

/// `text` with the last occurrence of a phrase replaced: remedies come last, after names that may contain anything.
fn replace_last(text: &str, phrase: &str, by: &str) -> String {
    let at = text.rfind(phrase);
    debug_assert!(at.is_some(), "{phrase:?} is not in {text:?}");
    at.map_or(text.into(), |at| [&text[..at], by, &text[at + phrase.len()..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// Each message is that of an error, or ends with the given words.
    #[test]
    fn remedies_name_flags_keys_and_commands() {
        let (path, problem, field) = (|| "a".into(), || "torn".into(), || "text".into());
        let text_field = "name the one that holds the text as data.text_field (--text-field NAME of `train prepare` \
                          and `train eval`, --set data.text_field=NAME in training)";
        let torn = || DataError::Tokens { path: path(), problem: problem() };
        let torn_text = "token file a: torn; prepare it again (train prepare), or copy it again";
        let longer = "give a longer text, lower train.seq_len, or";
        let held_out = "the fraction held out for validation";
        let is = [
            (DataError::NoSource, "give a text or tokens with --data SRC".into()),
            (
                DataError::Missing { path: path(), advice: "check the path, or give other data".into() },
                "data a does not exist: check the path, or give other data (to a run with --data)".into(),
            ),
            (DataError::Missing { path: path(), advice: "did you mean b?".into() }, "exist: did you mean b?".into()),
            (
                DataError::JsonField { path: path(), line: 2, field: field(), fields: "b".into() },
                format!("a, line 2: has no field \"text\", but b: {text_field}"),
            ),
            (
                DataError::ParquetColumn { path: path(), field: field(), columns: "b".into() },
                format!("a has no column \"text\" of strings, but b: {text_field}"),
            ),
            (
                DataError::ParquetType { path: path(), field: field(), holds: "i32".into() },
                format!("column \"text\" of a holds i32, not strings: {text_field}"),
            ),
            (
                DataError::TableColumn { path: path(), field: field(), columns: "b".into(), other: None },
                format!("a names no column \"text\" in its first line, but b: {text_field}"),
            ),
            (torn(), torn_text.into()),
            (
                DataError::DamagedCache { path: path(), source: torn().into() },
                format!(
                    "the prepared data a in the cache is damaged: delete this folder and start again ({torn_text})"
                ),
            ),
            (
                DataError::Meta { path: path(), problem: problem() },
                "a: torn; prepare the folder again (train prepare)".into(),
            ),
            (
                DataError::ValFraction { value: 2.0 },
                "data.val_fraction (--val-fraction of `train prepare`) is 2: give a fraction above 0 and at most 1, such \
                 as 0.1 for a tenth"
                    .into(),
            ),
            (
                DataError::NotLocked { name: "b".into() },
                "give a text, or take the one that is built in (--data shakespeare)".into(),
            ),
            (
                DataError::OtherTokenizer { path: path(), given: "b".into() },
                "to train with the tokenizer of these tokens, set data.tokenizer to this folder (a resume then needs \
                 --partial and --set model.vocab_size=0)"
                    .into(),
            ),
            (
                DataError::TooShort { split: "training", found: 1, needed: 9, total: 2 },
                "needs at least seq_len + 1 = 9 (2 in all): give a longer text, or lower train.seq_len".into(),
            ),
            (
                DataError::TooShort { split: "training", found: 1, needed: 9, total: 99 },
                format!("{longer} lower data.val_fraction, {held_out}"),
            ),
            (
                DataError::TooShort { split: "validation", found: 1, needed: 9, total: 99 },
                format!("{longer} raise data.val_fraction, {held_out}"),
            ),
            (
                DataError::ValidationText { path: path() },
                "give tokens to validate on, or the tokenizer that made those that train (data.tokenizer)".into(),
            ),
            (DataError::NoRow { found: 1, needed: 9 }, "give a longer text, or shorter rows (data.buckets)".into()),
        ];
        for (error, end) in is {
            let text = data(&error);
            assert!(text.ends_with(&end), "{text}");
        }
    }

    #[test]
    fn remedies_for_checkpoints_name_flags_and_keys() {
        let run = tempfile::tempdir().unwrap();
        let step = |step: u64| run.path().join(format!("checkpoints/step-{step}"));
        let folder = checkpoint::Folder::of_run(run.path());
        let index = checkpoint::Index { step: 3, world_size: 1, ..checkpoint::Index::default() };
        checkpoint::write_rank(&folder.partial(3), 0, &[], &checkpoint::Written::default()).unwrap();
        folder.commit(index, &[]).unwrap();
        std::fs::create_dir_all(step(5)).unwrap(); // damaged too
        let older = format!("take the one before ({}@3)", run.path().display());
        let auto = format!("{older}; in training, `--resume auto --out {}` takes the newest one", run.path().display());
        let is = [
            (
                CheckpointError::Write { path: "a".into(), source: io::ErrorKind::StorageFull.into() },
                "older checkpoints are unchanged: make room, or give the run another folder with --out".into(),
            ),
            (
                CheckpointError::Read { path: step(6).join("b"), source: io::ErrorKind::NotFound.into() },
                format!("; {auto} that is whole"),
            ),
            (
                CheckpointError::Broken { path: step(6), reason: "torn".into() },
                format!("step-6: torn: the checkpoint cannot be trusted; {auto} that is whole"),
            ),
            (
                CheckpointError::Broken { path: "a".into(), reason: "torn".into() },
                "a: torn: the checkpoint cannot be trusted; take an older one".into(),
            ),
            (CheckpointError::NotFinite { path: step(6), parameter: "w".into(), value: f32::INFINITY }, older.clone()),
            (
                CheckpointError::OtherFormat { path: "a".into(), format: 1 },
                "use the version of Kiln that wrote it, or with that version `train export --out DIR` and with this \
                 one `train import --hf DIR`, which takes the weights but not AdamW's moments"
                    .into(),
            ),
            (
                CheckpointError::NoBest { path: "a".into(), newest: 7 },
                "a: the checkpoint of step 7 knows no best validation (train.val_every, checkpoint.keep_best): leave \
                 @best out for the newest, or name a step, as in RUN@7"
                    .into(),
            ),
        ];
        for (error, end) in is {
            let text = checkpoint(&error);
            assert!(text.ends_with(&end), "{text}");
        }
    }
}
