use super::*;
use crate::{Event, Transfer, Uploader};
use std::cell::Cell;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Larger than a part of an upload.
const LARGE: usize = (33 << 20) + 5;
const NAMES: [&str; 3] = ["a", "b", "index.json"];

/// A folder with three files, and a place in another folder.
struct World {
    store: TempDir,
    local: TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { store: tempfile::tempdir().unwrap(), local: tempfile::tempdir().unwrap() };
        world.write(b"one");
        world
    }

    fn write(&self, mark: &[u8]) {
        fs::write(self.local.path().join("a"), vec![7; 9]).unwrap();
        fs::write(self.local.path().join("b"), (0..LARGE).map(|i| (i * i % 251) as u8).collect::<Vec<_>>()).unwrap();
        fs::write(self.local.path().join("index.json"), mark).unwrap();
    }

    fn bucket(&self) -> Bucket {
        Bucket::open(&format!("file://{}/runs/mine/", self.store.path().display())).unwrap()
    }

    fn upload(&self, done: &mut usize) -> Result<(), StoreError> {
        let Transfer { folder, names, to, .. } = self.transfer(7);
        self.bucket().upload(&folder, &names, &to, done, &AtomicU64::new(0))
    }

    fn transfer(&self, number: u64) -> Transfer {
        let names = NAMES.map(String::from).to_vec();
        Transfer { number, folder: self.local.path().into(), names, to: format!("checkpoints/step-{number}") }
    }

    fn whole(&self) -> Vec<String> {
        self.bucket().whole("checkpoints", "index.json").unwrap()
    }

    fn object(&self, name: &str) -> PathBuf {
        self.store.path().join("runs/mine/checkpoints").join(name)
    }

    /// Keeps an object from being written.
    fn obstruct(&self, name: &str) {
        fs::create_dir_all(self.object(name).join("in the way")).unwrap();
    }

    fn clear(&self, name: &str) {
        fs::remove_dir_all(self.object(name)).unwrap();
    }
}

/// Waits for an event.
fn next(uploader: &Uploader, seen: &mut Vec<Event>, is_it: impl Fn(&Event) -> bool) {
    for _ in 0..6000 {
        seen.extend(uploader.events());
        if seen.iter().any(&is_it) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it does not happen: {seen:?}");
}

#[test]
fn a_folder_is_whole_or_does_not_count() {
    let (world, mut done) = (World::new(), 0);
    world.obstruct("step-7/b");
    assert!(world.upload(&mut done).is_err());
    assert_eq!(done, 1, "the first file need not be sent again");
    assert!(world.object("step-7/a").is_file() && world.whole().is_empty());
    world.clear("step-7/b");
    world.upload(&mut done).unwrap();
    assert_eq!(world.whole(), ["step-7"]);

    let (copy, got) = (tempfile::tempdir().unwrap(), AtomicU64::new(0));
    let again = |error: &StoreError, _| panic!("{error}");
    world.bucket().download("checkpoints/step-7", NAMES, copy.path(), &got, again).unwrap();
    for name in NAMES {
        assert!(
            fs::read(copy.path().join(name)).unwrap() == fs::read(world.local.path().join(name)).unwrap(),
            "{name}"
        );
    }
    assert_eq!(got.into_inner(), (9 + LARGE + 3) as u64);
}

#[test]
fn a_download_that_fails_is_tried_again_without_what_has_arrived() {
    let (world, got, copy) = (World::new(), AtomicU64::new(0), tempfile::tempdir().unwrap());
    world.upload(&mut 0).unwrap();
    let (there, aside) = (world.object("step-7/b"), world.object("step-7/b.aside"));
    fs::rename(&there, &aside).unwrap();
    symlink(&there, &there).unwrap(); // cannot be read
    let failures = Cell::new(0);
    let again = |error: &StoreError, _| {
        assert!(matches!(error, StoreError::Failed { .. }), "{error}");
        failures.set(failures.get() + 1);
        if failures.get() == 2 {
            fs::rename(&aside, &there).unwrap();
        }
    };
    world.bucket().download("checkpoints/step-7", NAMES, copy.path(), &got, again).unwrap();
    assert_eq!((failures.get(), got.into_inner()), (2, (9 + LARGE + 3) as u64));

    let (path, mut left, got) = (copy.path().join("b"), Some(vec![5..7, 20 << 20..21 << 20]), AtomicU64::new(0));
    world.bucket().objects.get_file("checkpoints/step-7/b", &path, &mut left, &got).unwrap();
    assert_eq!((left, got.into_inner()), (Some(vec![]), 2 + (1 << 20)));
    assert!(fs::read(path).unwrap() == fs::read(world.local.path().join("b")).unwrap());
}

#[test]
fn a_folder_that_replaces_another_does_not_mark_a_mixture_of_both() {
    let world = World::new();
    world.upload(&mut 0).unwrap();
    world.write(b"two");
    fs::remove_file(world.object("step-7/a")).unwrap();
    world.obstruct("step-7/a");
    assert!(world.upload(&mut 0).is_err());
    assert!(world.whole().is_empty());
    world.clear("step-7/a");
    world.upload(&mut 0).unwrap();
    assert_eq!(world.bucket().read("checkpoints/step-7/index.json").unwrap().unwrap(), b"two");
}

#[test]
fn a_failing_upload_is_tried_again_then_given_up_and_the_next_one_succeeds() {
    let world = World::new();
    world.obstruct("step-1/a");
    let (uploader, mut seen) = (Uploader::new(world.bucket(), vec![]), vec![]);
    uploader.start(world.transfer(1));
    assert_eq!(uploader.pending(), [1]);
    next(&uploader, &mut seen, |event| matches!(event, Event::GivenUp { number: 1, .. }));
    assert_eq!(seen.iter().filter(|event| matches!(event, Event::Failed { .. })).count(), 4);

    world.obstruct("step-2/b");
    uploader.start(world.transfer(2));
    next(&uploader, &mut seen, |event| matches!(event, Event::Failed { number: 2, .. }));
    world.clear("step-2/b");
    next(&uploader, &mut seen, |event| {
        matches!(event, Event::Uploaded { number: 2, .. } | Event::GivenUp { number: 2, .. })
    });
    assert!(matches!(seen.last(), Some(Event::Uploaded { bytes, .. }) if *bytes == (9 + LARGE) as u64), "{seen:?}");
    assert!(uploader.wait(Duration::from_secs(9)) && uploader.pending().is_empty());
    assert_eq!(world.whole(), ["step-2"]);
}

#[test]
fn folders_of_another_course_lose_their_marks_before_the_first_upload() {
    let (world, mut seen) = (World::new(), vec![]);
    world.upload(&mut 0).unwrap();
    let uploader = Uploader::new(world.bucket(), vec!["checkpoints/step-7".into()]);
    assert_eq!(world.whole(), ["step-7"]);
    uploader.start(world.transfer(3));
    next(&uploader, &mut seen, |event| matches!(event, Event::Uploaded { number: 3, .. }));
    assert!(matches!(&seen[0], Event::SetAside { url } if url.ends_with("/runs/mine/checkpoints/step-7")), "{seen:?}");
    assert_eq!(world.whole(), ["step-3"]);
    assert!(world.object("step-7/abandoned.json").is_file());
}

#[test]
fn a_place_that_cannot_be_written_or_lacks_an_object_says_so() {
    let world = World::new();
    world.bucket().probe().unwrap();
    world.bucket().probe_removal().unwrap();
    fs::create_dir(world.store.path().join("runs/mine/.kiln-probe")).unwrap();
    let error = world.bucket().probe_removal().unwrap_err().to_string();
    assert!(error.starts_with("cannot remove file://"), "{error}");
    let again = |error: &StoreError, _| panic!("{error}");
    let error = world.bucket().download("checkpoints/step-9", ["a"], world.store.path(), &AtomicU64::new(0), again);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("/runs/mine/checkpoints/step-9/a is not there"), "{error}");
    let file = format!("file://{}/index.json/x", world.local.path().display());
    let error = Bucket::open(&file).unwrap().probe().unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot write {file}/.kiln-probe")), "{error}");
}
