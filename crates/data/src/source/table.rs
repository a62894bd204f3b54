//! CSV and TSV: one document per row, in one of the columns that the first row names.

use std::io::{self, BufRead};
use std::str;
use std::sync::atomic::AtomicU64;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::files::TextFile;
use super::pieces::{self, Emit};
use super::text;
use crate::DataError;
use crate::error::count;

/// A row and its document are held in memory, so rows have a limit. A quote that is never closed turns the rest of the
/// file into one row.
const MAX_ROW: usize = 64 << 20;

/// How many columns an error names, and how many characters of each.
const NAMED_COLUMNS: usize = 8;
const NAMED_CHARS: usize = 40;

/// Emits the documents of a file. Empty fields are skipped. Quotes follow RFC 4180, in TSV as well.
pub fn read(file: &TextFile, delimiter: u8, field: &str, read: &AtomicU64, emit: Emit<'_>) -> Result<(), DataError> {
    let mut rows = TableRows::new(text::open(file, read)?, delimiter);
    let wrong = |row, problem| DataError::Row { path: file.path.clone(), row, problem };
    let failed = |row, error: RowError| match error {
        RowError::Read(error) => text::failed(file, error),
        RowError::TooLong => wrong(row, format!("is longer than {MAX_ROW} bytes: is a quote left open?")),
        RowError::OpenQuote => {
            let problem =
                "a quote opens here and is never closed: close it (in a quoted field, a quote of the text is doubled)";
            wrong(row, problem.into())
        }
    };
    let found = rows.next().map_err(|error| failed(0, error))?;
    let columns: Vec<String> = if found { rows.fields().map(name).collect() } else { vec![] };
    let Some(column) = columns.iter().position(|name| name == field) else {
        let shown = |name: &String| name.chars().take(NAMED_CHARS).flat_map(char::escape_debug).collect::<String>();
        let names = columns.iter().take(NAMED_COLUMNS).map(shown).collect::<Vec<_>>().join(", ");
        let other = other_delimiter(&columns, field);
        return Err(DataError::TableColumn { path: file.path.clone(), field: field.into(), columns: names, other });
    };
    if columns[column + 1..].iter().any(|name| name == field) {
        return Err(wrong(0, format!("names column {field:?} twice: give one of the two another name")));
    }
    for row in 1.. {
        if !rows.next().map_err(|error| failed(row, error))? {
            break;
        }
        let wrong = |problem| Err(wrong(row, problem));
        if rows.len() != columns.len() {
            let (fields, columns) = (count(rows.len() as u64, "field"), count(columns.len() as u64, "column"));
            return wrong(format!("has {fields}, and the header {columns}: put fields with a delimiter in quotes"));
        }
        let Some(Ok(text)) = rows.fields().nth(column).map(str::from_utf8) else {
            return wrong(format!("the text in column {field:?} is not UTF-8: write it again as UTF-8"));
        };
        pieces::document(text, emit)?;
    }
    Ok(())
}

/// The name of a column.
fn name(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim().into()
}

/// Another delimiter that would give a column named `field`.
fn other_delimiter(columns: &[String], field: &str) -> Option<char> {
    let parts = |delimiter| columns.iter().flat_map(move |column| column.split(delimiter));
    [';', ',', '\t', '|'].into_iter().find(|&delimiter| parts(delimiter).any(|name| name.trim() == field))
}

/// Why there is no next row.
enum RowError {
    Read(io::Error),
    TooLong,
    OpenQuote,
}

/// The rows of a table, one at a time.
struct TableRows<'a> {
    text: Box<dyn BufRead + 'a>,
    parser: Reader,
    /// The concatenated fields of the row, and where each ends. Only the first `len` ends are valid.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    len: usize,
}

impl<'a> TableRows<'a> {
    fn new(text: Box<dyn BufRead + 'a>, delimiter: u8) -> Self {
        let parser = ReaderBuilder::new().delimiter(delimiter).build();
        Self { text, parser, bytes: vec![0; 4096], ends: vec![0; 16], len: 0 }
    }

    /// Reads the next row that is not an empty line. Returns false at the end.
    fn next(&mut self) -> Result<bool, RowError> {
        let mut written = 0;
        self.len = 0;
        loop {
            let input = self.text.fill_buf().map_err(RowError::Read)?;
            // Feeds a line break at the end of the file: the parser would accept the end itself as a closing quote, but
            // a line break becomes part of the quoted text.
            let at_end = input.is_empty();
            let input = if at_end { b"\n" } else { input };
            let (result, taken, bytes, ends) =
                self.parser.read_record(input, &mut self.bytes[written..], &mut self.ends[self.len..]);
            match at_end {
                true if bytes > 0 => return Err(RowError::OpenQuote),
                true => {}
                false => self.text.consume(taken),
            }
            (written, self.len) = (written + bytes, self.len + ends);
            match result {
                ReadRecordResult::InputEmpty if at_end => return Ok(false),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if self.bytes.len() >= MAX_ROW => return Err(RowError::TooLong),
                ReadRecordResult::OutputFull => self.bytes.resize(2 * self.bytes.len(), 0),
                ReadRecordResult::OutputEndsFull if self.ends.len() >= MAX_ROW => return Err(RowError::TooLong),
                ReadRecordResult::OutputEndsFull => self.ends.resize(2 * self.ends.len(), 0),
                ReadRecordResult::Record => return Ok(true),
                ReadRecordResult::End => return Ok(false),
            }
        }
    }

    /// Number of fields of the row.
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends[..self.len]);
        starts.zip(&self.ends[..self.len]).map(|(start, end)| &self.bytes[*start..*end])
    }
}
