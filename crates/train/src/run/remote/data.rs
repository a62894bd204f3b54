//! Data of a store, downloaded once into the cache, and again if it has changed there.
//!
//! ```text
//! CACHE/data/DIGEST OF THE URL/DIGEST OF NAMES, SIZES AND ETAGS/corpus/a.jsonl     s3://bucket/corpus
//!                                                                      b.jsonl
//! ```
//!
//! A copy is never changed, because a run may be reading it.

use super::reporting;
use crate::error::TrainError;
use crate::format::{bytes, count, duration};
use crate::host::launch::number_among_several;
use crate::terminal::{is_warning, to_stderr};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use store::{Bucket, Object, StoreError};

/// The name of data as a path of this machine: that of its copy if it is the URL of a store. Of several processes of a
/// machine one downloads, and the others wait. `quiet` says nothing but warnings.
///
/// # Errors
/// If the URL is wrong, if there is nothing, or if it cannot be downloaded into the cache.
pub(crate) fn local(source: &str, quiet: bool) -> Result<String, TrainError> {
    if !store::is_of_store(source) {
        return Ok(source.into());
    }
    let bucket = Bucket::open(source).map_err(TrainError::DataOfStore)?;
    let say = |line: &str| {
        if !quiet || is_warning(line) {
            to_stderr(line);
        }
    };
    let folder = data::cache_root()?.join("data").join(digest([bucket.url()]));
    let copies = Copies { url: bucket.url(), folder, quiet };
    let download = |objects: &[Object], to: &Path| {
        let again = |error: &StoreError, wait| {
            to_stderr(&format!("warning: a download failed and is tried again in {}: {error}", duration(wait)))
        };
        let size = objects.iter().map(|object| object.bytes).sum();
        reporting(size, say, |got| bucket.fetch(objects, to, got, again)).map_err(TrainError::DataOfStore)
    };
    Ok(copies.get(bucket.objects(), &say, download)?.display().to_string())
}

/// The copies of what a URL has had.
struct Copies<'a> {
    url: &'a str,
    folder: PathBuf,
    quiet: bool,
}

impl Copies<'_> {
    /// The path of a copy of these objects, which `download` makes unless it is there. If the store does not answer, that
    /// of the newest copy.
    fn get(
        &self,
        objects: Result<Vec<Object>, StoreError>,
        say: &dyn Fn(&str),
        download: impl FnOnce(&[Object], &Path) -> Result<(), TrainError>,
    ) -> Result<PathBuf, TrainError> {
        let (url, newest) = (self.url, self.newest());
        let name = url.rsplit('/').next().unwrap_or_default();
        let objects = match (objects, &newest) {
            (Ok(objects), _) => objects,
            (Err(error @ StoreError::Failed { .. }), Some(copy)) => {
                if number_among_several().is_none_or(|number| number == 0) {
                    say(&format!("warning: {error}; the copy {} is used, which may be old", copy.display()));
                }
                return Ok(copy.join(name));
            }
            (Err(error), _) => return Err(TrainError::DataOfStore(error)),
        };
        let parts = objects.iter().flat_map(|object| {
            let size = object.bytes.to_string();
            [object.name.clone(), size, object.e_tag.clone().unwrap_or_else(|| object.modified.clone())]
        });
        let copy = self.folder.join(digest(parts.collect::<Vec<_>>().iter().map(String::as_str)));
        data::fill_once(&copy, !self.quiet && number_among_several().is_none(), |to| {
            let (began, size) = (Instant::now(), bytes(objects.iter().map(|object| object.bytes as usize).sum()));
            if let Some(old) = &newest {
                say(&format!("{url} has changed; its old copy stays, and can be removed: {}", old.display()));
            }
            say(&format!("downloading {url}, {} of {size}", count(objects.len(), "object")));
            download(&objects, to)?;
            say(&format!("downloaded {} in {}", copy.join(name).display(), duration(began.elapsed())));
            Ok::<_, TrainError>(())
        })?;
        for Object { name, bytes, .. } in &objects {
            let path = copy.join(name);
            if fs::metadata(&path).map(|found| found.len()).ok() != Some(*bytes) {
                return Err(TrainError::DamagedCopy { path, bytes: *bytes, copy });
            }
        }
        Ok(copy.join(name))
    }

    /// The last copy that was made.
    fn newest(&self) -> Option<PathBuf> {
        let copies = fs::read_dir(&self.folder).ok()?.flatten();
        let is_whole = |path: &PathBuf| !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let copies = copies.map(|entry| entry.path()).filter(|path| is_whole(path) && path.is_dir());
        copies.max_by_key(|path| fs::metadata(path).and_then(|found| found.modified()).ok())
    }
}

/// A digest of texts, as 32 hexadecimal digits.
fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    fn object(name: &str, content: &str) -> Object {
        let (e_tag, key) = (Some(digest([content])), name.to_string());
        Object { name: name.into(), key, bytes: content.len() as u64, e_tag, modified: String::new() }
    }

    #[test]
    fn a_copy_is_made_once_and_again_if_the_store_has_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let copies = Copies { url: "s3://b/corpus", folder: folder.path().join("data"), quiet: true };
        let (said, downloads) = (RefCell::new(vec![]), Cell::new(0));
        let get = |content: &str| {
            let objects = vec![object("corpus/sub/a.txt", content), object("corpus/b.txt", "b")];
            let download = |objects: &[Object], to: &Path| {
                downloads.set(downloads.get() + 1);
                fs::create_dir_all(to.join("corpus/sub")).unwrap();
                fs::write(to.join("corpus/sub/a.txt"), content).unwrap();
                fs::write(to.join("corpus/b.txt"), "b").unwrap();
                assert_eq!(objects.len(), 2);
                Ok(())
            };
            copies.get(Ok(objects), &|line| said.borrow_mut().push(line.to_string()), download).unwrap()
        };
        let first = get("one");
        assert_eq!((get("one"), downloads.get()), (first.clone(), 1));
        assert_eq!(fs::read_to_string(first.join("sub/a.txt")).unwrap(), "one");
        assert_eq!((said.borrow().len(), &said.borrow()[0][..]), (2, "downloading s3://b/corpus, 2 objects of 4 B"));
        let second = get("two");
        assert_eq!(fs::read_to_string(second.join("sub/a.txt")).unwrap(), "two");
        assert!(said.borrow()[2].starts_with("s3://b/corpus has changed; its old copy stays"), "{said:?}");
        assert_eq!((get("one"), downloads.get()), (first, 2));

        // A store that does not answer, and one that has nothing.
        let failed = StoreError::Failed {
            what: "read",
            url: "s3://b/corpus".into(),
            why: "no answer".into(),
            remedy: String::new(),
            lasting: false,
        };
        let none = |_: &[Object], _: &Path| -> Result<(), TrainError> { panic!("nothing to download") };
        let say = |line: &str| said.borrow_mut().push(line.to_string());
        let copy = copies.get(Err(failed), &say, none).unwrap();
        assert!(copy.ends_with("corpus") && copy.is_dir());
        assert!(said.borrow().last().unwrap().starts_with("warning: cannot read s3://b/corpus: no answer; the copy "));
        let empty = copies.get(Err(StoreError::Empty { url: "s3://b/corpus".into() }), &say, none);
        assert!(matches!(empty, Err(TrainError::DataOfStore(StoreError::Empty { .. }))));
        fs::write(second.join("b.txt"), "").unwrap();
        let objects = vec![object("corpus/sub/a.txt", "two"), object("corpus/b.txt", "b")];
        let damaged = copies.get(Ok(objects), &say, none).unwrap_err().to_string();
        assert!(damaged.contains("corpus/b.txt does not have the 1 bytes of its object"), "{damaged}");
    }

    #[test]
    fn of_several_at_once_one_downloads_and_what_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (copies, downloads) =
            (Copies { url: "s3://b/a", folder: folder.path().into(), quiet: true }, AtomicUsize::new(0));
        let failing = copies.get(Ok(vec![object("a", "x")]), &|_| {}, |_, to| {
            fs::write(to.join("a"), "half").unwrap();
            Err(TrainError::DataOfStore(StoreError::Changed { url: "s3://b/a".into() }))
        });
        assert!(failing.is_err() && copies.newest().is_none());
        let get = || {
            let download = |_: &[Object], to: &Path| {
                downloads.fetch_add(1, Ordering::Relaxed);
                fs::write(to.join("a"), "x").unwrap();
                Ok(())
            };
            let path = copies.get(Ok(vec![object("a", "x")]), &|_| {}, download).unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), "x");
        };
        thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(get))));
        assert_eq!(downloads.into_inner(), 1);
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn a_path_stays_and_a_url_without_objects_is_refused() {
        assert_eq!(local("data/text.txt", true).unwrap(), "data/text.txt");
        let folder = tempfile::tempdir().unwrap();
        let error = local(&format!("file://{}/none", folder.path().display()), true).unwrap_err().to_string();
        assert!(error.starts_with("there is no object file:///"), "{error}");
    }

    #[cfg(not(feature = "cloud"))]
    #[test]
    fn a_path_stays_and_a_url_needs_a_build_with_stores() {
        assert_eq!(local("data/text.txt", true).unwrap(), "data/text.txt");
        let error = local("s3://b/corpus", true).unwrap_err().to_string();
        assert!(error.starts_with("s3://b/corpus: ") && error.contains("`--features cloud`"), "{error}");
    }
}
