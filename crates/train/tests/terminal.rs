//! What the program shows in a terminal and outside one, and before and after a run.

mod common;

use common::{TINY, folder_with_text, metrics, program, run, succeed, values, wait_until};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::FromRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

const COLOUR_VARIABLES: [&str; 3] = ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"];

/// Runs the program in a terminal of `columns` columns, and returns what the terminal receives. It must succeed.
fn in_terminal(folder: &Path, columns: u16, environment: &[(&str, &str)], args: &[&str]) -> String {
    let size = libc::winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let [mut ours, mut its] = [0; 2];
    // SAFETY: both files are new and not shared; the other arguments are only read, or null.
    let [ours, its] = unsafe {
        let name = std::ptr::null_mut();
        let settings = std::ptr::null_mut();
        assert_eq!(libc::openpty(&mut ours, &mut its, name, settings, &raw const size as *mut _), 0);
        [File::from_raw_fd(ours), File::from_raw_fd(its)]
    };
    let mut command = program(folder, args);
    COLOUR_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    command.env("TERM", "xterm").envs(environment.iter().copied());
    command.stdin(its.try_clone().unwrap()).stdout(its.try_clone().unwrap()).stderr(its);
    let mut run = command.spawn().unwrap();
    drop(command); // it holds the terminal's other end open
    let reader = thread::spawn(move || {
        let (mut ours, mut text) = (ours, vec![]);
        let _ = ours.read_to_end(&mut text); // an error marks its end
        String::from_utf8_lossy(&text).into_owned()
    });
    let status = run.wait().unwrap();
    let text = reader.join().unwrap();
    assert!(status.success(), "{text}");
    text
}

/// A terminal's text without cursor movements and colors.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (i, part) in text.split("\u{1b}[").enumerate() {
        let end = if i == 0 { 0 } else { part.find(|c: char| c.is_ascii_alphabetic()).unwrap() + 1 };
        plain += &part[end..];
    }
    plain
}

/// The ends of color sequences: `33m`.
fn colours(text: &str) -> Vec<&str> {
    let sequences = text.split("\u{1b}[").skip(1);
    sequences
        .filter_map(|part| part.split_once('m').filter(|(code, _)| code.parse::<u8>().is_ok()))
        .map(|(code, _)| code)
        .collect()
}

#[test]
fn the_first_screen_and_the_steps_fit_the_terminal() {
    let folder = folder_with_text();
    for (columns, names) in [
        (60, &["loss", "tok/s", "eta"][..]),
        (80, &["loss", "lr", "grad", "tok/s", "eta"]),
        (120, &["loss", "lr", "grad", "tok/s", "B  ", "epoch", "eta"]),
    ] {
        let out = format!("--out=run-{columns}");
        let text = in_terminal(folder.path(), columns, &[], &[TINY, &["--steps=20", &out]].concat());
        let text = plain(&text);
        let lines: Vec<&str> = text.split(['\r', '\n']).filter(|line| line.starts_with(['╭', '│', '╰'])).collect();
        assert!(lines.len() >= 8 && lines[0].starts_with('╭'), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() == lines[0].chars().count()), "{text}");
        assert!(lines[0].chars().count() <= usize::from(columns), "{text}");
        let step = text.split(['\r', '\n']).find(|line| line.starts_with("step 10/20  loss ")).expect(&text);
        assert!(step.chars().count() <= usize::from(columns), "{step}");
        let all = ["loss", "lr", "grad", "tok/s", "B  ", "epoch", "eta"];
        assert_eq!(all.into_iter().filter(|name| step.contains(name)).collect::<Vec<_>>(), names, "{step}");
    }
}

#[test]
fn warnings_are_yellow_and_errors_red_in_a_terminal_unless_no_color_is_set() {
    let folder = folder_with_text();
    let args = |out: &'static str| [TINY, &["--steps=2", out][..]].concat();
    let text = in_terminal(folder.path(), 100, &[], &args("--out=a"));
    assert!(text.contains("\u{1b}[1m\u{1b}[33mwarning:\u{1b}[0m the warm-up"), "{text}");
    assert!(text.contains("\u{1b}[2mrank 0, MB at most: "), "{text}");
    let text = in_terminal(folder.path(), 100, &[("NO_COLOR", "1")], &args("--out=b"));
    assert!(text.contains("warning: the warm-up") && colours(&text).is_empty(), "{text}");

    let piped = |variable: &str, args: &[&str]| {
        let mut command = program(folder.path(), args);
        COLOUR_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
        if !variable.is_empty() {
            command.env(variable, "1");
        }
        let output = command.output().unwrap();
        String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap()
    };
    assert!(!piped("", &args("--out=c")).contains('\u{1b}'));
    assert!(piped("CLICOLOR_FORCE", &args("--out=d")).contains("\u{1b}[33mwarning:"));
    let error = piped("CLICOLOR_FORCE", &args("--out=d"));
    assert!(error.contains("\u{1b}[31merror:\u{1b}[0m d holds a run already"), "{error}");
    for run in ["a", "b", "c", "d"] {
        let log = fs::read_to_string(folder.path().join(run).join("logs/rank-0.txt")).unwrap();
        assert!(log.contains("rank 0, MB at most: ") && !log.contains('\u{1b}'), "{log}");
    }
}

#[test]
fn help_is_wrapped_and_the_version_has_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    for columns in [60, 80, 120] {
        for args in [&["--help"][..], &["generate", "--help"]] {
            let help = in_terminal(folder.path(), columns, &[], args);
            let wide = plain(&help).lines().map(|line| line.trim_end().chars().count()).max();
            assert!(wide.is_some_and(|wide| wide <= usize::from(columns)), "{help}");
        }
    }
    let (version, _) = succeed(folder.path(), &["--version"]);
    let numbered = format!("train {}", env!("CARGO_PKG_VERSION"));
    let rest = version.strip_prefix(&numbered).unwrap_or_else(|| panic!("{version}")).trim_end();
    let commit = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
    assert!(rest.is_empty() || commit.is_some_and(|commit| commit.len() == 10), "{version}");
    // The work tree may be somebody else's, or there may be none, and Git may be missing.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let is_commit = |name: &str| {
        let mut git = Command::new("git");
        git.args(["-c", "safe.directory=*", "rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]);
        git.current_dir(&root).env_remove("GIT_DIR").output().is_ok_and(|output| output.status.success())
    };
    if root.join(".git").is_dir() && is_commit("HEAD") {
        assert!(commit.is_some_and(is_commit), "{version}");
    }
}

#[test]
fn a_quiet_run_prints_its_result_and_warnings() {
    let folder = folder_with_text();
    let (stdout, stderr) = succeed(folder.path(), &[TINY, &["--steps=2", "--out=run", "--quiet"]].concat());
    let val_loss = values(&metrics(&folder.path().join("run")), "val_loss")[0];
    assert_eq!(stdout, format!("validation loss {val_loss:.4} after 2 steps; metrics are in run\n"));
    assert!(stderr.starts_with("warning: the warm-up ") && stderr.lines().count() == 1, "{stderr}");
    let skips = ["--steps=30", "--out=skips", "-q", "--set=optim.lr=1e30", "--set=train.on_non_finite=skip"];
    let stderr = common::run(folder.path(), &[TINY, &skips].concat()).stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("\nwarning: step ") || stderr.starts_with("warning: step "), "{stderr}");
    let text = in_terminal(folder.path(), 80, &[], &[TINY, &["--steps=30", "--out=seen", "-q"]].concat());
    assert_eq!(text.lines().count(), 1, "no bar either: {text}");
}

#[test]
fn the_commands_at_the_end_can_be_typed() {
    let folder = folder_with_text();
    let (_, stderr) = succeed(folder.path(), &[TINY, &["--steps=8", "--out=my run"]].concat());
    let (_, end) = stderr.split_once("\n8 steps in ").expect(&stderr);
    assert!(end.contains(" tokens/s; best validation loss ") && end.contains(" at step 8\nnext:\n"), "{end}");
    let commands: Vec<&str> = end.lines().skip_while(|line| *line != "next:").skip(1).collect();
    let names = commands.iter().map(|command| command.split_whitespace().nth(1).unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["generate", "report", "eval"], "{end}");
    for command in commands {
        let output = Command::new("sh").args(["-c", command]).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(folder.path().join("my run/report.html").is_file());

    let (_, stderr) = succeed(folder.path(), &[TINY, &["--steps=2", "--out=b", "--set=checkpoint.keep=0"]].concat());
    let (_, next) = stderr.split_once("next:\n").expect(&stderr);
    assert!(next.lines().count() == 1 && next.contains(" report b"), "nothing is saved: {next}");
}

#[test]
fn a_dry_run_says_what_a_run_takes_and_leaves_nothing() {
    let folder = folder_with_text();
    fs::write(folder.path().join("text.txt"), "The five boxing wizards jump quickly. ".repeat(600)).unwrap();
    let scratch = folder.path().join("tmp");
    fs::create_dir(&scratch).unwrap();
    let train = |args: &[&str]| {
        let sizes = [
            "--model=gpt2",
            "--data=text.txt",
            "--batch-size=4",
            "--set=train.sample_tokens=0",
            "--set=train.val_batches=2",
            "--set=train.val_every=0",
        ];
        let output = program(folder.path(), &[&sizes, args].concat()).env("TMPDIR", &scratch).output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{stderr}");
        (stdout, stderr)
    };
    let files = || {
        let names =
            |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        (names(folder.path()).len(), names(&scratch).len())
    };
    let before = files();
    let (plan, stderr) = train(&["--steps=400", "--gpus=2", "--out=run", "--dry-run"]);
    assert_eq!(files(), before);
    for part in [
        "steps        400 steps of 4 x 128 tokens: 204.8K tokens, 10.06 epochs\n",
        "memory       about 0.",
        "  activations ",
        "checkpoints  10.3 MB each; at most 3 at once, 30.9 MB\n",
        "time         about ",
        "1 validation of about ",
        "measured over 3 steps\n",
    ] {
        assert!(plan.contains(part), "no `{part}` in:\n{plan}");
    }
    assert!(stderr.contains("│ folder  none (dry run) "), "{stderr}");

    // A real checkpoint, and a dry run from it.
    train(&["--steps=1", "--out=run"]);
    let step = folder.path().join("run/checkpoints/step-1");
    let size: u64 = fs::read_dir(&step).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!((size as f64 / 10.3e6 - 1.0).abs() < 0.02, "{size} bytes");
    let lines = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    let before = files();
    let output = program(folder.path(), &["--resume=run", "--steps=3", "--dry-run", "-q"]).output().unwrap();
    let plan = String::from_utf8(output.stdout).unwrap();
    assert!(
        plan.starts_with("steps        steps 2 to 3 of 4 x 128 tokens: 1.0K tokens")
            && plan.contains("measured over 2 steps"),
        "{plan}"
    );
    assert_eq!((files(), fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap()), (before, lines));

    let taken = run(folder.path(), &["--model=gpt2", "--data=text.txt", "--out=run", "--dry-run"]);
    let said = String::from_utf8_lossy(&taken.stderr);
    assert!(!taken.status.success() && said.contains("run holds a run already"), "{said}");

    // A signal ends it within a step, which takes long here.
    let long = ["--model=gpt2", "--data=text.txt", "--batch-size=20000", "--set=train.micro_batch_size=1", "--dry-run"];
    let mut long = program(folder.path(), &long).env("TMPDIR", &scratch).stderr(Stdio::null()).spawn().unwrap();
    let logs = || fs::read_dir(&scratch).unwrap().flatten().any(|entry| entry.path().join("logs").exists());
    wait_until(&mut long, logs);
    Command::new("kill").args(["-INT", &long.id().to_string()]).status().unwrap();
    assert_eq!((long.wait().unwrap().code(), files()), (Some(130), before));
}

#[test]
fn shells_complete_the_command_line_and_man_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    for (shell, part) in [("bash", "complete -F _train"), ("zsh", "#compdef train"), ("fish", "complete -c train")] {
        let (script, _) = succeed(folder.path(), &["completions", shell]);
        assert!(
            script.contains(part) && script.contains("batch-size") && script.contains("deepseek-v2-lite"),
            "{shell}:\n{script}"
        );
    }
    let (script, _) = succeed(folder.path(), &["completions", "bash"]);
    fs::write(folder.path().join("train.bash"), script).unwrap();
    let complete =
        "source ./train.bash; COMP_WORDS=(train --str); COMP_CWORD=1; _train train --str ''; echo ${COMPREPLY[@]}";
    let answer = Command::new("bash").args(["-c", complete]).current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8(answer.stdout).unwrap(), "--strategy\n");

    let (page, _) = succeed(folder.path(), &["man"]);
    assert!(
        page.contains(".TH train 1")
            && page.contains(r"\-\-batch\-size")
            && page.contains("\n.TP\n\\fBdeepseek\\-v2\\-lite\\fR\n"),
        "{page}"
    );
    let (page, _) = succeed(folder.path(), &["man", "generate"]);
    let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
    assert!(title.contains("train-generate 1") && title.contains("\"train "), "{title}");
    assert!(page.contains(r"\-\-temperature") && !page.contains(r"\-\-batch\-size"), "{page}");
    let unknown = common::run(folder.path(), &["man", "generat"]);
    assert!(
        !unknown.status.success()
            && String::from_utf8_lossy(&unknown.stderr).contains("there is no subcommand generat")
    );
}
