//! From a text to a model that others load: prepare, train, go on, evaluate, generate, export, import, report.

mod common;

use common::{TINY, metrics, reference, succeed, values};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

#[test]
fn a_text_becomes_tokens_a_model_a_folder_for_transformers_and_a_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, text) = (folder.path(), "The five boxing wizards jump quickly over the lazy dog. ".repeat(200));
    fs::write(folder.join("text.txt"), &text).unwrap();
    let train = |args: &str| succeed(folder, &args.split_whitespace().collect::<Vec<_>>());

    let (prepared, _) = train("prepare text.txt --train-bpe 300 --out tokens");
    assert!(prepared.contains("of 1 document to tokens, 300 tokens in the vocabulary"), "{prepared}");
    let args: Vec<&str> = TINY.iter().copied().filter(|arg| *arg != "--data=text.txt").collect();
    succeed(folder, &[&args[..], &["--data=tokens", "--gpus=2", "--steps=8", "--out=run"]].concat());
    train("--resume run --gpus 4 --steps 12");
    assert_eq!(values(&metrics(&folder.join("run")), "loss").len(), 12);

    let figure = |answer: &str, name: &str| -> f64 {
        let line = answer.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{answer}"));
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (evaluated, _) = train("eval run --data text.txt");
    assert!((figure(&evaluated, "perplexity ").ln() - figure(&evaluated, "loss ")).abs() < 1e-3, "{evaluated}");

    let bits = figure(&evaluated, "loss ") / std::f64::consts::LN_2;
    let tokens_a_byte = bits.recip() * figure(&evaluated, "bits per byte ");
    let bytes_a_token: f64 = prepared.rsplit(", ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((tokens_a_byte * bytes_a_token - 1.0).abs() < 0.01, "{evaluated}{prepared}");

    let generate = "generate run --prompt wizards --tokens 12 --temperature 0";
    let (alone, speed) = train(generate);
    assert!(alone.starts_with("wizards") && speed.contains("12 tokens, "), "{alone}{speed}");
    fs::write(folder.join("prompts"), "The\nwizards\n").unwrap();
    let (batch, _) = train("generate run --prompts prompts --tokens 12 --temperature 0");
    assert_eq!(batch.lines().nth(1).unwrap(), alone.trim_end(), "a prompt has the same tokens in a batch");

    train("export run --out exported/");
    assert!(folder.join("exported/tokenizer.json").is_file());
    train("import --hf exported --out again");
    assert_eq!(train(&generate.replace("run", "again")).0, alone, "the tokenizer came along too");
    let (inspected, _) = train("inspect run");
    assert!(inspected.contains("step 12") && inspected.contains("blocks.1.mlp.c_fc.weight"), "{inspected}");
    train("report run");
    let page = fs::read_to_string(folder.join("run/report.html")).unwrap();
    assert!(page.contains("</html>") && page.contains("resumed from step-8 on "), "{page}");

    train("export run --full-state state.safetensors");
    let state = fs::read(folder.join("state.safetensors")).unwrap();
    let names = SafeTensors::deserialize(&state).unwrap().names().len();
    assert_eq!(names % 3, 0, "values and two moments of each parameter");
}

/// A folder with a run on the bytes of its `text.txt`, of which the last 228 of 2280 validate.
fn folder_with_run() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), "The five boxing wizards jump quickly. ".repeat(60)).unwrap();
    succeed(
        folder.path(),
        &[TINY, &["--steps=300", "--set=optim.lr=5e-3", "--set=train.val_batches=0", "--out=run"]].concat(),
    );
    folder
}

#[test]
fn a_split_of_the_runs_own_and_of_prepared_data_is_evaluated_and_all_of_another_text() {
    let folder = folder_with_run();
    let train = |args: &str| succeed(folder.path(), &args.split_whitespace().collect::<Vec<_>>()).0;
    fs::copy(folder.path().join("text.txt"), folder.path().join("another.txt")).unwrap();
    train("prepare text.txt --val-fraction 0.5 --out tokens");
    for (args, expected) in [
        ("eval run", "validation split of text.txt: 224 tokens predicted, in windows of 16\n"),
        ("eval run --data ./text.txt", "validation split of ./text.txt: 224 "),
        ("eval run --split train", "training split of text.txt: 2048 "),
        ("eval run --split all", "text.txt: 2272 "),
        ("eval run --data another.txt", "another.txt: 2272 "),
        (
            "eval run --data another.txt --split val --seq-len 8",
            "validation split of another.txt: 224 tokens predicted, in windows of 8",
        ),
        ("eval run --data tokens", "validation split of tokens: 1136 "),
        ("eval run --data tokens --split all", "tokens: 2272 "),
    ] {
        // A run knows its data wherever it goes on.
        let answer = train(args).replace(&format!("{}/", folder.path().display()), "");
        assert!(answer.starts_with(expected), "{args}: {answer}");
    }
    let val_loss = values(&metrics(&folder.path().join("run")), "val_loss")[0];
    let (loss, bits) = (format!("\nloss {val_loss:.4} nats per token\n"), val_loss / std::f64::consts::LN_2);
    let answer = train("eval run");
    assert!(answer.contains(&loss) && answer.ends_with(&format!("\nbits per byte {bits:.4}\n")), "{val_loss} {answer}");
}

/// Against the sum of log-probabilities of an ending's bytes, from the logits of the exported model.
#[test]
fn multiple_choice_takes_the_ending_with_the_highest_sum_and_with_the_highest_mean_of_a_naive_computation() {
    let folder = folder_with_run();
    let words = ["wizards", "jump", "quickly.", "The", "five", "boxing", "jumps", "box", "wizard", "quick"];
    let word = |number: usize| words[number % 10];
    let questions: Vec<(String, Vec<String>)> = (0..20)
        .map(|i| {
            let ending =
                |e: usize| (0..=(i + e) % 3).map(|w| word(7 * i + 3 * e + 2 * w)).collect::<Vec<_>>().join(" ");
            (format!("{} {}", word(i), word(3 * i + 1)), (0..4).map(ending).collect())
        })
        .collect();

    succeed(folder.path(), &["export", "run", "--out=exported"]);
    let texts = questions.iter().flat_map(|(context, endings)| endings.iter().map(move |e| format!("{context} {e}")));
    let padded =
        texts.map(|text| format!("{text:_<80}").bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(","));
    let padded = padded.collect::<Vec<_>>().join(";"); // what follows does not change what a causal model says before
    succeed(folder.path(), &["logits", "--hf=exported", "--tokens", &padded, "--out=logits.safetensors"]);
    let logits = &tensors(&folder.path().join("logits.safetensors"))["logits"];
    let log_probability = |row: usize, at: usize, byte: u8| {
        let logits = &logits[(row * 80 + at) * 256..][..256];
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        f64::from(logits[usize::from(byte)]) - sum.ln()
    };
    let best = |of_mean: bool, question: usize| {
        let (context, endings) = &questions[question];
        let score = |e: usize| {
            let bytes = format!(" {}", endings[e]).into_bytes();
            let terms =
                bytes.iter().zip(context.len() - 1..).map(|(byte, at)| log_probability(question * 4 + e, at, *byte));
            terms.sum::<f64>() / if of_mean { endings[e].len() as f64 } else { 1.0 }
        };
        (0..4).max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap()
    };

    let [by_sum, by_mean] = [false, true].map(|of_mean| (0..20).map(|i| best(of_mean, i)).collect::<Vec<_>>());
    let share =
        |labels: &[usize], right: &[usize]| labels.iter().zip(right).filter(|(a, b)| a == b).count() as f64 / 20.0;
    assert!(share(&by_sum, &by_mean) < 1.0, "the two rules are told apart");
    // With and without a space of its own, the label as a number and as a string.
    for (labels, space, quote) in [(&by_sum, "", ""), (&by_sum, " ", "\""), (&by_mean, " ", ""), (&by_mean, "", "\"")] {
        let line = |((context, endings), label): (&(String, Vec<String>), &usize)| {
            let endings: Vec<_> = endings.iter().map(|ending| format!("{space}{ending}")).collect();
            format!(r#"{{"ind": 1, "ctx": "{context}", "endings": {endings:?}, "label": {quote}{label}{quote}}}"#)
        };
        let lines: Vec<_> = questions.iter().zip(labels).map(line).collect();
        fs::write(folder.path().join("questions.jsonl"), lines.join("\n")).unwrap();
        let (answer, _) = succeed(folder.path(), &["eval", "run", "--choices=questions.jsonl"]);
        let (sum, mean) = (share(labels, &by_sum), share(labels, &by_mean));
        assert_eq!(answer, format!("20 questions\naccuracy {sum:.4}, normalised by length {mean:.4}\n"));
    }
}

#[test]
fn a_prompt_may_be_empty_or_longer_than_the_context_and_a_run_on_tokens_is_given_its_tokenizer() {
    let folder = folder_with_run();
    let run =
        |args: &[&str]| succeed(folder.path(), &[&["generate"], args, &["--tokens=9", "--temperature=0"]].concat());
    let (begun, _) = run(&["run", "--prompt="]);
    fs::write(folder.path().join("end"), "\0").unwrap();
    assert_eq!(format!("\0{begun}"), run(&["run", "--prompts=end"]).0, "from the end of the text before");

    let long = "wizards ".repeat(40);
    let (_, stderr) = run(&["run", "--prompt", &long]);
    let cut = "the prompt has 320 tokens, and the model's context is 256: its first 64 tokens are not seen\n";
    assert!(stderr.starts_with(cut), "{stderr}");
    fs::write(folder.path().join("prompts"), format!("a\n{}\n", &long[..257])).unwrap();
    let (_, stderr) = run(&["run", "--prompts=prompts"]);
    assert!(
        stderr.starts_with("prompt 2 has 257 tokens, and the model's context is 256: its first 1 token is not"),
        "{stderr}"
    );

    let tokens: Vec<u8> =
        fs::read(folder.path().join("text.txt")).unwrap().into_iter().flat_map(|byte| [byte, 0]).collect();
    fs::write(folder.path().join("tokens.bin"), tokens).unwrap();
    let blind = TINY.iter().copied().filter(|arg| *arg != "--data=text.txt");
    let blind = blind.chain([
        "--data=tokens.bin",
        "--set=model.vocab_size=256",
        "--set=optim.lr=5e-3",
        "--steps=300",
        "--out=blind",
    ]);
    succeed(folder.path(), &blind.collect::<Vec<_>>());
    let (text, _) = run(&["blind", "--prompt=wizards", "--tokenizer=byte"]);
    assert_eq!(text, run(&["run", "--prompt=wizards"]).0, "the same tokens, so the same model");
    let evaluate =
        |args: &[&str]| succeed(folder.path(), &[&["eval"], args, &["--data=text.txt", "--split=all"]].concat()).0;
    assert_eq!(evaluate(&["blind", "--tokenizer=byte"]), evaluate(&["run"]));
}

/// Tensors of a safetensors file.
fn tensors(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |data: &[u8]| data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    file.iter().map(|(name, view)| (name.to_string(), floats(view.data()))).collect()
}

#[test]
fn a_model_of_transformers_is_imported_trained_and_exported_under_its_own_names() {
    for (name, trained, context) in [("gpt2-a", "wte.weight", 32), ("deepseek-v3-q-lora", "lm_head.weight", 64)] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("text.txt"), "The five boxing wizards jump quickly. ".repeat(60)).unwrap();
        let train = |args: &str| succeed(folder.path(), &args.split_whitespace().collect::<Vec<_>>());
        let (imported, _) = train(&format!("import --hf {} --out run", reference(name).display()));
        let defaults = "lr 3e-5, constant after 20 steps of warm-up, no weight decay, 32 sequences of";
        assert!(imported.contains(&format!("set for fine-tuning: {defaults} {context} tokens a step\n")), "{imported}");
        let refused = common::run(folder.path(), &["--resume", "run"]);
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(
            !refused.status.success() && message.contains("a run that was imported has none yet: give"),
            "{message}"
        );
        train("export run --out before");
        train(
            "--resume run --data text.txt --steps 5 --set data.tokenizer=char --set optim.warmup_steps=1 \
             --set train.seq_len=16 --set train.global_batch_size=4 --set train.sample_tokens=0",
        );
        train("export run --out after");
        let original = tensors(&reference(name).join("model.safetensors"));
        let [before, after] =
            ["before", "after"].map(|part| tensors(&folder.path().join(part).join("model.safetensors")));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        let trained = before.keys().find(|key| key.ends_with(trained)).unwrap();
        assert_ne!(before[trained], after[trained], "{name}: {trained} is trained");
        for (key, values) in &before {
            let expected = original.iter().find(|(of, _)| key.ends_with(of.as_str()));
            assert_eq!(Some(values), expected.map(|(_, values)| values), "{name}: {key}");
        }
    }
}
