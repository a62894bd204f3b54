//! A configuration as commented YAML: each key with its purpose, values and default. The text comes from the doc
//! comments of the keys, which `schemars` reads.

use serde_json::Value as Json;
use yaml_serde::{Mapping, Value};

use super::schema::{self, of_key, types, variants};
use super::{Config, ModelConfig, check};

/// Maximum width of a comment line.
const WIDTH: usize = 110;

/// Column of the comment next to a value.
const BESIDE: usize = 40;

impl Config {
    /// [`to_yaml`](Self::to_yaml) with a comment for every key. The keys of a section that is null are written as
    /// comments.
    pub fn to_commented_yaml(&self) -> String {
        sections(self).into_iter().map(|(_, yaml)| yaml).collect::<Vec<_>>().join("\n")
    }
}

/// The Markdown reference: all keys at their defaults, as headings and code blocks. The `model` section of each family
/// has its own block.
pub fn reference() -> String {
    let block = |heading: &str, yaml: &str| format!("## {heading}\n\n```yaml\n{yaml}```\n");
    let families = ModelConfig::families().into_iter();
    let families: Vec<_> = families.map(|(model, moe)| Config { model, moe, ..Config::default() }).collect();
    // The sections of a family with experts have all keys.
    let whole = families.iter().rposition(|config| config.moe.is_some()).expect("a family has experts");
    let of_model = |config: &Config, yaml: &str| block(&format!("`model` of type {}", config.model.type_name()), yaml);
    let others = families.iter().enumerate().filter(|(i, _)| *i != whole).map(|(_, config)| {
        let model = sections(config).into_iter().find(|(name, _)| name == "model");
        of_model(config, &model.expect("a configuration has a model").1)
    });
    let all = sections(&families[whole]).into_iter().map(|(name, yaml)| match &name[..] {
        "model" => of_model(&families[whole], &yaml),
        name => block(&format!("`{name}`"), &yaml),
    });
    others.chain(all).collect::<Vec<_>>().join("\n")
}

/// Each section's name and YAML.
fn sections(config: &Config) -> Vec<(String, String)> {
    let Ok(Value::Mapping(values)) = yaml_serde::to_value(config) else { unreachable!("a configuration is a mapping") };
    let model_type = config.model.type_name();
    let defaults = check::template(model_type);
    let (page, schema) = (Page { model_type }, schema::root());
    let section = |(key, value): (&Value, &Value)| {
        let name = key.as_str().expect("keys are names");
        (name.to_string(), page.entry(0, name, value, &defaults[name], of_key(&schema, name, model_type)))
    };
    values.iter().map(section).collect()
}

/// Whether models of this type can have experts.
fn has_experts(model_type: &str) -> bool {
    ModelConfig::families().iter().any(|(model, moe)| model.type_name() == model_type && moe.is_some())
}

struct Page<'a> {
    model_type: &'a str,
}

impl Page<'_> {
    /// A key with its comments and everything below it. `default` is filled in even if `value` is a nullable section
    /// that is null.
    fn entry(&self, indent: usize, name: &str, value: &Value, default: &Value, schema: &Json) -> String {
        let (margin, given_type) = (" ".repeat(indent), name == "type");
        let mut text = String::new();
        if let Some(about) = schema["description"].as_str().filter(|_| !given_type) {
            text += &comment(indent, "", about);
        }
        let variants = if value.is_mapping() { vec![] } else { variants(schema) };
        let width = variants.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, about) in &variants {
            text += &comment(indent, &format!("  {name:<width$}  "), about);
        }
        if let Value::Mapping(values) = value {
            return text + &format!("{margin}{name}:\n") + &self.entries(indent + 2, values, default, schema);
        }
        let line = format!("{margin}{name}: {}", scalar(value));
        let (may_be, section) = (words(schema, &variants), default.as_mapping());
        let default = match (given_type, section) {
            (true, _) => "; required".into(),
            (false, None) if default != value => format!("; default {}", scalar(default)),
            _ => String::new(),
        };
        text += &format!("{line:<BESIDE$} # {may_be}{default}\n");
        // GPT-2 has no experts.
        if let Some(section) = section.filter(|_| name != "moe" || has_experts(self.model_type)) {
            let inner = self.entries(2, section, &Value::Mapping(section.clone()), schema);
            text += &inner.lines().map(|line| format!("{margin}# {line}\n")).collect::<String>();
        }
        text
    }

    fn entries(&self, indent: usize, values: &Mapping, defaults: &Value, schema: &Json) -> String {
        let entry = |(key, value): (&Value, &Value)| {
            let name = key.as_str().expect("keys are names");
            self.entry(indent, name, value, &defaults[name], of_key(schema, name, self.model_type))
        };
        values.iter().map(entry).collect()
    }
}

/// Describes the values that a key accepts.
fn words(schema: &Json, variants: &[(&str, &str)]) -> String {
    if !variants.is_empty() {
        return variants.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("|");
    }
    let word = |name| match name {
        "integer" => "whole number",
        "boolean" => "true|false",
        "string" => "text",
        "object" | "named" => "a section",
        "array" => "a list, [1, 2]",
        "names" => "a list of names",
        "rows" => "a list of rows, [{up_to: 512, ..}]",
        other => other,
    };
    types(schema).into_iter().map(word).collect::<Vec<_>>().join(" or ")
}

/// A value on one line of YAML.
pub(super) fn scalar(value: &Value) -> String {
    let yaml = yaml_serde::to_string(value).expect("a value is YAML");
    match value {
        Value::String(text) if text.contains('\n') => serde_json::to_string(text).expect("a text is JSON"),
        Value::Mapping(keys) => {
            let key = |(key, value): (&Value, &Value)| format!("{}: {}", scalar(key), scalar(value));
            format!("{{{}}}", keys.iter().map(key).collect::<Vec<_>>().join(", "))
        }
        Value::Sequence(values) => format!("[{}]", values.iter().map(scalar).collect::<Vec<_>>().join(", ")),
        _ => yaml.trim_end().into(),
    }
}

/// Formats text as comment lines, rewrapped. The first line begins with `head`, the others are indented to its end.
fn comment(indent: usize, head: &str, text: &str) -> String {
    let margin = format!("{:indent$}# ", "");
    let (mut lines, mut line) = (String::new(), format!("{margin}{head}"));
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.len() + 1 + word.len() > WIDTH {
            lines += &(line + "\n");
            (line, is_empty) = (format!("{margin}{:1$}", "", head.len()), true);
        }
        line += if is_empty { "" } else { " " };
        line += word;
        is_empty = false;
    }
    lines + &line + "\n"
}
