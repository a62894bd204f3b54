//! What happens to a run from outside, while it runs.

use super::draw::{Damage, What, When};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// A run without a new step for this long hangs.
const HUNG: Duration = Duration::from_millis(1500);

/// How a program has ended.
pub struct Ended {
    /// Its exit code; `None` if a signal has ended it, or it took too long.
    pub code: Option<i32>,
    /// Everything that it has said.
    pub told: String,
}

/// Runs a program, which trains in the folder `run`, until its end, which must come within `longest`. Its output goes to
/// the file `log`.
pub fn watch(mut command: Command, run: &Path, log: &Path, outside: &[(When, What)], longest: Duration) -> Ended {
    let file = File::create(log).unwrap();
    let mut child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
    let (mut left, started, mut last) = (outside.to_vec(), Instant::now(), (0, Instant::now()));
    let told = || String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned();
    let mut code = None;
    while started.elapsed() < longest {
        if let Some(status) = child.try_wait().unwrap() {
            code = status.code();
            break;
        }
        let (step, said) = (last_step(run), told());
        if step != last.0 {
            last = (step, Instant::now());
        }
        let will_fill = left.iter().any(|(_, what)| *what == What::Fill);
        let is_due = |(when, what): &(When, What)| match *when {
            _ if *what == What::Free && will_fill => false,
            When::Step(of) => step >= of,
            When::HungAfter(of) => step >= of && last.1.elapsed() > HUNG,
            When::Restart(number) => said.contains(&format!("\nrestart {number} of ")),
            When::Skipped => said.contains(" is skipped after three attempts"),
        };
        left.retain(|event| {
            !is_due(event) || {
                act(event.1, run, &child);
                false
            }
        });
        thread::sleep(Duration::from_millis(10));
    }
    // Nothing waits for a full disk any more.
    left.iter().filter(|(_, what)| *what == What::Free).for_each(|(_, what)| act(*what, run, &child));
    let mut told = told();
    if started.elapsed() >= longest {
        let _ = child.kill();
        told += &format!("\nit takes longer than {longest:?}");
    }
    let _ = child.wait();
    Ended { code, told }
}

/// The last step in the metrics, which may be damaged; 0 before the first.
fn last_step(run: &Path) -> u64 {
    let text = fs::read(run.join("metrics.jsonl")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let step = |line: &str| line.strip_prefix("{\"step\":")?.split_once(",\"loss\"")?.0.parse().ok();
    text.lines().rev().find_map(step).unwrap_or(0)
}

fn act(what: What, run: &Path, child: &Child) {
    match what {
        What::Terminate => {
            assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        }
        What::Fill => {
            let mut file = File::create(run.join("filler")).unwrap();
            for block in [1 << 16, 512, 1].map(|len| vec![0; len]) {
                while file.write_all(&block).is_ok() {}
            }
        }
        What::Free => drop(fs::remove_file(run.join("filler"))),
        What::Checkpoint { how, file, at } => {
            if let Some(step) = checkpoints(run).pop() {
                damage_one(&step, how, file, at);
            }
        }
        What::Memory { how, file, at } => {
            in_memory(run).iter().for_each(|step| damage_one(step, how, file, at));
        }
        What::Metrics { how, at } => {
            let path = run.join("metrics.jsonl");
            let end = fs::metadata(&path).map_or(0, |metrics| metrics.len() as usize);
            // Within the last line, as a disk that is lost in the middle of a write leaves it.
            let at = if how == Damage::Cut { end.saturating_sub(1 + at % 60) } else { at };
            damage(&path, how, at);
        }
    }
}

/// The folders of a run's checkpoints, oldest first.
pub fn checkpoints(run: &Path) -> Vec<PathBuf> {
    let step = |path: PathBuf| {
        let step: u64 = path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()?;
        Some((step, path))
    };
    let mut found: Vec<_> =
        fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten().filter_map(|e| step(e.path())).collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// The checkpoints of a run in memory, `/dev/shm/kiln-RUN/ATTEMPT/checkpoints/.step-N.partial`.
pub fn in_memory(run: &Path) -> Vec<PathBuf> {
    let folder = run.parent().unwrap().to_string_lossy().into_owned();
    let within = |folders: Vec<PathBuf>| -> Vec<PathBuf> {
        folders.iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path()).collect()
    };
    let attempts = within(within(vec!["/dev/shm".into()])).into_iter().map(|attempt| attempt.join("checkpoints"));
    let is_of_run =
        |step: &PathBuf| fs::read_to_string(step.join("config.yaml")).is_ok_and(|config| config.contains(&folder));
    within(attempts.collect()).into_iter().filter(is_of_run).collect()
}

fn damage_one(checkpoint: &Path, how: Damage, file: usize, at: usize) {
    let mut files: Vec<_> = fs::read_dir(checkpoint).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    if !files.is_empty() {
        damage(&files[file % files.len()], how, at);
    }
}

/// Damages a file, if it is still there.
fn damage(path: &Path, how: Damage, at: usize) {
    let Ok(bytes) = fs::read(path) else { return };
    let Ok(file) = OpenOptions::new().write(true).open(path) else { return };
    let at = at % bytes.len().max(1);
    match how {
        Damage::Flip if !bytes.is_empty() => file.write_all_at(&[!bytes[at]], at as u64).unwrap(),
        _ => file.set_len(at as u64).unwrap(),
    }
}

/// The processes that work in a folder.
pub fn processes_in(folder: &Path) -> Vec<String> {
    let folder = folder.canonicalize().unwrap();
    let works_there = |process: &PathBuf| fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&folder));
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let command =
        |process: PathBuf| String::from_utf8_lossy(&fs::read(process.join("cmdline")).ok()?).replace('\0', " ").into();
    all.filter(works_there).filter_map(command).collect()
}

/// A disk of its own, until it is dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of 8 MiB at `path`; `None` where this machine does not allow it.
    pub fn new(path: &Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let words = ["-t", "tmpfs", "-o", "size=8m", "tmpfs"].map(OsStr::new);
        let mounted = Command::new("mount").args(words).arg(path).output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(path.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
