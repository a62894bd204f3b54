//! The pages of a Parquet column, whose sizes are checked before the crate `parquet` allocates what they claim.
//!
//! ```text
//! file    | page header: type, unpacked and packed size, values | packed bytes | page header | ...
//!           ^ read here first                                     ^ of gzip: counted here first
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read, Take};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::ByteArrayType;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescriptor;

/// Maximum unpacked size of a page in bytes. Writers aim at 1 MB, some at 100 MB.
const PAGE_BYTES: u64 = 256 << 20;

/// Maximum number of values in a page and in a dictionary. The crate takes 4 and about 40 bytes for each.
const PAGE_VALUES: u64 = 16 << 20;
const DICTIONARY_VALUES: u64 = 4 << 20;

/// A header contains a smallest and a largest value, which may be documents.
const HEADER_BYTES: u64 = 32 << 20;

/// Whether a column may contain nulls.
pub fn is_nullable(column: &ColumnDescriptor) -> bool {
    column.max_def_level() > 0
}

/// The values of a column of strings in a row group of `file`.
pub fn column(file: &Arc<File>, group: &RowGroupMetaData, column: usize) -> Result<ColumnReaderImpl<ByteArrayType>> {
    let metadata = group.column(column);
    if let other @ (Compression::LZO | Compression::BROTLI(_)) = metadata.compression() {
        let name = other.to_string();
        let name = name.split('(').next().unwrap_or_default(); // without the level
        let problem = format!("its text is compressed by {name}, and Snappy, gzip, LZ4 and zstd alone are read");
        return Err(ParquetError::General(problem));
    }
    let chunk = Chunk { file: file.clone(), compression: metadata.compression(), header: Mutex::default() };
    let rows = usize::try_from(group.num_rows())?;
    let pages = SerializedPageReader::new(Arc::new(chunk), metadata, rows, None)?;
    let pages = Pages { pages, nullable: is_nullable(metadata.column_descr()) };
    Ok(ColumnReaderImpl::new(metadata.column_descr_ptr(), Box::new(pages)))
}

fn refused<T>(problem: impl std::fmt::Display) -> Result<T> {
    Err(ParquetError::General(format!("{problem}; write it with pages of a megabyte")))
}

/// The file behind a page reader, which asks for each page's header and then for its bytes.
struct Chunk {
    file: Arc<File>,
    compression: Compression,
    /// The header of the page whose bytes come next.
    header: Mutex<Header>,
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.file.as_ref().len()
    }
}

impl ChunkReader for Chunk {
    type T = Take<BufReader<File>>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let read = || Ok::<_, ParquetError>(self.file.get_read(start)?.take(HEADER_BYTES));
        let header = Header::read(&mut read()?)?;
        if header.unpacked > PAGE_BYTES {
            return refused(format!("a page of {} bytes is above the limit of {PAGE_BYTES}", header.unpacked));
        }
        *self.header.lock().unwrap_or_else(PoisonError::into_inner) = header;
        read()
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.file.get_bytes(start, length)?;
        let header = *self.header.lock().unwrap_or_else(PoisonError::into_inner);
        // For these two the crate unpacks everything, up to a thousand times the size of the page.
        let unpacked = match self.compression {
            Compression::GZIP(_) => {
                let packed = bytes.get(header.levels as usize..).unwrap_or_default();
                io::copy(&mut MultiGzDecoder::new(packed).take(PAGE_BYTES + 1), &mut io::sink())?
            }
            Compression::LZ4 => length as u64 * 255,
            _ => 0,
        };
        match unpacked > PAGE_BYTES {
            true => refused(format!("a page unpacks to more than the limit of {PAGE_BYTES} bytes")),
            false => Ok(bytes),
        }
    }
}

/// Pages that hold no more values than they have room for.
struct Pages {
    pages: SerializedPageReader<Chunk>,
    nullable: bool,
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.as_ref().map_or(Ok(()), |page| check(page, self.nullable))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

fn check(page: &Page, nullable: bool) -> Result<()> {
    let (values, bytes) = (u64::from(page.num_values()), page.buffer());
    if page.is_dictionary_page() {
        // Each value has its length in 4 bytes.
        let most = DICTIONARY_VALUES.min(bytes.len() as u64 / 4);
        return if values > most {
            refused(format!("a dictionary of {values} values, at most {most}"))
        } else {
            Ok(())
        };
    }
    if values > PAGE_VALUES {
        return refused(format!("a page of {values} values is above the limit of {PAGE_VALUES}"));
    }
    let lists = match page.encoding() {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => 1, // of lengths
        Encoding::DELTA_BYTE_ARRAY => 2,        // and of shared prefixes
        _ => return Ok(()),
    };
    // These encodings repeat the number of values.
    let mut rest = after_levels(page, nullable);
    for _ in 0..lists {
        rest = rest.and_then(|rest| after_deltas(rest, values));
    }
    rest.map_or_else(|| refused("a page has other lengths than values"), |_| Ok(()))
}

/// The bytes after a page's levels, which say where its nulls are. None if the levels are cut off.
///
/// ```text
/// version 1, nullable | bytes of levels, u32 | levels | values
/// version 2           | levels, whose bytes the header says | values
/// ```
///
/// Only lists have repetition levels, and columns of lists are not read.
fn after_levels(page: &Page, nullable: bool) -> Option<&[u8]> {
    let bytes = page.buffer();
    match page {
        Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
            bytes.get(def_levels_byte_len.saturating_add(*rep_levels_byte_len) as usize..)
        }
        Page::DataPage { .. } if !nullable => Some(bytes),
        Page::DataPage { def_level_encoding: Encoding::RLE, .. } => {
            let (levels, rest) = bytes.split_first_chunk()?;
            rest.get(u32::from_le_bytes(*levels) as usize..)
        }
        // Other level encodings predate these encodings of values.
        _ => None,
    }
}

/// The bytes after a list of at most `most` delta-encoded numbers. None if there are more, or if the list is cut off.
fn after_deltas(mut bytes: &[u8], most: u64) -> Option<&[u8]> {
    let [block, parts, count, _] = [(); 4].map(|()| varint(&mut bytes).ok());
    let (parts, count) = (parts?, count?);
    let in_part = block?.checked_div(parts)?;
    let mut left = count.saturating_sub(1);
    while count <= most && left > 0 {
        varint(&mut bytes).ok()?;
        let (widths, rest) = bytes.split_at_checked(usize::try_from(parts).ok()?)?;
        bytes = rest;
        for &width in widths.iter().take(left.div_ceil(in_part.max(1)) as usize) {
            let data = u64::from(width).checked_mul(in_part)? / 8;
            bytes = bytes.get(usize::try_from(data).ok()?..)?;
            left = left.saturating_sub(in_part.max(1));
        }
    }
    (count <= most).then_some(bytes)
}

/// The sizes in a page's header, the largest if a size is repeated.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Header {
    unpacked: u64,
    /// Bytes of levels, which are not compressed.
    levels: u64,
}

/// Field numbers of `PageHeader`, and of the `DataPageHeaderV2` in it.
const UNPACKED: u64 = 2;
const NUMBERS: std::ops::RangeInclusive<u64> = 1..=4;
const HEADERS: std::ops::RangeInclusive<u64> = 5..=8;
const V2: u64 = 8;
const V2_LEVELS: std::ops::RangeInclusive<u64> = 5..=6;

/// Types of Thrift's compact protocol.
const I32: u8 = 5;
const STRUCT: u8 = 12;

impl Header {
    fn read(read: &mut impl Read) -> Result<Self> {
        let mut header = Self::default();
        fields(read, &mut |read, id, kind| {
            match (id, kind) {
                (UNPACKED, I32) => header.unpacked = header.unpacked.max(number(read)?),
                (V2, STRUCT) => fields(read, &mut |read, id, kind| match (V2_LEVELS.contains(&id), kind) {
                    (true, I32) => {
                        header.levels = header.levels.saturating_add(number(read)?);
                        Ok(())
                    }
                    (true, _) => refused("a page's header is none"),
                    _ => skip(read, kind, 0),
                })?,
                _ if NUMBERS.contains(&id) && kind != I32 || HEADERS.contains(&id) && kind != STRUCT => {
                    return refused("a page's header is none");
                }
                _ => skip(read, kind, 0)?,
            }
            Ok(())
        })?;
        Ok(header)
    }
}

/// Calls `take` with the number and type of each field of a struct, to read its value.
fn fields<R: Read>(read: &mut R, take: &mut dyn FnMut(&mut R, u64, u8) -> Result<()>) -> Result<()> {
    let mut id = 0u64;
    loop {
        let head = byte(read)?;
        if head == 0 {
            return Ok(());
        }
        id = if head >> 4 == 0 { number(read)? } else { id.saturating_add(u64::from(head >> 4)) };
        take(read, id, head & 15)?;
    }
}

/// Skips a value of a type, nested `depth` levels deep.
fn skip<R: Read>(read: &mut R, kind: u8, depth: u32) -> Result<()> {
    match kind {
        1 | 2 => {}
        3 => drop(byte(read)?),
        4..=6 => drop(varint(read)?),
        7 => over(read, 8)?,
        8 => {
            let bytes = varint(read)?;
            over(read, bytes)?;
        }
        9 | 10 if depth < 8 => {
            let head = byte(read)?;
            let count = if head >> 4 == 15 { varint(read)? } else { u64::from(head >> 4) };
            for _ in 0..count {
                // In a list, a boolean takes a byte.
                let kind = if matches!(head & 15, 1 | 2) { 3 } else { head & 15 };
                skip(read, kind, depth + 1)?;
            }
        }
        STRUCT if depth < 8 => fields(read, &mut |read, _, kind| skip(read, kind, depth + 1))?,
        _ => return refused("a page's header is none"),
    }
    Ok(())
}

fn over(read: &mut impl Read, bytes: u64) -> Result<()> {
    match io::copy(&mut read.take(bytes), &mut io::sink())? == bytes {
        true => Ok(()),
        false => refused("a page's header is torn"),
    }
}

/// A non-negative number. A negative one becomes `u64::MAX`, which no limit allows.
fn number(read: &mut impl Read) -> Result<u64> {
    let zigzag = varint(read)?;
    Ok(if zigzag & 1 == 0 { zigzag >> 1 } else { u64::MAX })
}

fn varint(read: &mut impl Read) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = byte(read)?;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
    }
    refused("a number has too many digits")
}

fn byte(read: &mut impl Read) -> Result<u8> {
    let mut byte = [0];
    read.read_exact(&mut byte)?;
    Ok(byte[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::basic::Type;
    use parquet::file::metadata::ColumnChunkMetaData;
    use parquet::schema::types::{ColumnPath, Type as SchemaType};
    use std::io::Write;

    /// A field with a 32-bit integer, whose number exceeds the previous field's by `delta`.
    fn int(delta: u8, value: i64) -> Vec<u8> {
        let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
        let mut bytes = vec![delta << 4 | I32];
        while zigzag > 127 {
            bytes.push(zigzag as u8 | 128);
            zigzag >>= 7;
        }
        bytes.push(zigzag as u8);
        bytes
    }

    /// A page: its header, whose type is 0 for data and 2 for a dictionary, and its bytes.
    fn page(kind: i64, unpacked: i64, values: i64, encoding: i64, packed: &[u8]) -> Vec<u8> {
        let sizes = [int(1, kind), int(1, unpacked), int(1, packed.len() as i64)].concat();
        let header = vec![if kind == 2 { 4 } else { 2 } << 4 | STRUCT];
        let numbers = [int(1, values), int(1, encoding)].concat();
        let levels = if kind == 2 { vec![] } else { [int(1, 3), int(1, 3)].concat() };
        [&sizes[..], &header, &numbers, &levels, &[0, 0], packed].concat()
    }

    fn read(compression: Compression, nullable: bool, page: &[u8]) -> Result<usize> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(page).unwrap();
        let schema = SchemaType::primitive_type_builder("text", Type::BYTE_ARRAY).build().unwrap();
        let column = ColumnDescriptor::new(Arc::new(schema), nullable.into(), 0, ColumnPath::from("text"));
        let metadata = ColumnChunkMetaData::builder(Arc::new(column))
            .set_compression(compression)
            .set_total_compressed_size(page.len() as i64)
            .build()?;
        let chunk = Chunk { file: Arc::new(file), compression, header: Mutex::default() };
        let pages = SerializedPageReader::new(Arc::new(chunk), &metadata, 1, None)?;
        let mut pages = Pages { pages, nullable };
        Ok(pages.get_next_page()?.map_or(0, |page| page.buffer().len()))
    }

    fn gzip(bytes: u64) -> Vec<u8> {
        let mut packed = Vec::new();
        let encoder = flate2::read::GzEncoder::new(io::repeat(0).take(bytes), flate2::Compression::best());
        { encoder }.read_to_end(&mut packed).unwrap();
        packed
    }

    #[test]
    fn a_page_is_read_only_if_what_it_says_can_be() {
        let (none, packed) = (Compression::UNCOMPRESSED, Compression::GZIP(Default::default()));
        let large = gzip(PAGE_BYTES + 1);
        let lengths = |count: u8| [128, 1, 4, count, 2, 0, 0, 0, 0, 0, 97];
        let levels = |count: u8| [&[2, 0, 0, 0, 2, 1][..], &lengths(count)].concat();
        let nullable: [(Vec<u8>, Result<usize, &str>); 3] = [
            (page(0, 17, 1, 6, &levels(1)), Ok(17)),
            (page(0, 17, 1, 6, &levels(9)), Err("a page has other lengths than values")),
            (page(0, 11, 1, 6, &lengths(1)), Err("a page has other lengths than values")),
        ];
        let nullable = nullable.map(|(page, expected)| (none, true, page, expected));
        let cases: [(_, Vec<u8>, Result<usize, &str>); 10] = [
            (none, page(0, 8, 1, 0, &[4, 0, 0, 0, 97, 98, 99, 100]), Ok(8)),
            (none, page(0, i64::from(i32::MAX), 1, 0, &[0; 8]), Err("a page of 2147483647 bytes is above the limit")),
            (none, page(0, -1, 1, 0, &[0; 8]), Err("a page of 18446744073709551615 bytes")),
            (none, page(0, 8, i64::from(i32::MAX), 0, &[0; 8]), Err("a page of 2147483647 values is above the limit")),
            (none, page(2, 8, 3, 0, &[0; 8]), Err("a dictionary of 3 values, at most 2")),
            (none, page(2, 8, 2, 0, &[0; 8]), Ok(8)),
            (packed, page(0, 1000, 1, 0, &gzip(1000)), Ok(1000)),
            (packed, page(0, 1000, 1, 0, &large), Err("a page unpacks to more than the limit of 268435456 bytes")),
            (none, page(0, 11, 1, 6, &lengths(1)), Ok(11)),
            (none, page(0, 11, 1, 6, &lengths(9)), Err("a page has other lengths than values")),
        ];
        let cases = cases.map(|(compression, page, expected)| (compression, false, page, expected));
        for (compression, nullable, page, expected) in cases.into_iter().chain(nullable) {
            match (read(compression, nullable, &page), expected) {
                (Ok(bytes), Ok(expected)) => assert_eq!(bytes, expected),
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}: {expected}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
        let twice = [&int(2, 8)[..], &[I32, 4], &int(1, 1)[1..], &[0]].concat();
        assert!(Header::read(&mut &twice[..]).is_ok_and(|header| header.unpacked == 8), "the larger one");
        for torn in [&[0x25][..], &[0x27, 0], &[0x88, 1, 0], &[0x19; 90], &[0x1c; 90]] {
            assert!(Header::read(&mut &torn[..]).is_err(), "{torn:?}");
        }
    }
}
