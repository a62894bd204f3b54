use super::{ConfigError, check};

/// A configuration that is part of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// What it is called in `--model` and `base: preset:NAME`.
    pub name: &'static str,
    /// What it is, in a line: the first comment of its file.
    pub about: &'static str,
    /// Its file.
    pub yaml: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$(Preset::new($name, include_str!(concat!("../../../../configs/presets/", $name, ".yaml")))),*]
    };
}

/// All presets, of each family the smallest first.
pub const PRESETS: &[Preset] = presets![
    "gpt2",
    "gpt2-124m",
    "gpt2-350m",
    "gpt2-774m",
    "gpt2-1558m",
    "deepseek",
    "deepseek-7b",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3",
];

/// The preset of this name.
pub fn preset(name: &str) -> Result<&'static Preset, ConfigError> {
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| {
        let names = || PRESETS.iter().map(|preset| preset.name);
        let near = check::nearest(name, names()).map_or(String::new(), |near| format!("did you mean `{near}`? "));
        let hint = format!("{near}Presets: {}", names().collect::<Vec<_>>().join(", "));
        ConfigError::UnknownPreset { name: name.into(), hint }
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
