//! The machines of a run, and what is checked on each before it starts.

use crate::format::{count, quoted};
use crate::run::memory::held::{Answer, Request};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a machine may take to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// How long output may follow the end of a command.
const REST: Duration = Duration::from_millis(500);
/// How far clocks may be apart: metrics and records of several machines are compared by their times.
const CLOCKS: f64 = 2.0;

/// A machine of a host file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    pub name: String,
    /// Number of processes that it may run.
    pub slots: usize,
}

/// Reads a host file of Open MPI: a line `NAME slots=N` for each machine, `#` for comments.
///
/// # Errors
/// A message that names the file and the line.
pub(super) fn read(file: &Path) -> Result<Vec<Host>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    parse(&text).map_err(|(line, why)| format!("{}, line {line}: {why}", file.display()))
}

fn parse(text: &str) -> Result<Vec<Host>, (usize, String)> {
    let mut hosts = Vec::<Host>::new();
    for (i, line) in text.lines().enumerate() {
        let wrong = |why: String| (i + 1, why);
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        // ssh would take it for an option.
        if name.starts_with('-') {
            return Err(wrong(format!("{name} is no name of a machine")));
        }
        let mut slots = 1;
        for word in words {
            let number =
                word.strip_prefix("slots=").and_then(|number| number.parse().ok()).filter(|number| *number > 0);
            slots = number.ok_or_else(|| wrong(format!("`{word}` where `slots=N` is expected")))?;
        }
        if hosts.iter().any(|host| host.name == name) {
            return Err(wrong(format!("{name} is named twice: give it one line, with all of its slots")));
        }
        hosts.push(Host { name: name.into(), slots });
    }
    match hosts.is_empty() {
        true => Err((1, "there is no machine: give lines like `node1 slots=8`".into())),
        false => Ok(hosts),
    }
}

/// What the program says of itself on a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Probe {
    /// SHA-256 of the program's file.
    program: String,
    /// Seconds since the Unix epoch.
    now: f64,
    /// Whether the machine sees a file of this one.
    sees_file: bool,
}

impl Probe {
    /// Of this machine. `file` is one that the first machine has created.
    pub fn here(program: &Path, file: &Path) -> io::Result<Self> {
        let mut digest = Sha256::new();
        io::copy(&mut File::open(program)?, &mut digest)?;
        let program = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { program, now: now(), sees_file: file.is_file() })
    }

    /// Why a machine cannot take part, by what it says and by what this one says: the time of its answer is between
    /// `asked` and `answered`.
    fn objection(&self, here: &Self, [asked, answered]: [f64; 2], file: &Path) -> Option<String> {
        let ahead = (self.now - answered).max(asked - self.now);
        if self.program != here.program {
            return Some("it has another version of the program: copy this one to it".into());
        }
        if !self.sees_file {
            let folder = file.parent().unwrap_or(file);
            return Some(format!("it does not see {}: give a folder that all machines share", folder.display()));
        }
        (ahead > CLOCKS).then(|| format!("its clock differs by {ahead:.0} s: set the clocks by NTP"))
    }
}

/// Asks all machines at once. Returns those that can take part, and the objections to the others.
pub(super) fn probe(hosts: &[Host], rsh: &[String], program: &Path, file: &Path) -> (Vec<Host>, Vec<String>) {
    let here = Probe::here(program, file);
    let ask = |host: &Host| -> Option<String> {
        let here = match &here {
            Ok(here) => here,
            Err(error) => return Some(format!("{}: {error}", program.display())),
        };
        let asked = now();
        match answer::<Probe>(host, rsh, program, ["launch", "--probe", &file.display().to_string()], ANSWER) {
            Ok(there) => there.objection(here, [asked, now()], file),
            Err(why) => Some(why),
        }
    };
    let objections = at_once(hosts, ask);
    let (mut able, mut lost) = (vec![], vec![]);
    for (host, objection) in hosts.iter().zip(objections) {
        match objection {
            None => able.push(host.clone()),
            Some(why) => lost.push(format!("{}: {why}", host.name)),
        }
    }
    (able, lost)
}

/// Runs the program on a machine with these arguments, and reads what it says.
fn answer<T: DeserializeOwned>(
    host: &Host,
    rsh: &[String],
    program: &Path,
    arguments: [&str; 3],
    limit: Duration,
) -> Result<T, String> {
    let command = [&*program.display().to_string()].into_iter().chain(arguments).map(quoted).collect::<Vec<_>>();
    let mut child = Command::new(&rsh[0]);
    child.args(&rsh[1..]).arg(&host.name).arg(command.join(" ")).stdin(Stdio::null());
    let output = output_within(child.stdout(Stdio::piped()).stderr(Stdio::piped()), limit)
        .map_err(|error| format!("{} does not work: {error}", rsh[0]))?
        .ok_or_else(|| format!("it did not answer within {}", count(limit.as_secs() as usize, "second")))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        format!("it cannot be reached, or does not have the program: {last}")
    })
}

/// Asks machines, given by number, at the same time about checkpoints in memory.
pub(super) fn ask(
    hosts: &[Host],
    rsh: &[String],
    program: &Path,
    requests: &[(usize, Request)],
    limit: Duration,
) -> Vec<Result<Answer, String>> {
    at_once(requests, |(machine, request)| {
        let (host, request) = (&hosts[*machine], serde_json::to_string(request).expect("plain data"));
        let answer = answer(host, rsh, program, ["launch", "--memory", &request], limit);
        answer.map_err(|why| format!("{}: {why}", host.name))
    })
}

/// Asks about all items at the same time, each on a thread.
fn at_once<T: Sync, U: Send>(items: &[T], ask: impl Fn(&T) -> U + Sync) -> Vec<U> {
    thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || ask(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("asking does not panic")).collect()
    })
}

/// The output of a command, whose pipes are taken; `None` if it takes longer.
///
/// What the command leaves behind, such as a shared connection of ssh, may keep the pipes open: the output is also whole
/// if nothing follows the command's end for [`REST`].
fn output_within(command: &mut Command, limit: Duration) -> io::Result<Option<Output>> {
    let (mut child, started) = (command.spawn()?, Instant::now());
    let (stdout, stderr) = (child.stdout.take().map(read_aside), child.stderr.take().map(read_aside));
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if started.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let whole = |pipe: Option<Receiver<Vec<u8>>>| {
        let mut read = vec![];
        while started.elapsed() < limit + REST
            && let Some(bytes) = pipe.as_ref().and_then(|pipe| pipe.recv_timeout(REST).ok())
        {
            read.extend(bytes);
        }
        read
    };
    Ok(Some(Output { status, stdout: whole(stdout), stderr: whole(stderr) }))
}

/// Reads a pipe on a thread, until it is closed or nobody listens any more.
fn read_aside(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (to, from) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            match pipe.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(bytes) if bytes > 0 && to.send(buffer[..bytes].to_vec()).is_ok() => {}
                _ => return,
            }
        }
    });
    from
}

/// Writes a host file for mpirun.
pub(super) fn write(hosts: &[Host], file: PathBuf) -> io::Result<PathBuf> {
    let lines: String = hosts.iter().map(|host| format!("{} slots={}\n", host.name, host.slots)).collect();
    fs::write(&file, lines)?;
    Ok(file)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_files_are_read_and_wrong_lines_named() {
        let host = |name: &str, slots| Host { name: name.into(), slots };
        assert_eq!(parse("# all\na slots=2 # two cards\n\nb\n"), Ok(vec![host("a", 2), host("b", 1)]));
        let wrong = |text: &str| parse(text).unwrap_err();
        assert_eq!(wrong("a\nb slot=2\n"), (2, "`slot=2` where `slots=N` is expected".into()));
        assert_eq!(wrong("a slots=0\n").0, 1);
        assert_eq!(wrong("a\na slots=2\n"), (2, "a is named twice: give it one line, with all of its slots".into()));
        assert_eq!(wrong("-oProxyCommand=x\n").1, "-oProxyCommand=x is no name of a machine");
        assert_eq!(wrong("# none\n").1, "there is no machine: give lines like `node1 slots=8`");
    }

    #[test]
    fn a_machine_with_another_program_clock_or_folder_cannot_take_part() {
        let here = Probe { program: "a".into(), now: 100.0, sees_file: true };
        let says = |there: Probe| there.objection(&here, [100.0, 101.0], Path::new("/shared/run/file"));
        assert_eq!(says(here.clone()), None);
        assert_eq!(says(Probe { now: 102.5, ..here.clone() }), None);
        let why = |there| says(there).unwrap();
        assert!(why(Probe { program: "b".into(), ..here.clone() }).contains("another version of the program"));
        assert!(why(Probe { sees_file: false, ..here.clone() }).contains("does not see /shared/run"));
        assert!(why(Probe { now: 97.0, ..here.clone() }).contains("its clock differs by 3 s"));
        assert!(why(Probe { now: 131.0, ..here.clone() }).contains("its clock differs by 30 s"));
    }

    #[test]
    fn machines_that_do_not_answer_are_left_out_with_the_reason() {
        let hosts = ["up", "down"].map(|name| Host { name: name.into(), slots: 1 });
        let folder = tempfile::tempdir().unwrap();
        let (program, file) = (folder.path().join("program"), folder.path().join("file"));
        fs::write(&program, "x").unwrap();
        fs::write(&file, "").unwrap();
        let probe_of_up = serde_json::to_string(&Probe::here(&program, &file).unwrap()).unwrap();
        // Something stays behind and keeps the pipes open, as a shared connection does.
        let pids = folder.path().join("pids");
        let stays = format!("sleep 300 & echo $! >>{}", pids.display());
        let script =
            format!("{stays}; if [ $0 = up ]; then echo '{probe_of_up}'; else echo no route >&2; exit 255; fi");
        let rsh = ["sh".into(), "-c".into(), script];
        let (able, lost) = probe(&hosts, &rsh, &program, &file);
        let pids = fs::read_to_string(pids).unwrap();
        assert!(Command::new("kill").args(pids.lines()).status().unwrap().success(), "they are still there");
        assert_eq!(able, [hosts[0].clone()]);
        assert_eq!(lost, ["down: it cannot be reached, or does not have the program: no route"]);
    }
}
