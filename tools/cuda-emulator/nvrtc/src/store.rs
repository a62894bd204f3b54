//! What has been compiled: in memory, and in a folder.

use crate::say::say;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::{fs, io, process};

/// What NVRTC answers for a program that it has compiled without an error.
#[derive(Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The PTX, with the zero at its end.
    pub ptx: Vec<u8>,
    /// The log of warnings, with the zero at its end.
    pub log: Vec<u8>,
}

type Slot = Arc<OnceLock<Option<Arc<Compiled>>>>;

/// Compiled programs by their keys.
pub struct Store {
    folder: Option<PathBuf>,
    warned: Once,
    slots: Mutex<HashMap<Vec<u8>, Slot>>,
}

impl Store {
    /// A store that also keeps programs in `folder`, which is created with the first one.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, warned: Once::new(), slots: Mutex::default() }
    }

    /// The compiled program of `key`, or what `compile` makes of it. Callers that ask for the same program at the same
    /// time wait for one of them to compile it. `None` if `compile` has failed, now or earlier.
    pub fn get(&self, key: &[u8], compile: impl FnOnce() -> Option<Compiled>) -> Option<Arc<Compiled>> {
        let slot =
            Arc::clone(self.slots.lock().unwrap_or_else(PoisonError::into_inner).entry(key.to_vec()).or_default());
        slot.get_or_init(|| {
            let Some(file) = self.folder.as_deref().map(|folder| file(folder, key)) else {
                return compile().map(Arc::new);
            };
            if let Some(kept) = fs::read(&file).ok().and_then(|bytes| decode(&bytes, key)) {
                return Some(Arc::new(kept));
            }
            let compiled = compile()?;
            if let Err(why) = write(&file, &encode(&compiled, key)) {
                let warn = || say(&format!("{}: {why}; the next process will compile this again", file.display()));
                self.warned.call_once(warn);
            }
            Some(Arc::new(compiled))
        })
        .clone()
    }
}

/// The file of a program. Its name is a hash, so the file also holds the key.
fn file(folder: &Path, key: &[u8]) -> PathBuf {
    folder.join(format!("{:016x}", hash(key)))
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Under another name first: a process that reads at the same time must not see half of it.
fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = file.with_extension(process::id().to_string());
    // What is left of a file that could not be written would keep a full disk full.
    fs::write(&new, bytes).and_then(|()| fs::rename(&new, file)).inspect_err(|_| drop(fs::remove_file(&new)))
}

/// Key, log and PTX, each after its length, and a hash of all that: a power cut can leave zeros in a file.
fn encode(compiled: &Compiled, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [key, &compiled.log, &compiled.ptx] {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part);
    }
    bytes.extend(hash(&bytes).to_le_bytes());
    bytes
}

/// The inverse of [`encode`]. `None` if the bytes are damaged or belong to another key.
fn decode(bytes: &[u8], key: &[u8]) -> Option<Compiled> {
    let (mut bytes, sum) = bytes.split_last_chunk()?;
    if hash(bytes) != u64::from_le_bytes(*sum) {
        return None;
    }
    let mut part = || {
        let (length, rest) = bytes.split_first_chunk()?;
        let (part, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        bytes = rest;
        Some(part)
    };
    let (found, log, ptx) = (part()?, part()?.to_vec(), part()?.to_vec());
    (found == key && bytes.is_empty()).then_some(Compiled { ptx, log })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    fn compiled(text: &str) -> Compiled {
        Compiled { ptx: text.into(), log: b"a warning\0".into() }
    }

    #[test]
    fn threads_that_ask_at_once_compile_once() {
        let (store, count, start) = (Store::new(None), AtomicUsize::new(0), Barrier::new(8));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let found = store.get(b"key", || {
                        count.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(50));
                        Some(compiled("ptx"))
                    });
                    assert_eq!(*found.unwrap(), compiled("ptx"));
                });
            }
        });
        assert_eq!(count.into_inner(), 1);
    }

    #[test]
    fn another_process_finds_what_one_has_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = || Store::new(Some(folder.path().join("programs")));
        store().get(b"one", || Some(compiled("1")));
        store().get(b"two", || Some(compiled("2")));
        let never = || -> Option<Compiled> { panic!("compiled again") };
        assert_eq!(*store().get(b"one", never).unwrap(), compiled("1"));
        assert_eq!(*store().get(b"two", never).unwrap(), compiled("2"));
    }

    #[test]
    fn a_damaged_file_is_compiled_anew() {
        let folder = tempfile::tempdir().unwrap();
        let get = |text: &str| Store::new(Some(folder.path().into())).get(b"key", || Some(compiled(text))).unwrap();
        get("first");
        let file = file(folder.path(), b"key");
        let whole = fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            fs::write(&file, &whole[..cut]).unwrap();
            assert_eq!(*get("second"), compiled("second"), "cut off after {cut} bytes");
        }
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            fs::write(&file, bytes).unwrap();
            assert_eq!(*get("second"), compiled("second"), "byte {place} has changed");
        }
        fs::write(&file, encode(&compiled("of another"), b"another key")).unwrap();
        assert_eq!(*get("third"), compiled("third"));
    }

    #[test]
    fn what_did_not_compile_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = || Store::new(Some(folder.path().into()));
        assert!(store().get(b"key", || None).is_none());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(store().get(b"key", || Some(compiled("now"))).is_some());
    }
}
