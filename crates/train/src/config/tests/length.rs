//! Tests of steps and epochs.

use super::*;

#[test]
fn of_steps_and_epochs_the_last_one_given_counts_and_both_at_once_are_refused() {
    let length = |files_of: &[(&str, &str)]| files(files_of).map(|config| (config.train.steps, config.train.epochs));
    let base = ("base.yaml", "model: {type: gpt2}\ntrain: {steps: 7}");
    for (train, expected) in [
        ("{}", (7, None)),
        ("{epochs: 2}", (0, Some(2.0))),
        ("{epochs: null}", (7, None)),
        ("{steps: 9}", (9, None)),
        ("{steps: 9, epochs: null}", (9, None)),
        ("{steps: 0, epochs: 0.5}", (0, Some(0.5))),
    ] {
        let file = format!("base: base.yaml\ntrain: {train}");
        assert_eq!(length(&[("a.yaml", &file), base]).unwrap(), expected, "{train}");
    }
    let steps = "base: b.yaml\ntrain: {steps: 3}";
    let epochs = ("b.yaml", "base: base.yaml\ntrain: {epochs: 2}");
    assert_eq!(length(&[("a.yaml", steps), epochs, base]).unwrap(), (3, None));
    let error = length(&[("a.yaml", "base: base.yaml\ntrain: {steps: 3, epochs: 2}"), base]).unwrap_err().to_string();
    assert!(
        error.ends_with("a.yaml gives train.steps 3 and train.epochs 2: give one of them (--steps or --epochs)"),
        "{error}"
    );
    let config = preset_with("gpt2", &["train.epochs=2"]).unwrap();
    assert_eq!((config.train.steps, config.train.epochs), (0, Some(2.0)));
    config.validate().unwrap();
    assert_eq!(files(&[("a.yaml", &config.to_yaml())]).unwrap(), config, "what is printed is read back");
}
