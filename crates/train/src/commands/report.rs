//! `train report`.

use crate::output::end_of_links;
use crate::terminal::say;
use ::report::ReportError;
use clap::Args;
use std::path::PathBuf;
use std::sync::mpsc;

/// Write one HTML page with the plots of one or more runs, or serve it while they train.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run folders, overlaid in the same plots
    #[arg(required_unless_present = "serve", value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page to write; by default report.html in the first run's folder
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
    /// Serve the page to a browser and follow the runs until Ctrl-C, at PORT or HOST:PORT; by default at a free port of
    /// 127.0.0.1
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "0", conflicts_with = "out")]
    serve: Option<String>,
}

pub fn run(args: &ReportArgs) -> Result<(), ReportError> {
    match &args.serve {
        Some(address) => serve(&args.runs, address),
        None => write(args),
    }
}

fn write(args: &ReportArgs) -> Result<(), ReportError> {
    let first = args.runs.iter().find(|run| run.is_dir()).unwrap_or(&args.runs[0]);
    let out = args.out.clone().unwrap_or_else(|| first.join("report.html"));
    // A link that the user names is followed, and none in a run's folder.
    let target = args.out.as_deref().map_or(Ok(out.clone()), end_of_links);
    let target = target.map_err(|source| ReportError::Write { path: out.clone(), source })?;
    let summary = ::report::write(&args.runs, &target)?;
    summary.notes.iter().for_each(|note| say(&format!("note: {note}")));
    say(&format!("wrote {} ({} KB)", out.display(), summary.bytes / 1000));
    Ok(())
}

fn serve(runs: &[PathBuf], address: &str) -> Result<(), ReportError> {
    let url = ::report::serve(runs, address)?;
    let (stop, stopped) = mpsc::channel();
    ctrlc::set_handler(move || _ = stop.send(())).expect("the first handler of this process");
    say(&format!("open {url} in a browser; Ctrl-C ends it"));
    let _ = stopped.recv();
    Ok(())
}
