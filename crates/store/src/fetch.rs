//! Downloads of objects that others have written.

use crate::retry::until_here;
use crate::{Bucket, StoreError};
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Bytes of a part of a large object. S3 takes at least 5 MiB.
pub(crate) const PART: u64 = 16 << 20;

/// An object, as a store lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its name: the last part of the place's URL, and what follows it if the object is below the place.
    pub name: String,
    /// Its whole name in the bucket.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// What the store knows its content by, if it does.
    pub e_tag: Option<String>,
    /// When it was written.
    pub modified: String,
}

/// The number of an object and where a part of it begins.
pub(crate) type Part = (usize, u64);

impl Bucket {
    /// The object of this URL, or else all objects below it, by name.
    ///
    /// # Errors
    /// If there is none, or if the store does not answer.
    pub fn objects(&self) -> Result<Vec<Object>, StoreError> {
        let mut all = self.inner().list()?;
        remove_marks(&mut all);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        if all.is_empty() { Err(StoreError::Empty { url: self.url().into() }) } else { Ok(all) }
    }

    /// Downloads objects into the folder `to`, which must be empty, and adds their bytes to `got`. What fails is tried
    /// again after 1, 4, 16 and 60 s, without what has arrived; `say` gets the error and the wait.
    ///
    /// # Errors
    /// If an object is missing or no longer the one that was listed, if the store refuses it or fails too often, or if
    /// a file cannot be written.
    pub fn fetch(
        &self,
        objects: &[Object],
        to: &Path,
        got: &AtomicU64,
        say: impl Fn(&StoreError, Duration),
    ) -> Result<(), StoreError> {
        for object in objects {
            let path = to.join(&object.name);
            let parent = path.parent().unwrap_or(to);
            fs::create_dir_all(parent).map_err(StoreError::write(parent))?;
            File::create_new(&path).map_err(StoreError::write(&path))?;
        }
        let parts =
            |(number, object): (usize, &Object)| (0..object.bytes.div_ceil(PART)).map(move |i| (number, i * PART));
        let mut left: BTreeSet<Part> = objects.iter().enumerate().flat_map(parts).collect();
        let may_pass = |error: &StoreError| matches!(error, StoreError::Failed { lasting: false, .. });
        until_here(got, may_pass, say, || self.inner().get_parts(objects, &mut left, to, got))
    }
}

/// Removes the empty objects that some programs write for folders.
fn remove_marks(all: &mut Vec<Object>) {
    let folders_of =
        |object: &Object| object.name.match_indices('/').map(|(at, _)| object.name[..at].to_string()).collect();
    let folders: HashSet<String> = all.iter().flat_map::<Vec<_>, _>(folders_of).collect();
    all.retain(|object| object.bytes > 0 || !folders.contains(&object.name));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_object_for_a_folder_is_left_out() {
        let object = |(name, bytes): &(&str, u64)| Object {
            name: (*name).into(),
            key: String::new(),
            bytes: *bytes,
            e_tag: None,
            modified: String::new(),
        };
        let all = [("a", 0), ("a/b", 0), ("a/b/c", 1), ("a/empty", 0), ("a/d", 2), ("a/d/e", 3)];
        let mut left: Vec<Object> = all.iter().map(object).collect();
        remove_marks(&mut left);
        let names: Vec<&str> = left.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names, ["a/b/c", "a/empty", "a/d", "a/d/e"]);
    }
}

#[cfg(all(test, feature = "cloud"))]
mod tests_with_a_store {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::Ordering;
    use tempfile::TempDir;

    /// Files in a folder that acts as a store.
    fn store(files: &[(&str, Vec<u8>)]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        folder
    }

    fn open(store: &TempDir, name: &str) -> Bucket {
        Bucket::open(&format!("file://{}/{name}", store.path().display())).unwrap()
    }

    fn large() -> Vec<u8> {
        (0..2 * PART as usize + 7).map(|i| (i * i % 251) as u8).collect()
    }

    #[test]
    fn an_object_or_all_of_a_folder_arrive_under_their_names() {
        let store = store(&[
            ("data/b.txt", large()),
            ("data/sub dir/a~[1].txt", vec![1; 9]),
            ("data/empty", vec![]),
            ("data.txt", vec![2]),
        ]);
        for (url, expected) in [
            ("data", &[("data/b.txt", PART * 2 + 7), ("data/empty", 0), ("data/sub dir/a~[1].txt", 9)][..]),
            ("data/", &[("data/b.txt", PART * 2 + 7), ("data/empty", 0), ("data/sub dir/a~[1].txt", 9)]),
            ("data/b.txt", &[("b.txt", PART * 2 + 7)]),
            ("data.txt", &[("data.txt", 1)]),
        ] {
            let (to, got) = (tempfile::tempdir().unwrap(), AtomicU64::new(0));
            let bucket = open(&store, url);
            let objects = bucket.objects().unwrap();
            bucket.fetch(&objects, to.path(), &got, |error, _| panic!("{error}")).unwrap();
            assert_eq!(objects.len(), expected.len(), "{objects:?}");
            for (object, (name, bytes)) in objects.iter().zip(expected) {
                let name = if name.contains('~') { object.name.as_str() } else { name }; // as that store writes it
                assert_eq!((object.name.as_str(), object.bytes), (name, *bytes));
                assert!(object.e_tag.is_some() && !object.modified.is_empty());
                assert_eq!(fs::metadata(to.path().join(name)).unwrap().len(), *bytes);
            }
            assert_eq!(got.load(Ordering::Relaxed), expected.iter().map(|(_, bytes)| bytes).sum::<u64>());
        }
        let (to, bucket) = (tempfile::tempdir().unwrap(), open(&store, "data/b.txt"));
        bucket.fetch(&bucket.objects().unwrap(), to.path(), &AtomicU64::new(0), |_, _| {}).unwrap();
        assert!(fs::read(to.path().join("b.txt")).unwrap() == large());
    }

    #[test]
    fn what_is_missing_or_changes_says_so() {
        let store = store(&[("data/a.txt", vec![1; 9]), ("data/b.txt", vec![1; 9])]);
        let error = open(&store, "dat").objects().unwrap_err().to_string();
        assert!(error.starts_with("there is no object file:///") && error.contains("/dat, and none below"), "{error}");
        let (bucket, to) = (open(&store, "data"), tempfile::tempdir().unwrap());
        let objects = bucket.objects().unwrap();
        let fetch = |to: &Path| bucket.fetch(&objects, to, &AtomicU64::new(0), |error, _| panic!("{error}"));
        fs::write(store.path().join("data/b.txt"), vec![2; 11]).unwrap();
        let error = fetch(&to.path().join("changed")).unwrap_err();
        assert!(matches!(&error, StoreError::Changed { url } if url.ends_with("/data/b.txt")), "{error}");
        fs::remove_file(store.path().join("data/b.txt")).unwrap();
        let error = fetch(&to.path().join("missing")).unwrap_err();
        assert!(matches!(&error, StoreError::Missing { url } if url.ends_with("/data/b.txt")), "{error}");
        assert_ne!(bucket.objects().unwrap(), objects);
    }

    #[test]
    fn what_the_store_refuses_for_a_while_is_tried_again() {
        let (store, to, failures) = (store(&[("data/a", large())]), tempfile::tempdir().unwrap(), Cell::new(0));
        let [data, away] = ["data", "away"].map(|name| store.path().join(name));
        let bucket = open(&store, "data");
        let objects = bucket.objects().unwrap();
        fs::rename(&data, &away).unwrap();
        fs::write(&data, "in the way").unwrap();
        let got = AtomicU64::new(0);
        let fetched = bucket.fetch(&objects, &to.path().join("once"), &got, |_, _| {
            failures.set(failures.get() + 1);
            fs::remove_file(&data).unwrap();
            fs::rename(&away, &data).unwrap();
        });
        fetched.unwrap();
        assert_eq!((failures.take(), got.into_inner()), (1, 2 * PART + 7));
        assert!(fs::read(to.path().join("once/data/a")).unwrap() == large());
        fs::rename(&data, &away).unwrap();
        fs::write(&data, "in the way").unwrap();
        let error = bucket.fetch(&objects, &to.path().join("again"), &AtomicU64::new(0), |_, _| {
            failures.set(failures.get() + 1);
        });
        assert!(matches!(error, Err(StoreError::Failed { .. })) && failures.get() == 4, "{error:?}");
    }
}
