//! Multiple choice: which ending of a text does the model find most likely?

use super::{EvalArgs, EvalError, progress, say_json};
use crate::commands::saved::Saved;
use crate::format::count;
use crate::host::device;
use crate::terminal::say;
use crate::trainer::batch::check_tokens;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use model::LanguageModel;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// A question in HellaSwag's format.
#[derive(Debug, PartialEq)]
pub struct Question {
    context: String,
    endings: Vec<String>,
    /// Index of the correct ending.
    label: usize,
}

/// The results of multiple choice, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Figures {
    questions: usize,
    accuracy: f64,
    /// Normalized by length.
    accuracy_norm: f64,
}

/// Reads the questions of a JSONL file.
pub fn read(path: &Path) -> Result<Vec<Question>, EvalError> {
    let text = fs::read_to_string(path).map_err(|source| EvalError::Choices { path: path.into(), source })?;
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let question = |(text, line)| parse(text).map_err(|reason| EvalError::Choice { path: path.into(), line, reason });
    let questions = lines.map(question).collect::<Result<Vec<_>, _>>()?;
    match questions.is_empty() {
        true => Err(EvalError::Invalid(format!("{} has no questions: give one a line", path.display()))),
        false => Ok(questions),
    }
}

fn parse(line: &str) -> Result<Question, String> {
    let question: Map<String, Value> = serde_json::from_str(line).map_err(|error| {
        format!(
            r#"is not a JSON object ({error}): give lines such as {{"ctx": "..", "endings": ["..", ".."], "label": 0}}"#
        )
    })?;
    let field = |name: &str| {
        let fields = || question.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        question.get(name).ok_or_else(|| format!("has no \"{name}\", but {}", fields()))
    };
    let context = field("ctx")?.as_str().ok_or("\"ctx\" is not a string")?.to_string();
    let endings = field("endings")?.as_array().ok_or("\"endings\" is not a list of strings")?;
    let ending = |ending: &Value| match ending.as_str() {
        Some(text) if !text.trim().is_empty() => Ok(text.to_string()),
        _ => Err(format!("the ending {ending} is not a text")),
    };
    let endings = endings.iter().map(ending).collect::<Result<Vec<_>, _>>()?;
    // A string on the Hugging Face hub; empty in the test split, whose answers are not published.
    let label = match field("label")? {
        Value::String(label) => label.trim().parse().ok(),
        label => label.as_u64().and_then(|label| label.try_into().ok()),
    };
    let label = label.filter(|label| *label < endings.len());
    let label = label.ok_or_else(|| {
        let given = &question["label"];
        format!("label is {given}, of {}: give the number of the right one, from 0", count(endings.len(), "ending"))
    })?;
    Ok(Question { context, endings, label })
}

/// Splits into the text before the ending, and the ending with its leading space. The space comes from the ending
/// itself, otherwise from the end of the context, otherwise a single space is added.
fn joined(context: &str, ending: &str) -> (String, String) {
    let before = context.trim_end();
    let tail = match (ending.starts_with(char::is_whitespace), &context[before.len()..]) {
        (true, _) => ending.to_string(),
        (false, "") => format!(" {ending}"),
        (false, space) => format!("{space}{ending}"),
    };
    (before.to_string(), tail)
}

/// Prints how often the correct ending has the highest log-probability, and the highest log-probability per character
/// (`acc` and `acc_norm` of EleutherAI's lm-evaluation-harness).
pub fn answer(questions: &[Question], saved: &Saved, args: &EvalArgs) -> Result<(), EvalError> {
    let (device, tokenizer) = (device::of_command(&args.device)?, saved.tokenizer(args.tokenizer.as_ref())?);
    let model = saved.model(&device)?;
    let bar = progress(questions.len() as u64);
    let (mut right, mut right_normed) = (0, 0);
    for Question { context, endings, label } in questions {
        let mut scores = vec![];
        for ending in endings {
            let (before, tail) = joined(context, ending);
            let (mut tokens, tail) = (tokenizer.encode(&before)?, tokenizer.encode(&tail)?);
            if tokens.is_empty() {
                tokens.extend(tokenizer.eot());
            }
            tokens.extend(&tail);
            let window = &tokens[tokens.len().saturating_sub(model.context() + 1)..];
            check_tokens(window.iter().copied(), saved.config.model.vocab_size())?;
            let scored = log_probabilities(&*model, window, &device);
            let sum: f64 = scored[scored.len().saturating_sub(tail.len())..].iter().sum();
            scores.push((sum, sum / ending.trim_start().chars().count() as f64));
        }
        // The first one wins a tie.
        let best = |of: fn(&(f64, f64)) -> f64| {
            (0..scores.len()).rev().max_by(|a, b| of(&scores[*a]).total_cmp(&of(&scores[*b])))
        };
        right += usize::from(best(|score| score.0) == Some(*label));
        right_normed += usize::from(best(|score| score.1) == Some(*label));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let share = |right: usize| right as f64 / questions.len() as f64;
    let (accuracy, accuracy_norm) = (share(right), share(right_normed));
    if args.json {
        say_json(&Figures { questions: questions.len(), accuracy, accuracy_norm });
        return Ok(());
    }
    say(&count(questions.len(), "question"));
    say(&format!("accuracy {accuracy:.4}, normalized by length {accuracy_norm:.4}"));
    Ok(())
}

/// Log-probability of every token except the first.
fn log_probabilities(model: &dyn LanguageModel, window: &[u32], device: &Device) -> Vec<f64> {
    let t = window.len().saturating_sub(1);
    if t == 0 {
        return vec![];
    }
    let ids: Vec<i32> = window.iter().map(|token| *token as i32).collect();
    let tokens_bt = Tensor::<2, Int>::from_data(TensorData::new(ids[..t].to_vec(), [1, t]), device);
    let next_bt1 = Tensor::<3, Int>::from_data(TensorData::new(ids[1..].to_vec(), [1, t, 1]), device);
    let log_btv = activation::log_softmax(model.logits(tokens_bt), 2);
    log_btv.gather(2, next_bt1).into_data().iter::<f64>().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_space_stands_between_context_and_ending() {
        let cases = [
            (("To be,", "or"), ("To be,", " or")),
            (("To be,", " or"), ("To be,", " or")),
            (("To be, ", "or"), ("To be,", " or")),
            (("To be, ", " or"), ("To be,", " or")),
            (("Q: to be?\nA:\n", "or"), ("Q: to be?\nA:", "\nor")),
            (("", "or"), ("", " or")),
        ];
        for ((context, ending), expected) in cases {
            let (before, tail) = joined(context, ending);
            assert_eq!((&before[..], &tail[..]), expected, "{context:?} {ending:?}");
        }
    }

    #[test]
    fn a_label_is_a_number_or_its_digits_and_what_is_none_is_answered() {
        let question =
            |label: &str| parse(&format!(r#"{{"ind": 4, "ctx": "a", "endings": ["b", "c"], "label": {label}}}"#));
        for label in ["1", "\"1\"", "\" 1 \""] {
            assert_eq!(question(label).unwrap().label, 1);
        }
        for label in ["2", "\"2\"", "-1", "\"\"", "null", "0.5", "\"b\""] {
            let expected = format!("label is {label}, of 2 endings: give the number of the right one, from 0");
            assert_eq!(question(label).unwrap_err(), expected);
        }
        let error = |line: &str| parse(line).unwrap_err();
        assert_eq!(error(r#"{"endings": [], "query": "a"}"#), "has no \"ctx\", but endings, query");
        assert_eq!(error(r#"{"ctx": "a", "endings": ["b", 3]}"#), "the ending 3 is not a text");
        assert_eq!(error(r#"{"ctx": "a", "endings": ["b"]}"#), "has no \"label\", but ctx, endings");
        assert!(error("[]").starts_with("is not a JSON object (invalid type"));
    }
}
