//! What the types of a configuration and the doc comments of its keys say, as `schemars` reads them.

use schemars::generate::SchemaSettings;
use serde_json::Value as Json;

use super::Config;

/// The schema of a configuration.
pub(super) fn root() -> Json {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.into_generator().into_root_schema_for::<Config>().into()
}

/// The schema of a key of a section; that of `type` is the choice between the kinds of model.
pub(super) fn of_key<'a>(section: &'a Json, name: &str, model_type: &str) -> &'a Json {
    if name == "type" { section } else { &keys_of(section, model_type)["properties"][name] }
}

/// The schema with a section's keys: one of several for a model, one beside null where a section may be null.
fn keys_of<'a>(section: &'a Json, model_type: &str) -> &'a Json {
    let fits = |choice: &&Json| choice["properties"].is_object() && kind(choice).is_none_or(|kind| kind == model_type);
    choices(section).find(fits).unwrap_or(section)
}

/// What a schema chooses from; nothing where there is no choice.
fn choices(schema: &Json) -> impl Iterator<Item = &Json> {
    ["oneOf", "anyOf"].into_iter().filter_map(|list| schema[list].as_array()).flatten()
}

/// The kind of model that a schema describes.
fn kind(schema: &Json) -> Option<&str> {
    schema["properties"]["type"]["const"].as_str()
}

/// The names that a value may have, and what they mean. One with a number in it (`every:K`) is a key in the schema.
pub(super) fn variants(schema: &Json) -> Vec<(&str, &str)> {
    fn variant(choice: &Json) -> Option<(&str, &str)> {
        let key = || choice["required"].as_array()?.first()?.as_str();
        let name = choice["const"].as_str().or(kind(choice)).or_else(key)?;
        Some((name, choice["description"].as_str()?))
    }
    choices(schema).filter_map(variant).collect()
}

/// The types that a value may have, as JSON calls them; of a section that may be null `object` and `null`, of a list of
/// sections `rows`, of one of names `names`, of a section of any names `named`.
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
