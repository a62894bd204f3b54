//! The configurations built into Kiln, and those that a program adds with its own model.

use super::check;
use crate::error::TrainError;
use crate::program;
use model::{Architecture, ModelConfig};
use std::sync::{PoisonError, RwLock};

/// A configuration with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Its name in `--model` and `base: preset:NAME`.
    pub name: &'static str,
    /// A one-line description: the first comment of its file.
    pub about: &'static str,
    /// Contents of its file.
    pub yaml: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$(Preset::new($name, include_str!(concat!("../../presets/", $name, ".yaml")))),*]
    };
}

/// The presets of Kiln's own families, smallest first within each.
pub const PRESETS: &[Preset] = presets![
    "gpt2",
    "gpt2-124m",
    "gpt2-350m",
    "gpt2-774m",
    "gpt2-1558m",
    "llama",
    "smollm2-135m",
    "qwen3-0.6b",
    "llama3-8b",
    "qwen3-30b-a3b",
    "deepseek",
    "deepseek-7b",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
];

/// The presets that the program has added.
static ADDED: RwLock<Vec<Preset>> = RwLock::new(vec![]);

/// All presets.
pub fn presets() -> Vec<Preset> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    PRESETS.iter().chain(added.iter()).copied().collect()
}

/// Adds the program's own model family, with a preset that has the name and the defaults of the family.
///
/// # Panics
/// See [`Program::with`](crate::Program::with).
pub(crate) fn add_family<C: Architecture>() {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    let is_name = C::TYPE.starts_with(|c: char| c.is_ascii_lowercase()) && C::TYPE.chars().all(is_plain);
    assert!(is_name, "Architecture::TYPE {:?} is no name: give lower-case letters, digits, - and _", C::TYPE);
    ModelConfig::add::<C>();
    assert!(PRESETS.iter().all(|preset| preset.name != C::TYPE), "{} is the name of a preset of Kiln", C::TYPE);
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    if added.iter().all(|preset| preset.name != C::TYPE) {
        let yaml = format!("model: {{type: {}}}\n", C::TYPE).leak(); // lives as long as the program, like the others
        added.push(Preset { name: C::TYPE, about: C::ABOUT, yaml });
    }
}

/// Whether the program has models of its own.
pub(crate) fn has_added() -> bool {
    !ADDED.read().unwrap_or_else(PoisonError::into_inner).is_empty()
}

/// Finds a preset by name.
///
/// # Errors
/// If there is none of this name.
pub fn preset(name: &str) -> Result<Preset, TrainError> {
    let presets = presets();
    presets.iter().find(|preset| preset.name == name).copied().ok_or_else(|| {
        let names = || presets.iter().map(|preset| preset.name);
        let near = preset_meant(name).map(|preset| preset.name).or_else(|| check::nearest(name, names()));
        let near = near.map_or(String::new(), |near| format!("did you mean `{near}`? "));
        let names = names().collect::<Vec<_>>().join(", ");
        let import = "To train a model of Hugging Face, import it";
        let hint = format!("{near}Presets: {names}. {import}: {} import --hf FOLDER --out RUN", program::name());
        TrainError::UnknownPreset { name: name.into(), hint }
    })
}

/// Published names of presets that Kiln names by their size, reduced to letters and digits.
const PUBLISHED: &[(&str, &str)] = &[
    ("openaicommunitygpt2", "gpt2-124m"),
    ("gpt2small", "gpt2-124m"),
    ("gpt2medium", "gpt2-350m"),
    ("gpt2345m", "gpt2-350m"),
    ("gpt2355m", "gpt2-350m"),
    ("gpt2large", "gpt2-774m"),
    ("gpt2xl", "gpt2-1558m"),
    ("gpt215b", "gpt2-1558m"),
    ("metallama38b", "llama3-8b"),
    ("smollm2", "smollm2-135m"),
    ("qwen3", "qwen3-0.6b"),
    ("llama3", "llama3-8b"),
];

/// Finds the preset that an alternative spelling means: `GPT-2`, `deepseek_v3`, `deepseek-ai/DeepSeek-V3`, `gpt2-xl`.
pub(crate) fn preset_meant(name: &str) -> Option<Preset> {
    let plain = |name: &str| name.to_lowercase().replace(|c: char| !c.is_alphanumeric(), "");
    let last = name.rsplit('/').next().unwrap_or(name);
    [name, last].map(plain).into_iter().find_map(|name| {
        let size = PUBLISHED.iter().find(|(published, _)| *published == name).map(|(_, size)| plain(size));
        presets().into_iter().find(|preset| plain(preset.name) == *size.as_ref().unwrap_or(&name))
    })
}

impl Preset {
    const fn new(name: &'static str, yaml: &'static str) -> Self {
        let mut end = 0;
        while yaml.as_bytes()[end] != b'\n' {
            end += 1;
        }
        let (hash, about) = yaml.split_at(end).0.split_at(2);
        assert!(matches!(hash.as_bytes(), b"# "), "a preset's file starts with a comment that says what it is");
        Self { name, about, yaml }
    }
}
