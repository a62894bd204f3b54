//! Tests of the commented configuration and of the reference page.

use super::*;

#[test]
fn the_commented_yaml_of_every_preset_loads_to_an_equal_configuration() {
    let changes: [&[&str]; 4] = [
        &[],
        &[
            "optim.epsilon=1e-9",
            "parallel.wrap=size:5",
            "parallel.activation_checkpointing=every:2",
            "train.seed=18446744073709551615",
        ],
        &["data.source=\"a\\n: # b\"", "data.tokenizer=null", "data.text_field=\"\"", "data.val_fraction=0.5"],
        &[
            "data.tokenizer=\"./#x: y\"",
            "metrics.peak_tflops=1e300",
            "train.micro_batch_size=1",
            "parallel.stages=[1, 3]",
        ],
    ];
    for preset in PRESETS {
        for change in changes {
            let config = preset_with(preset.name, change).unwrap();
            let yaml = config.to_commented_yaml();
            assert_eq!(files(&[("a.yaml", &yaml)]).unwrap(), config, "{}: {yaml}", preset.name);
        }
    }
    let dense =
        preset_with("deepseek", &["moe=null", "model.first_k_dense_replace=4", "model.rope_scaling={}"]).unwrap();
    assert_eq!(files(&[("a.yaml", &dense.to_commented_yaml())]).unwrap(), dense);
}

#[test]
fn keys_of_a_section_that_is_null_become_keys_without_their_hashes() {
    let yaml = preset_with("deepseek", &[]).unwrap().to_commented_yaml();
    let (before, section) = yaml.split_once("  rope_scaling: null").unwrap();
    let (section, after) = section.split_once("\n\n").unwrap();
    let section: Vec<String> = section.lines().skip(1).map(|line| line.replacen("# ", "", 1)).collect();
    let section = section.join("\n");
    let config = files(&[("a.yaml", &format!("{before}  rope_scaling:\n{section}\n\n{after}"))]).unwrap();
    assert_eq!(config, preset_with("deepseek", &["model.rope_scaling={}"]).unwrap());
}

#[test]
fn every_key_says_what_it_is_for() {
    let root = schema::root();
    for kind in ModelConfig::types() {
        for key in keys(kind).iter().filter(|key| *key != "model.type") {
            let schema = key.split('.').fold(&root, |section, name| schema::of_key(section, name, kind));
            assert!(schema["description"].as_str().is_some_and(|text| text.ends_with('.')), "{key}: {schema}");
        }
    }
    let page = reference();
    for link in ["[`", "](", "::"] {
        assert!(!page.contains(link), "`{link}` is for readers of the code's documentation");
    }
}

#[test]
fn the_page_of_all_keys_is_what_the_program_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("docs/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let command = "KILN_WRITE_DOCS=1 cargo test --workspace --lib config::";
    let contributing = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    assert!(contributing.contains(command), "CONTRIBUTING.md does not name `{command}`");
    let mark = format!("{command} -->\n\n");
    let (introduction, _) =
        page.split_once(&mark).unwrap_or_else(|| page.split_once(mark.trim_end()).expect("the mark is there"));
    let written = format!("{introduction}{mark}{}", reference());
    if std::env::var_os("KILN_WRITE_DOCS").is_some() {
        fs::write(&path, written).unwrap();
    } else {
        assert!(page == written, "docs/configuration.md is out of date: `{command}` regenerates it");
    }
}
