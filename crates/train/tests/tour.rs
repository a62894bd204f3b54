//! From a text to a model for other programs: prepare, train, resume, evaluate, generate, export, import, report.

mod common;

use common::{TINY, folder_with_text, metrics, program, run, succeed, values};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::ptr;
use tempfile::TempDir;
use test_kit::{reference, stored_floats};

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
    let lines: Vec<&str> = batch.lines().collect();
    assert_eq!(lines[0], "--- prompt 1 of 2 ---", "{batch}");
    let second = lines.iter().position(|line| *line == "--- prompt 2 of 2 ---").expect("a line before the second");
    assert_eq!(lines[second + 1..].join("\n"), alone.trim_end(), "a prompt has the same tokens in a batch");

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

/// A folder with a run on the bytes of its `text.txt`; the last 228 of 2280 are the validation split.
fn folder_with_run() -> TempDir {
    let folder = folder_with_text();
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
        // A run finds its data wherever it is resumed.
        let answer = train(args).replace(&format!("{}/", folder.path().display()), "");
        assert!(answer.starts_with(expected), "{args}: {answer}");
    }
    let val_loss = values(&metrics(&folder.path().join("run")), "val_loss")[0];
    let (loss, bits) = (format!("\nloss {val_loss:.4} nats per token\n"), val_loss / std::f64::consts::LN_2);
    let answer = train("eval run");
    assert!(answer.contains(&loss) && answer.ends_with(&format!("\nbits per byte {bits:.4}\n")), "{val_loss} {answer}");
}

/// Compares with the sum of log-probabilities of an ending's bytes, from the logits of the exported model.
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
    let padded = padded.collect::<Vec<_>>().join(";"); // padding does not affect a causal model's earlier output
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
    // With and without a leading space, with the label as a number and as a string.
    for (labels, space, quote) in [(&by_sum, "", ""), (&by_sum, " ", "\""), (&by_mean, " ", ""), (&by_mean, "", "\"")] {
        let line = |((context, endings), label): (&(String, Vec<String>), &usize)| {
            let endings: Vec<_> = endings.iter().map(|ending| format!("{space}{ending}")).collect();
            format!(r#"{{"ind": 1, "ctx": "{context}", "endings": {endings:?}, "label": {quote}{label}{quote}}}"#)
        };
        let lines: Vec<_> = questions.iter().zip(labels).map(line).collect();
        fs::write(folder.path().join("questions.jsonl"), lines.join("\n")).unwrap();
        let (answer, _) = succeed(folder.path(), &["eval", "run", "--choices=questions.jsonl"]);
        let (sum, mean) = (share(labels, &by_sum), share(labels, &by_mean));
        assert_eq!(answer, format!("20 questions\naccuracy {sum:.4}, normalized by length {mean:.4}\n"));
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

#[test]
fn texts_are_told_apart_end_before_stop_strings_and_are_printed_as_json() {
    let folder = folder_with_run();
    let generate = |args: &[&str]| succeed(folder.path(), &[&["generate", "run", "--tokens=24"], args].concat()).0;
    let json = |args: &[&str]| -> Vec<Value> {
        generate(&[args, &["--json"]].concat()).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let greedy = generate(&["--prompt=wiz", "--temperature=0"]);
    let text = greedy.trim_end_matches('\n').strip_prefix("wiz").unwrap();
    let object = &json(&["--prompt=wiz", "--temperature=0"])[0];
    assert_eq!((object["text"].as_str(), object["prompt"].as_str()), (Some(text), Some("wiz")), "{object}");
    assert_eq!((&object["finish"], &object["tokens"]), (&"length".into(), &24.into()));
    // A stop string in the middle of the greedy text.
    let stop = &text[10..13];
    let cut = &text[..text.find(stop).unwrap()];
    let stopped = ["--prompt=wiz", "--temperature=0", "--stop=\u{1}", "--stop", stop];
    assert_eq!(generate(&stopped), format!("wiz{cut}\n"));
    assert_eq!((json(&stopped)[0]["text"].as_str(), &json(&stopped)[0]["finish"]), (Some(cut), &"stop".into()));

    fs::write(folder.path().join("prompts"), "The\nwiz\n").unwrap();
    let all = json(&["--prompts=prompts", "-n=2", "--temperature=1.5"]);
    let of: Vec<_> =
        all.iter().map(|text| (text["prompt"].as_str().unwrap(), text["sample"].as_u64().unwrap())).collect();
    assert_eq!(of, [("The", 1), ("The", 2), ("wiz", 1), ("wiz", 2)]);
    assert_ne!(all[0]["text"], all[1]["text"], "each is drawn anew");
    let expected: String = all
        .iter()
        .zip(["1 of 2, sample 1", "1 of 2, sample 2", "2 of 2, sample 1", "2 of 2, sample 2"])
        .map(|(text, which)| {
            format!(
                "--- prompt {which} of 2 ---\n{}{}\n",
                text["prompt"].as_str().unwrap(),
                text["text"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(generate(&["--prompts=prompts", "--samples=2", "--temperature=1.5"]), expected);

    let lines = succeed(folder.path(), &["eval", "run"]).0;
    let figures: Value = serde_json::from_str(&succeed(folder.path(), &["eval", "run", "--json"]).0).unwrap();
    for (name, key) in [("loss", "loss"), ("perplexity", "perplexity"), ("bits per byte", "bits_per_byte")] {
        let line = lines.lines().find(|line| line.starts_with(name)).unwrap();
        let printed: f64 = line[name.len()..].split_whitespace().next().unwrap().parse().unwrap();
        assert!((printed - figures[key].as_f64().unwrap()).abs() < 1e-3, "{line} {figures}");
    }
    assert_eq!((&figures["split"], &figures["tokens"], &figures["seq_len"]), (&"val".into(), &224.into(), &16.into()));
    fs::write(folder.path().join("questions.jsonl"), r#"{"ctx": "a", "endings": ["b"], "label": 0}"#).unwrap();
    let answer = succeed(folder.path(), &["eval", "run", "--choices=questions.jsonl", "--json"]).0;
    assert_eq!(answer, "{\"questions\":1,\"accuracy\":1.0,\"accuracy_norm\":1.0}\n");
}

/// What the program writes to a terminal.
fn on_terminal(folder: &Path, args: &[&str]) -> Vec<u8> {
    let (mut ours, mut theirs) = (0, 0);
    // SAFETY: both are written, and nothing is read through the null pointers.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, ptr::null_mut(), ptr::null_mut(), ptr::null_mut()) };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: they are open and not shared.
    let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let mut child = program(folder, args).stdout(theirs).stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
    let mut bytes = vec![];
    let mut buffer = [0; 4096];
    // Reading fails once the last process that holds the terminal is gone.
    while let Ok(read @ 1..) = ours.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..read]);
    }
    assert!(child.wait().unwrap().success());
    bytes
}

#[test]
fn a_terminal_obeys_nothing_in_a_sample_and_a_pipe_gets_it_as_it_is() {
    let folder = folder_with_text();
    // A model that has learned nothing can generate any byte.
    let train = [TINY, &["--steps=1", "--set=train.sample_tokens=300", "--out=run"]].concat();
    let generate = ["generate", "run", "--prompt=\u{1b}c", "--tokens=300", "--temperature=1.5"];
    for args in [&train[..], &generate, &[&generate[..], &["-n=2"]].concat()] {
        let shown = on_terminal(folder.path(), args);
        let text = String::from_utf8_lossy(&shown).replace("\r\n", "\n");
        assert!(text.contains("\\u{"), "{args:?}: {text}");
        assert_eq!(text.find(|c: char| c.is_control() && !"\n\t".contains(c)), None, "{args:?}: {text:?}");
    }
    let piped = run(folder.path(), &generate).stdout;
    assert!(piped.starts_with(b"\x1bc") && !piped.windows(3).any(|part| part == b"\\u{"));
}

/// Tensors of a safetensors file.
fn tensors(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.names().into_iter().map(|name| (name.to_string(), stored_floats(&file, name))).collect()
}

#[test]
fn an_imported_model_ends_texts_at_any_of_its_tokens_for_that_also_when_trained_and_exported() {
    let folder = folder_with_run();
    let train = |args: &str| succeed(folder.path(), &args.split_whitespace().collect::<Vec<_>>()).0;
    train("export run --out exported");
    let read = |file: &str| -> Value { serde_json::from_slice(&fs::read(folder.path().join(file)).unwrap()).unwrap() };
    let mut generation = read("exported/generation_config.json");
    assert_eq!(generation["eos_token_id"], 0);
    generation["eos_token_id"] = json!([b'.', b'!']);
    fs::write(folder.path().join("exported/generation_config.json"), generation.to_string()).unwrap();
    train("import --hf exported --out imported");
    train("--resume imported --data text.txt --steps 1 --set train.seq_len=16 --set train.sample_tokens=0");
    for run in ["imported@0", "imported"] {
        let text = train(&format!("generate {run} --prompt wizards --tokens 60 --temperature 0 --json"));
        let text: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(text["finish"], "end_of_text", "{run}: {text}");
        assert!(!text["text"].as_str().unwrap().contains('.'), "{run}: {text}");
    }
    train("export imported --out again");
    assert_eq!(read("again/generation_config.json")["eos_token_id"], json!([0, b'.', b'!']));
    assert!(!folder.path().join("again/end_of_text.json").exists());
}

#[test]
fn a_model_of_transformers_is_imported_trained_and_exported_under_its_own_names() {
    for (name, trained, context) in [("gpt2-a", "wte.weight", 32), ("deepseek-v3-q-lora", "lm_head.weight", 64)] {
        let folder = folder_with_text();
        let train = |args: &str| succeed(folder.path(), &args.split_whitespace().collect::<Vec<_>>());
        let (imported, _) = train(&format!("import --hf {} --out run", reference(name).display()));
        let defaults = "lr 3e-5, constant after 20 steps of warm-up, no weight decay, 32 sequences of";
        assert!(
            imported.contains(&format!("set for fine-tuning: {defaults} {context} tokens per step\n")),
            "{imported}"
        );
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
