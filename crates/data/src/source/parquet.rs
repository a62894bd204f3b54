//! Parquet files: one document per row, in a column of strings.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parquet::basic::Type;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::Counts;
use super::pages;
use super::pieces::{self, Emit};
use super::text;
use crate::{DataError, quiet};

/// Rows decoded at once.
const ROWS: usize = 256;

/// Emits the documents of a file, row group by row group. Nulls are counted.
pub fn read(path: &Path, field: &str, counts: &Counts, emit: Emit<'_>) -> Result<(), DataError> {
    let file = Arc::new(File::open(path).map_err(|error| DataError::read(path, error))?);
    let reader = guard(path, || SerializedFileReader::new(file.try_clone()?))?;
    let column = find_column(path, field, &reader)?;
    let nullable = pages::is_nullable(&reader.metadata().file_metadata().schema_descr().column(column));
    let size = file.metadata().map_err(|error| DataError::read(path, error))?.len();
    let (mut row, mut unpacked) = (0, 0);
    for group in 0..reader.num_row_groups() {
        let mut rows = guard(path, || pages::column(&file, reader.metadata().row_group(group), column))?;
        loop {
            let (documents, read) = guard(path, || next_rows(&mut rows, nullable))?;
            if read == 0 {
                break;
            }
            for document in documents {
                row += 1;
                let Some(document) = document else {
                    counts.nulls.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let Ok(text) = std::str::from_utf8(document.data()) else {
                    return Err(DataError::ParquetText { path: path.into(), row, field: field.into() });
                };
                // A few bytes may refer to a long document in the dictionary again and again.
                unpacked += text.len() as u64;
                if unpacked > text::limit(size) {
                    let (path, advice) = (path.into(), "write it as JSON lines and give those".into());
                    return Err(DataError::Bomb { path, packed: size, bytes: unpacked, advice });
                }
                pieces::document(text, emit)?;
            }
        }
        let size = guard(path, || Ok(reader.metadata().row_group(group).compressed_size()))?;
        counts.read.fetch_add(size.max(0) as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// The next rows. None for a null.
fn next_rows(
    rows: &mut ColumnReaderImpl<ByteArrayType>,
    nullable: bool,
) -> Result<(Vec<Option<ByteArray>>, usize), ParquetError> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    let (read, _, _) = rows.read_records(ROWS, nullable.then_some(&mut levels), None, &mut values)?;
    let mut values = values.into_iter();
    // In a column outside groups, level 0 is a null.
    let row = |index: usize| if levels.get(index).is_some_and(|&level| level == 0) { None } else { values.next() };
    Ok(((0..read).map(row).collect(), read))
}

fn find_column(path: &Path, field: &str, reader: &SerializedFileReader<File>) -> Result<usize, DataError> {
    let schema = reader.metadata().file_metadata().schema_descr();
    let found = schema.columns().iter().position(|column| column.path().parts()[0] == field);
    if let Some(at) = found {
        let column = schema.column(at);
        let holds = match column.physical_type() {
            _ if column.path().parts().len() > 1 || column.max_rep_level() > 0 => "lists or structures".into(),
            Type::BYTE_ARRAY => return Ok(at),
            other => other.to_string(),
        };
        return Err(DataError::ParquetType { path: path.into(), field: field.into(), holds });
    }
    let names: Vec<String> = schema.columns().iter().take(8).map(|column| column.path().string()).collect();
    Err(DataError::ParquetColumn { path: path.into(), field: field.into(), columns: names.join(", ") })
}

/// Calls into the crate `parquet`, which trusts some of a file's numbers and then panics (on an index or a capacity out
/// of range). A broken file is the user's error, not a bug of Kiln, so it must end as an error.
fn guard<T>(path: &Path, call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, DataError> {
    let wrong = |problem| DataError::Parquet { path: path.into(), problem };
    match quiet::catch(call) {
        Some(result) => result.map_err(|error| wrong(error.to_string())),
        None => Err(wrong("its numbers contradict each other".into())),
    }
}
