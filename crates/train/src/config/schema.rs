//! The types of a configuration and the doc comments of its keys, as `schemars` reads them.

use schemars::generate::SchemaSettings;
use serde_json::Value as Json;

use super::Config;

/// The schema of a configuration.
pub(super) fn root() -> Json {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.into_generator().into_root_schema_for::<Config>().into()
}

/// The schema of a key of a section; for `type`, the choice between the kinds of model.
pub(super) fn of_key<'a>(section: &'a Json, name: &str, model_type: &str) -> &'a Json {
    if name == "type" { section } else { &keys_of(section, model_type)["properties"][name] }
}

/// The schema with a section's keys. A model is one of several choices, a nullable section is a choice with null.
fn keys_of<'a>(section: &'a Json, model_type: &str) -> &'a Json {
    let fits = |choice: &&Json| choice["properties"].is_object() && kind(choice).is_none_or(|kind| kind == model_type);
    choices(section).find(fits).unwrap_or(section)
}

/// The choices of a schema; empty if there is no choice.
fn choices(schema: &Json) -> impl Iterator<Item = &Json> {
    ["oneOf", "anyOf"].into_iter().filter_map(|list| schema[list].as_array()).flatten()
}

/// The kind of model that a schema describes.
fn kind(schema: &Json) -> Option<&str> {
    schema["properties"]["type"]["const"].as_str()
}

/// The names a value may take, with their meanings. A name with a number in it (`every:K`) is a key in the schema.
pub(super) fn variants(schema: &Json) -> Vec<(&str, &str)> {
    fn variant(choice: &Json) -> Option<(&str, &str)> {
        let key = || choice["required"].as_array()?.first()?.as_str();
        let name = choice["const"].as_str().or(kind(choice)).or_else(key)?;
        Some((name, choice["description"].as_str()?))
    }
    choices(schema).filter_map(variant).collect()
}

/// The JSON types a value may have. A nullable section has `object` and `null`; a list of sections is `rows`, a list of
/// names is `names`, a section of arbitrary names is `named`.
pub(super) fn types(schema: &Json) -> Vec<&str> {
    match &schema["type"] {
        Json::Array(types) => types.iter().filter_map(Json::as_str).collect(),
        Json::String(list) if list == "array" && schema["items"]["type"] == "object" => vec!["rows"],
        Json::String(list) if list == "array" && !variants(&schema["items"]).is_empty() => vec!["names"],
        Json::String(section) if section == "object" && schema["additionalProperties"].is_object() => vec!["named"],
        Json::String(one) => vec![one],
        _ => choices(schema).flat_map(types).collect(),
    }
}
