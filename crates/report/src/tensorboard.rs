//! TensorBoard's event files: a sequence of framed records, each an `Event` in protocol-buffer encoding.
//!
//! A record consists of its length in 8 bytes, the masked CRC-32C of the length, the data, and the masked CRC-32C of
//! the data. All numbers are little-endian. These fields of the messages are written:
//!
//! | message | field | number | type |
//! |---|---|---:|---|
//! | `Event` | `wall_time` | 1 | double, seconds since 1970 |
//! | | `step` | 2 | int64 |
//! | | `file_version` | 3 | string, in the first event |
//! | | `summary` | 5 | `Summary` |
//! | | `session_log` | 7 | `SessionLog`, in the second event of a resumed run |
//! | `SessionLog` | `status` | 1 | enum, 1 for START |
//! | `Summary` | `value` | 1 | repeated `Value` |
//! | `Value` | `tag` | 1 | string |
//! | | `simple_value` | 2 | float |

use crate::Appender;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Writes one event file.
#[derive(Debug)]
pub struct EventWriter {
    file: Appender,
}

impl EventWriter {
    /// Creates a new event file in `folder`, which is created if it does not exist.
    pub fn create(folder: impl AsRef<Path>) -> io::Result<Self> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder)?;
        let now = since_1970();
        let name = format!("events.out.tfevents.{:010}.{}.{}", now.as_secs(), host(), std::process::id());
        let file = new_file(folder, &name)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", folder.join(&name).display())))?;
        let mut writer = Self { file: Appender::new(file) };
        writer.write(&version(now.as_secs_f64()))?;
        Ok(writer)
    }

    /// Creates a new event file of a run that resumes with step `first`. From this step on, TensorBoard discards what
    /// earlier files say, as with `purge_step` of PyTorch's `SummaryWriter`.
    pub fn create_from(folder: impl AsRef<Path>, first: u64) -> io::Result<Self> {
        let mut writer = Self::create(folder)?;
        writer.write(&start(since_1970().as_secs_f64(), first))?;
        Ok(writer)
    }

    /// Writes the values of a step, by tag, as one event. TensorBoard stores values as f32.
    ///
    /// # Errors
    /// If the disk refuses them. They are kept, and written before the next ones.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        self.write(&scalars(since_1970().as_secs_f64(), step, values))
    }

    /// Number of bytes that the disk has refused so far.
    pub fn refused(&self) -> usize {
        self.file.refused()
    }

    /// Uses one system call per record, so that readers never see, and stopped runs never leave, an incomplete one.
    fn write(&mut self, event: &[u8]) -> io::Result<()> {
        self.file.append(&record(event))
    }
}

/// Creates the file. A second writer of the same process in the same second gets a number.
fn new_file(folder: &Path, name: &str) -> io::Result<File> {
    let create = |name: &str| OpenOptions::new().write(true).create_new(true).open(folder.join(name));
    let mut created = create(name);
    for number in 1..100 {
        match &created {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => created = create(&format!("{name}.{number}")),
            _ => break,
        }
    }
    created
}

fn since_1970() -> Duration {
    // A clock set before 1970 must not stop a run.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), event, &masked_crc(event).to_le_bytes()].concat()
}

/// Masked, because the CRC of data that contains its own CRC is weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The first event of a file.
fn version(wall_time: f64) -> Vec<u8> {
    let mut event = vec![];
    double(&mut event, 1, wall_time);
    bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// The event that says at which step a resumed run starts.
fn start(wall_time: f64, first: u64) -> Vec<u8> {
    let (mut event, mut log) = (vec![], vec![]);
    key(&mut log, 1, Wire::Varint);
    varint(&mut log, 1);
    time_and_step(&mut event, wall_time, first);
    bytes(&mut event, 7, &log);
    event
}

/// An event with one value per tag.
fn scalars(wall_time: f64, step: u64, values: &[(&str, f64)]) -> Vec<u8> {
    let (mut event, mut summary) = (vec![], vec![]);
    for (tag, simple_value) in values {
        let mut value = vec![];
        bytes(&mut value, 1, tag.as_bytes());
        key(&mut value, 2, Wire::Fixed32);
        value.extend((*simple_value as f32).to_le_bytes());
        bytes(&mut summary, 1, &value);
    }
    time_and_step(&mut event, wall_time, step);
    bytes(&mut event, 5, &summary);
    event
}

fn time_and_step(event: &mut Vec<u8>, wall_time: f64, step: u64) {
    double(event, 1, wall_time);
    // A missing number means zero, so Python omits it.
    if step != 0 {
        key(event, 2, Wire::Varint);
        varint(event, step);
    }
}

/// How a field's value is encoded.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

fn key(to: &mut Vec<u8>, field: u64, wire: Wire) {
    varint(to, field << 3 | wire as u64);
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn double(to: &mut Vec<u8>, field: u64, value: f64) {
    key(to, field, Wire::Fixed64);
    to.extend(value.to_le_bytes());
}

fn bytes(to: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(to, field, Wire::Bytes);
    varint(to, value.len() as u64);
    to.extend(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    type Steps<'a> = &'a [(u64, &'a [(&'a str, f64)])];

    /// Compares a file of the fixture with what Kiln writes, given the time of the first event.
    fn compare(name: &str, time: f64, first: &[Vec<u8>], steps: Steps) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/events").join(name);
        let expected = fs::read(path).unwrap();
        let mut ours = record(&version(time));
        first.iter().for_each(|event| ours.extend(record(event)));
        for (index, (step, values)) in steps.iter().enumerate() {
            ours.extend(record(&scalars(time + index as f64 + 0.25, *step, values)));
        }
        assert!(ours == expected, "{ours:02x?}\n{expected:02x?}");
    }

    #[test]
    fn events_are_those_of_python_byte_for_byte() {
        let long = format!("a tag of more than 127 bytes: {}", "ä".repeat(60));
        let steps: Steps = &[
            (0, &[("loss", 5.5)]),
            (1, &[("loss_metrics/global_avg_loss", 5.4371), ("grad_norm", 0.0), ("mfu(%)", -1.5)]),
            (300, &[(&long, 1e-30)]),
            ((1 << 40) + 1, &[("loss", 1e300)]),
            ((1 << 40) + 2, &[]),
        ];
        compare("events.out.tfevents.1700000000.fixture.1", 1.7e9, &[], steps);
    }

    #[test]
    fn a_resumed_run_starts_as_python_does_where_tensorboard_forgets_what_is_done_again() {
        let start = start(1.7e9 + 100.0, 300);
        let steps: Steps = &[(300, &[("loss", 2.5)]), (301, &[("loss", 2.25)])];
        compare("events.out.tfevents.1700000100.fixture.2", 1.7e9 + 100.0, &[start], steps);
    }

    #[test]
    fn only_a_run_that_goes_on_starts_with_a_step() {
        let folder = tempfile::tempdir().unwrap();
        let written =
            || fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>();
        EventWriter::create(folder.path()).unwrap();
        let new = written();
        assert_eq!(new as usize, record(&version(1.0)).len());
        EventWriter::create_from(folder.path(), 301).unwrap();
        assert_eq!((written() - 2 * new) as usize, record(&start(1.0, 301)).len());
    }

    #[test]
    fn a_folder_gets_a_file_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("a/b");
        for _ in 0..2 {
            EventWriter::create(&runs).unwrap().scalars(7, &[("loss", 1.0)]).unwrap();
        }
        let files: Vec<_> = fs::read_dir(&runs).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 2);
        for file in files {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            assert!(name.starts_with("events.out.tfevents."), "{name}");
            let bytes = fs::read(&file).unwrap();
            assert_eq!(bytes.len(), record(&version(1.0)).len() + record(&scalars(1.0, 7, &[("loss", 1.0)])).len());
        }
    }

    #[test]
    fn a_folder_that_cannot_be_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(EventWriter::create(file.path().join("x")).is_err());
    }
}
