//! JSON lines: an object per line, one field of which is a document.

use std::io::Read;
use std::sync::atomic::AtomicU64;

use serde_json::Value;

use super::files::TextFile;
use super::pieces::{self, Emit};
use super::text;
use crate::DataError;

/// A line is held in memory, so it has a limit.
const MAX_LINE: u64 = 256 << 20;

/// What is wrong with a file that is one list of objects.
const ARRAY: &str = "is an array, not an object (`jq -c '.[]' FILE > FILE.jsonl` makes it a line for each)";

/// Emits the documents of a file; empty lines are skipped.
pub fn read(file: &TextFile, field: &str, count: &AtomicU64, emit: Emit<'_>) -> Result<(), DataError> {
    let mut reader = text::open(file, count)?;
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
            return Err(wrong(format!("is longer than {MAX_LINE} bytes")));
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let document = match serde_json::from_slice(&bytes) {
            Ok(Value::Object(object)) => object,
            Ok(Value::Array(_)) => return Err(wrong(ARRAY.into())),
            Ok(_) => return Err(wrong("is not an object".into())),
            Err(_) if line == 1 && bytes.trim_ascii().starts_with(b"[") => return Err(wrong(ARRAY.into())),
            Err(error) => return Err(wrong(format!("is not JSON ({error})"))),
        };
        match document.get(field) {
            Some(Value::String(text)) => pieces::document(text, emit)?,
            Some(_) => return Err(wrong(format!("{field:?} is not a string"))),
            None => {
                let fields = document.keys().take(8).map(|key| &key[..]).collect::<Vec<_>>().join(", ");
                return Err(DataError::JsonField { path: file.path.clone(), line, field: field.into(), fields });
            }
        }
    }
    Ok(())
}
