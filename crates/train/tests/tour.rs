//! From a text to a model that others load: prepare, train, go on, evaluate, generate, export, import, report.

mod common;

use common::{TINY, metrics, reference, succeed, values};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[test]
fn a_text_becomes_tokens_a_model_a_folder_for_transformers_and_a_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, text) = (folder.path(), "The five boxing wizards jump quickly over the lazy dog. ".repeat(200));
    fs::write(folder.join("text.txt"), &text).unwrap();
    let train = |args: &str| succeed(folder, &args.split_whitespace().collect::<Vec<_>>());

    let (prepared, _) = train("prepare text.txt --train-bpe 300 --out tokens");
    assert!(prepared.contains("300 tokens in the vocabulary"), "{prepared}");
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

    let question =
        |label| format!(r#"{{"ctx": "The five boxing", "endings": ["wizards jump", "qqq ###"], "label": {label}}}"#);
    fs::write(folder.join("questions.jsonl"), [0, 1, 0].map(question).join("\n")).unwrap();
    let (chosen, _) = train("eval run --choices questions.jsonl");
    assert_eq!(chosen, "3 questions\naccuracy 0.6667, normalised by length 0.6667\n");
    fs::write(folder.join("questions.jsonl"), [0, 2].map(question).join("\n")).unwrap();
    let refused = common::run(folder, &["eval", "run", "--choices", "questions.jsonl"]);
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && message.contains("questions.jsonl, line 2: label is 2, of 2"), "{message}");

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
    assert!(page.contains("</html>") && page.contains("resumed from run/checkpoints/step-8"), "{page}");

    train("export run --full-state state.safetensors");
    let state = fs::read(folder.join("state.safetensors")).unwrap();
    let names = SafeTensors::deserialize(&state).unwrap().names().len();
    assert_eq!(names % 3, 0, "values and two moments of each parameter");
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
    for (name, trained) in [("gpt2-a", "wte.weight"), ("deepseek-v3-q-lora", "lm_head.weight")] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("text.txt"), "The five boxing wizards jump quickly. ".repeat(60)).unwrap();
        let train = |args: &str| succeed(folder.path(), &args.split_whitespace().collect::<Vec<_>>());
        train(&format!("import --hf {} --out run", reference(name).display()));
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
