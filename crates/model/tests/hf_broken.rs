//! Broken folders: whatever their bytes, reading one gives a model or an error, without a panic and without much
//! memory.

use burn::tensor::Device;
use model::hf::{Folder, Pretrained};
use proptest::prelude::*;
use std::fs;
use test_kit::memory::{Counting, largest_block, restart};
use test_kit::reference;

/// The largest single allocation that is accepted.
const LIMIT: usize = 64 << 20;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A change to a file's bytes. A place below 1 is a fraction of the first kilobyte; from 1 on, 1 plus a fraction of the
/// file.
#[derive(Debug, Clone)]
enum Change {
    Byte { place: f64, value: u8 },
    Digit { place: f64, digit: u8 },
    Truncate { place: f64 },
    Insert { place: f64, bytes: Vec<u8> },
}

/// Half of the places lie in the first kilobyte, which holds lengths, names and shapes.
fn change() -> impl Strategy<Value = Change> {
    let place = || prop_oneof![0.0..1.0, 1.0..2.0];
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(place, value)| Change::Byte { place, value }),
        4 => (place(), b'0'..=b'9').prop_map(|(place, digit)| Change::Digit { place, digit }),
        1 => place().prop_map(|place| Change::Truncate { place }),
        2 => (place(), prop::collection::vec(b'0'..=b'9', 1..20)).prop_map(|(place, bytes)| Change::Insert { place, bytes }),
    ]
}

fn apply(change: &Change, file: &mut Vec<u8>) {
    let at = |place: f64| match place < 1.0 {
        true => (place * file.len().min(1024) as f64) as usize,
        false => ((place - 1.0) * file.len() as f64) as usize,
    };
    match change {
        Change::Byte { place, value } => {
            let at = at(*place);
            file.get_mut(at).into_iter().for_each(|byte| *byte = *value);
        }
        // Changes a number: replaces the next digit.
        Change::Digit { place, digit } => {
            let at = at(*place);
            file.iter_mut().skip(at).find(|byte| byte.is_ascii_digit()).into_iter().for_each(|byte| *byte = *digit);
        }
        Change::Truncate { place } => file.truncate(at(*place)),
        // Lengthens a number: inserts these digits after the next one.
        Change::Insert { place, bytes } => {
            let at = at(*place);
            if let Some(digit) = file.iter().skip(at).position(u8::is_ascii_digit) {
                file.splice(at + digit + 1..at + digit + 1, bytes.iter().copied());
            }
        }
    }
}

/// The files of a fixture that loading reads.
fn files(name: &str) -> Vec<String> {
    let names = fs::read_dir(reference(name)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "expected.safetensors").collect();
    names.sort();
    names
}

const BROKEN: [&str; 10] = [
    "gpt2-a",
    "deepseek-v3-yarn",
    "deepseek-v2-greedy",
    "deepseek-v3-fp8",
    "llama-scaled-rope",
    "qwen2-window",
    "qwen3",
    "mistral-window",
    "mixtral",
    "qwen3-moe",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_folder_with_changed_bytes_is_read_or_refused(
        name in prop::sample::select(&BROKEN[..]),
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let (folder, files) = (tempfile::tempdir().unwrap(), files(name));
        for file in &files {
            let mut bytes = fs::read(reference(name).join(file)).unwrap();
            if *file == files[which.index(files.len())] {
                changes.iter().for_each(|change| apply(change, &mut bytes));
            }
            fs::write(folder.path().join(file), bytes).unwrap();
        }
        restart();
        let read = Folder::open(folder.path()).and_then(|folder| Pretrained::load(&folder, &Device::flex()));
        if let Err(error) = read {
            prop_assert!(error.to_string().contains(folder.path().to_str().unwrap()), "names no file: {error}");
        }
        let largest = largest_block();
        prop_assert!(largest < LIMIT, "{largest} bytes at once");
    }
}

#[test]
fn numbers_of_config_json_that_no_tensor_has_are_refused_with_their_key() {
    for (name, key, value) in [
        ("gpt2-a", "n_layer", "99999999"),
        ("gpt2-a", "n_embd", "18446744073709551615"),
        ("deepseek-v3-q-lora", "qk_rope_head_dim", "99999999998"),
        ("deepseek-v3-q-lora", "n_routed_experts", "99999999999999"),
        ("deepseek-v3-q-lora", "moe_intermediate_size", "4611686018427387904"),
        ("llama-scaled-rope", "head_dim", "99999999998"),
        ("qwen3-moe", "num_hidden_layers", "1000000000000000000"),
        ("qwen3-moe", "num_local_experts", "1000000000000"),
        ("mixtral", "num_key_value_heads", "1000000000000"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        files(name).iter().for_each(|file| {
            fs::copy(reference(name).join(file), folder.path().join(file)).unwrap();
        });
        let config = fs::read_to_string(reference(name).join("config.json")).unwrap();
        let line = config.lines().find(|line| line.contains(&format!("\"{key}\""))).unwrap();
        let config = config.replace(line, &format!("\"{key}\": {value},"));
        fs::write(folder.path().join("config.json"), config).unwrap();
        let error = Pretrained::load(&Folder::open(folder.path()).unwrap(), &Device::flex()).err().unwrap().to_string();
        assert!(error.contains("config.json") && error.contains(value), "{error}");
    }
}

#[test]
fn a_file_that_is_cut_short_while_it_is_open_is_an_error_and_no_signal() {
    let folder = tempfile::tempdir().unwrap();
    files("gpt2-a").iter().for_each(|file| {
        fs::copy(reference("gpt2-a").join(file), folder.path().join(file)).unwrap();
    });
    let open = Folder::open(folder.path()).unwrap();
    let weights = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let weights =
        weights.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "safetensors")).unwrap();
    let length = fs::metadata(&weights).unwrap().len();
    fs::File::options().write(true).open(&weights).unwrap().set_len(length / 2).unwrap();
    let error = Pretrained::load(&open, &Device::flex()).err().unwrap().to_string();
    assert!(error.contains(weights.to_str().unwrap()), "{error}");
}
