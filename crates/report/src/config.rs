//! A run's configuration, as the page lists it: one line per key.

use yaml_serde::Value;

/// Dotted keys and their values as text, in the order of the file.
pub(crate) type Entries = Vec<(String, String)>;

/// The entries of a YAML file, or what is wrong with it.
pub(crate) fn entries(text: &str) -> Result<Entries, String> {
    let value: Value = yaml_serde::from_str(text).map_err(|e| e.to_string())?;
    let mut entries = vec![];
    flatten(String::new(), &value, &mut entries);
    Ok(entries)
}

/// The value of one key.
pub(crate) fn get<'a>(entries: &'a Entries, key: &str) -> Option<&'a str> {
    entries.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
}

/// A short description of the model.
pub(crate) fn model(entries: &Entries) -> Option<String> {
    let kind = get(entries, "model.type")?;
    let one_of = |keys: [&str; 2]| keys.into_iter().find_map(|key| get(entries, key));
    let layers = one_of(["model.n_layer", "model.num_hidden_layers"]).map(|n| format!("{n} layers"));
    let width = one_of(["model.n_embd", "model.hidden_size"]).map(|n| format!("{n} wide"));
    let experts = get(entries, "moe.num_experts").map(|n| format!("{n} experts"));
    let parts = [Some(kind.to_owned()), layers, width, experts];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn flatten(prefix: String, value: &Value, entries: &mut Entries) {
    match value {
        Value::Mapping(map) if !map.is_empty() => {
            for (key, value) in map {
                let key = scalar(key);
                let path = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(path, value, entries);
            }
        }
        value if prefix.is_empty() => entries.extend((!value.is_null()).then(|| ("(all)".into(), scalar(value)))),
        value => entries.push((prefix, scalar(value))),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::String(text) => text.clone(),
        Value::Sequence(items) => format!("[{}]", items.iter().map(scalar).collect::<Vec<_>>().join(", ")),
        value => yaml_serde::to_string(value).map(|text| text.trim_end().to_owned()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_get_dots() {
        let text = "model:\n  type: gpt2\n  n_layer: 2\nb: {c: [1, x], a: null}\noptim:\n  epsilon: 1e-8\nnone: {}\n";
        let entries = entries(text).unwrap();
        let expected = [
            ("model.type", "gpt2"),
            ("model.n_layer", "2"),
            ("b.c", "[1, x]"),
            ("b.a", "null"),
            ("optim.epsilon", "1e-8"),
            ("none", "{}"),
        ];
        assert_eq!(entries, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(model(&entries).as_deref(), Some("gpt2, 2 layers"));
    }

    #[test]
    fn what_is_no_yaml_is_said() {
        assert!(entries("a: [").is_err());
        assert_eq!(entries("").unwrap(), vec![]);
    }
}
