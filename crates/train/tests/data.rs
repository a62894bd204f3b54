//! Training and validation data, the length of a run, and the messages about them.

mod common;

use common::{TINY, folder_with_text, metrics, run, succeed, values};
use serde_json::Value;
use std::fs;
use train::config::{Config, Source};

#[test]
fn tokens_without_a_vocabulary_train_with_one_that_holds_the_largest_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |tokens: &[u16]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>();
    let tokens: Vec<u16> = (0..600).map(|i| i % 90).collect();
    fs::create_dir(folder.path().join("char")).unwrap();
    fs::write(folder.path().join("char/train.bin"), bytes(&tokens)).unwrap();
    fs::write(folder.path().join("char/val.bin"), bytes(&[&tokens[..99], &[130]].concat())).unwrap();
    fs::write(folder.path().join("char/meta.pkl"), "").unwrap();
    let args: Vec<&str> = TINY.iter().copied().filter(|arg| *arg != "--data=text.txt").collect();
    let (_, stderr) = succeed(folder.path(), &[&args[..], &["--data=char", "--steps=2", "--out=run"]].concat());
    for line in [
        "char: 1 file trains, 1 validates; 1 other is left out (1 .pkl)\n",
        "model.vocab_size is set to 192 tokens: the largest token of the data is 130, and no tokenizer is given\n",
    ] {
        assert!(stderr.contains(line), "no `{line}` in:\n{stderr}");
    }
    let config = Config::load(Source::File(&folder.path().join("run/config.yaml")), &[]).unwrap();
    assert_eq!(config.model.vocab_size(), 192);
    let (_, stderr) = succeed(folder.path(), &["--resume=run", "--steps=3"]);
    assert!(!stderr.contains("is set to"), "it is the checkpoint's:\n{stderr}");
    succeed(folder.path(), &["eval", "run"]);
}

/// 2052 bytes of training data: 127 windows of 16, in steps of 4.
#[test]
fn a_run_is_as_long_as_its_epochs() {
    let folder = folder_with_text();
    let steps = |args: &[&str], run: &str| {
        succeed(folder.path(), &[args, &["--set=optim.warmup_steps=0", &format!("--out={run}")]].concat());
        let config = Config::load(Source::File(&folder.path().join(run).join("config.yaml")), &[]).unwrap();
        assert_eq!(config.train.epochs, None);
        assert_eq!(values(&metrics(&folder.path().join(run)), "loss").len(), config.train.steps);
        config.train.steps
    };
    assert_eq!(steps(&[TINY, &["--epochs=0.5"]].concat(), "half"), 16);
    assert_eq!(steps(&["--resume=half", "--epochs=1"], "half"), 32, "what it has done is a part of them");
    assert_eq!(steps(&[TINY, &["--set=train.epochs=1", "--gpus=2"]].concat(), "one"), 32);
    assert_eq!(steps(&["--config=one/config.yaml"], "again"), 32);
    let finished = run(folder.path(), &["--resume=one", "--epochs=0.5"]);
    let message = String::from_utf8(finished.stderr).unwrap();
    assert!(!finished.status.success() && message.contains("32"), "{message}");
    for (args, expected) in [
        (&["--steps=3", "--epochs=1"][..], "cannot be used with"),
        (&["--set=train.steps=3", "--epochs=1"], "gives train.steps 3 and train.epochs 1.0: give one of them"),
        (&["--epochs=0"], "train.epochs is 0.0: give a number above 0"),
        (&["--epochs=-1"], "train.epochs is -1.0: give a number above 0"),
    ] {
        let refused = run(folder.path(), &[TINY, args].concat());
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn several_sources_validate_under_their_names_and_their_mean_decides() {
    let folder = folder_with_text();
    fs::write(folder.path().join("other.txt"), "Pack my box with five dozen liquor jugs! ".repeat(9)).unwrap();
    let same = "--set=data.validation={same: text.txt, other: other.txt}";
    let args = [
        TINY,
        &["--gpus=2", "--steps=40", "--set=optim.lr=5e-3", "--set=train.val_every=20", "--set=train.val_batches=0"],
    ];
    let (_, stderr) = succeed(folder.path(), &[&args.concat()[..], &[same, "--out=run"]].concat());
    let lines = metrics(&folder.path().join("run"));
    assert_eq!(values(&lines, "train_tokens"), [2280.0], "all of it trains");
    let validations: Vec<&Value> = lines.iter().filter(|line| line["val_loss"].is_f64()).collect();
    assert_eq!(validations.len(), 2);
    for line in &validations {
        let [same, other] = ["same", "other"].map(|name| line["val_losses"][name].as_f64().unwrap());
        assert!(same < other, "{line}");
        assert!((line["val_loss"].as_f64().unwrap() - (same + other) / 2.0).abs() < 1e-12, "{line}");
        let told =
            format!("validation loss {:.4} nats per token (other {other:.4}, same {same:.4})", (same + other) / 2.0);
        assert!(stderr.contains(&told), "no `{told}` in:\n{stderr}");
    }
    let (answer, _) = succeed(folder.path(), &["eval", "run"]);
    let last = &validations[1]["val_losses"];
    for (name, tokens) in [("other", 368), ("same", 2272)] {
        let path = fs::canonicalize(folder.path()).unwrap().join(if name == "same" { "text.txt" } else { "other.txt" });
        let told = format!(
            "{name}: {}: {tokens} tokens predicted, in windows of 16\nloss {:.4} nats per token\n",
            path.display(),
            last[name].as_f64().unwrap()
        );
        assert!(answer.contains(&told), "no `{told}` in:\n{answer}");
    }
    assert!(
        answer.ends_with(&format!("mean loss {:.4} nats per token\n", validations[1]["val_loss"].as_f64().unwrap()))
    );
    let (json, _) = succeed(folder.path(), &["eval", "run", "--json"]);
    let names: Vec<Value> =
        json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].clone()).collect();
    assert_eq!(names, ["other", "same"]);
    succeed(folder.path(), &["report", "run"]);

    let (_, stderr) = succeed(folder.path(), &[&args.concat()[..], &["--val-data=other.txt", "--out=one"]].concat());
    assert!(!stderr.contains("nats per token ("), "one needs no name:\n{stderr}");
    let one = metrics(&folder.path().join("one"));
    assert_eq!(values(&one, "val_loss").len(), 2);
    assert!(one.iter().all(|line| line.get("val_losses").is_none()));

    for (set, expected) in [
        ("--set=data.validation={}", "data.validation names no data"),
        ("--set=data.validation={'': text.txt}", "data.validation has an empty name"),
        ("--set=data.validation=[text.txt]", "give a string, a section of names, such as {wiki: wiki.txt} or null"),
        ("--set=data.val_fraction=1", "or lower data.val_fraction, the fraction held out for validation"),
        ("--set=data.val_fraction=0.001", "or raise data.val_fraction, the fraction held out for validation"),
        ("--set=data.validation=none.txt", "none.txt does not exist"),
        ("--set=data={validation: other.txt, val_fraction: 0.1}", "data.val_fraction is 0.1, but data.validation"),
        (
            "--set=data={validation: short.txt}",
            "short.txt has 3 tokens to validate on and needs at least seq_len + 1 = 17",
        ),
    ] {
        fs::write(folder.path().join("short.txt"), "abc").unwrap();
        let refused = run(folder.path(), &[TINY, &["--steps=1", set]].concat());
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && message.contains(expected), "{set}: {message}");
    }
}

#[test]
fn samples_are_made_on_the_way_and_change_nothing() {
    let folder = folder_with_text();
    let args = [TINY, &["--gpus=2", "--steps=5", "--set=train.sample_tokens=20"]].concat();
    let (_, stderr) = succeed(folder.path(), &[&args[..], &["--set=train.sample_every=2", "--out=often"]].concat());
    succeed(folder.path(), &[&args[..], &["--out=once"]].concat());
    let [often, once] = ["often", "once"].map(|run| metrics(&folder.path().join(run)));
    let sampled = |lines: &[Value]| -> Vec<u64> {
        lines.iter().filter(|line| line["sample"].is_string()).map(|line| line["step"].as_u64().unwrap()).collect()
    };
    assert_eq!((sampled(&often), sampled(&once)), (vec![2, 4, 5], vec![5]));
    assert!(stderr.contains("--- sample after step 2 ---\n") && !stderr.contains("after step 5 ---"), "{stderr}");
    assert_eq!(values(&often, "loss"), values(&once, "loss"));
}

#[test]
fn a_run_that_goes_on_says_when_its_data_changed() {
    let folder = folder_with_text();
    let text = fs::read_to_string(folder.path().join("text.txt")).unwrap();
    succeed(folder.path(), &[TINY, &["--steps=2", "--out=run"]].concat());
    let resume = |args: &[&str]| succeed(folder.path(), &[&["--resume=run"], args].concat()).1;
    let changed = "warning: the training data changed after step";
    fs::write(folder.path().join("copy.txt"), &text).unwrap();
    for args in [&["--steps=3"][..], &["--steps=4", "--gpus=2"], &["--steps=5", "--data=copy.txt"]] {
        let stderr = resume(args);
        assert!(!stderr.contains(changed), "{args:?}:\n{stderr}");
    }
    fs::write(folder.path().join("copy.txt"), &text[..1140]).unwrap();
    let stderr = resume(&["--steps=6"]);
    let path = fs::canonicalize(folder.path()).unwrap().join("copy.txt");
    let path = path.display();
    let told = format!("{changed} 5, from 2.1K tokens of {path} to 1.0K tokens of {path}\n");
    assert!(stderr.contains(&told), "no `{told}` in:\n{stderr}");
    assert!(!resume(&["--steps=7"]).contains(changed), "it is said once");
    fs::write(folder.path().join("copy.txt"), text[..1140].to_uppercase()).unwrap();
    let stderr = resume(&["--steps=8"]);
    let told = format!("{changed} 7, from 1.0K tokens of {path} to the same number with other content\n");
    assert!(stderr.contains(&told), "no `{told}` in:\n{stderr}");
    let stderr = resume(&["--steps=9", "--data=text.txt"]);
    assert!(stderr.contains(&format!("{changed} 8,")), "{stderr}");
}
