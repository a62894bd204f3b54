//! JSON lines: one object per line, with a document in one of its fields.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::sync::atomic::Ordering;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Counts;
use super::files::TextFile;
use super::pieces::{self, Emit};
use super::text;
use crate::DataError;

/// A line and its document are held in memory, so lines have a limit.
const MAX_LINE: u64 = 64 << 20;

/// How many fields an error names, and how many characters of each.
const NAMED_FIELDS: usize = 8;
const NAMED_CHARS: usize = 40;

/// What is wrong with a file that is one array of objects.
const ARRAY: &str = "is an array, not an object (`jq -c '.[]' FILE > FILE.jsonl` makes it a line for each)";

/// Emits the documents of a file. Empty lines are skipped, and nulls are counted.
pub fn read(file: &TextFile, field: &str, counts: &Counts, emit: Emit<'_>) -> Result<(), DataError> {
    let mut reader = text::open(file, &counts.read)?;
    let mut bytes = Vec::new();
    for line in 1.. {
        let wrong = |problem| DataError::Json { path: file.path.clone(), line, field: field.into(), problem };
        bytes.clear();
        std::io::BufRead::read_until(&mut reader.by_ref().take(MAX_LINE), b'\n', &mut bytes)
            .map_err(|error| text::failed(file, error))?;
        if bytes.is_empty() {
            break;
        }
        if bytes.len() as u64 == MAX_LINE {
            let problem = format!("is longer than {MAX_LINE} bytes (cut this document into several lines)");
            return Err(wrong(problem));
        }
        // Some editors begin a file with a byte order mark.
        let object = if line == 1 { bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes) } else { &bytes[..] };
        let object = object.trim_ascii();
        match object.first() {
            None => continue,
            Some(b'[') => return Err(wrong(ARRAY.into())),
            Some(_) => {}
        }
        match parse(object, field).map_err(|error| wrong(not_json(&error)))? {
            Found::Text(text) => pieces::document(&text, emit)?,
            Found::Null => _ = counts.nulls.fetch_add(1, Ordering::Relaxed),
            Found::OtherType => return Err(wrong(format!("{field:?} is not a string"))),
            Found::NoObject => return Err(wrong("is not an object".into())),
            Found::OtherFields(fields) => {
                let fields = fields.join(", ");
                return Err(DataError::JsonField { path: file.path.clone(), line, field: field.into(), fields });
            }
        }
    }
    Ok(())
}

fn not_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // The parser's messages for half a surrogate pair.
    match ["lone leading surrogate", "unexpected end of hex escape"].iter().any(|half| text.starts_with(half)) {
        true => {
            let column = error.column();
            format!(
                "has an escape from \\ud800 to \\udfff without its other half, before column {column}, which is no \
                 character: take it out"
            )
        }
        false => format!("is not JSON ({text})"),
    }
}

/// What the wanted field of a line contains.
#[derive(Debug, PartialEq, Eq)]
enum Found<'a> {
    Text(Cow<'a, str>),
    Null,
    OtherType,
    /// Names of the first fields of an object without the wanted one.
    OtherFields(Vec<String>),
    NoObject,
}

/// Parses `line` and keeps only the string in `field`: a list of numbers as a value tree would take 16 times its text.
fn parse<'a>(line: &'a [u8], field: &str) -> serde_json::Result<Found<'a>> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let found = match line.first() {
        Some(b'{') => json.deserialize_map(Object { field })?,
        _ => {
            json.deserialize_ignored_any(IgnoredAny)?;
            Found::NoObject
        }
    };
    json.end()?;
    Ok(found)
}

struct Object<'f> {
    field: &'f str,
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found<'de>, A::Error> {
        let (mut found, mut names) = (None, Vec::new());
        while let Some(Content::Text(name)) = map.next_key_seed(Value)? {
            if name == self.field {
                // The last of several fields of this name counts.
                found = Some(map.next_value_seed(Value)?);
                continue;
            }
            if names.len() < NAMED_FIELDS {
                names.push(name.chars().take(NAMED_CHARS).flat_map(char::escape_debug).collect());
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(match found {
            Some(Content::Text(text)) => Found::Text(text),
            Some(Content::Null) => Found::Null,
            Some(Content::Other) => Found::OtherType,
            None => Found::OtherFields(names),
        })
    }
}

/// A string, borrowed from the line if nothing in it is escaped. Other values are not kept.
#[derive(Debug, PartialEq, Eq)]
enum Content<'a> {
    Text(Cow<'a, str>),
    Null,
    Other,
}

/// Deserializes a [`Content`].
struct Value;

impl<'de> DeserializeSeed<'de> for Value {
    type Value = Content<'de>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Content<'de>, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value {
    type Value = Content<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Content<'de>, E> {
        Ok(Content::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Content<'de>, E> {
        Ok(Content::Text(Cow::Owned(text.into())))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Content<'de>, E> {
        Ok(Content::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Content<'de>, E> {
        Ok(Content::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Content<'de>, E> {
        Ok(Content::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Content<'de>, E> {
        Ok(Content::Other)
    }

    fn visit_unit<E: Error>(self) -> Result<Content<'de>, E> {
        Ok(Content::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Content<'de>, A::Error> {
        IgnoredAny.visit_seq(list).map(|_| Content::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Content<'de>, A::Error> {
        IgnoredAny.visit_map(map).map(|_| Content::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_line_only_the_wanted_string_is_kept() {
        let text = |text: &'static str| Found::Text(text.into());
        let cases = [
            (r#"{"text": "a\tb", "n": [1, {"text": 2}]}"#, text("a\tb")),
            (r#"{"n": {"text": "inner"}, "text": "outer"}"#, text("outer")),
            (r#"{"text": "first", "text": "last"}"#, text("last")),
            (r#"{"te\u0078t": "a", "n": null}"#, text("a")),
            (r#"{"text": [1, "a"]}"#, Found::OtherType),
            (r#"{"text": null}"#, Found::Null),
            (r#"{"body": "a", "a\u001bb": 1}"#, Found::OtherFields(vec!["body".into(), "a\\u{1b}b".into()])),
            ("{}", Found::OtherFields(vec![])),
            ("3", Found::NoObject),
            ("\"a\"", Found::NoObject),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line.as_bytes(), "text").unwrap(), expected, "{line}");
        }
        for torn in [r#"{"text": "a"} 1"#, r#"{"text": "a""#, r#"{"text": "\ud800"}"#, "nul", "{\"text\": \"\n\"}"] {
            assert!(parse(torn.as_bytes(), "text").is_err(), "{torn}");
        }
        assert!(parse(b"{\"text\": \"\xff\"}", "text").is_err());
    }
}
