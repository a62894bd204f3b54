use crate::cli::say;
use ::report::ReportError;
use clap::Args;
use std::path::PathBuf;

/// Writes one HTML page with the plots of one or more runs.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Folders of runs, laid over each other
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page; report.html in the first run's folder if not given
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
}

pub fn run(args: &ReportArgs) -> Result<(), ReportError> {
    let out = args.out.clone().unwrap_or_else(|| args.runs[0].join("report.html"));
    let summary = ::report::write(&args.runs, &out)?;
    summary.notes.iter().for_each(|note| say(&format!("note: {note}")));
    say(&format!("wrote {} ({} KB)", out.display(), summary.bytes / 1000));
    Ok(())
}
