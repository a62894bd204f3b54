//! `gpu`: checks Kiln's operations for a mixture of experts on a GPU and measures them. `benches/gpu/run.py` runs it, and PyTorch beside it.

mod cases;
mod checks;
mod numbers;
mod parts;
mod reference;
mod report;
mod run_layer;
mod run_products;
mod run_routing;
mod timer;

use cases::{ProductCase, Sizes};
use clap::Parser;
use parts::{Outcome, Part};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;

/// Checks Kiln's operations for a mixture of experts on a device, then measures them.
#[derive(Debug, Parser)]
struct Args {
    /// cuda:N; cpu for CubeCL's CPU runtime; flex for the plain Rust, which has no tiers: to try this program itself
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Tiny sizes and few rounds: whether all of it runs, not how fast
    #[arg(long)]
    smoke: bool,
    /// Where to write the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The commit that this program was built from
    #[arg(long, value_name = "ID", default_value = option_env!("KILN_COMMIT").unwrap_or("unknown"))]
    commit: String,
    /// Measures nothing
    #[arg(long)]
    checks_only: bool,
    /// One part of the checks, in this process
    #[arg(long, value_name = "NAME", hide = true)]
    part: Option<Part>,
}

fn main() -> ExitCode {
    benches::keep_memory();
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gpu: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all that ran was right.
fn run(args: &Args) -> Result<bool, String> {
    let device = parts::open(&args.device)?;
    if let Some(part) = args.part {
        return Ok(checks::run(part, &device, args.smoke));
    }
    let name = device.identity().map_or_else(|| args.device.clone(), |identity| identity.name.clone());
    let mut report = Report::new(name, &args.device, &args.commit, args.smoke, args.json.clone());
    println!("device {} ({}), commit {}", report.device, args.device, args.commit);
    for part in Part::ALL {
        report.checked(part, parts::check(part, &args.device, args.smoke)?);
    }
    if !args.checks_only {
        let tiers: Vec<_> = Part::ALL
            .into_iter()
            .filter(|part| part.dtype() == Some(report.dtype()) && report.outcome(*part) == Some(&Outcome::Passed))
            .filter_map(Part::tier)
            .collect();
        let sizes = Sizes::new(args.smoke);
        report.cases = sizes.models.iter().flat_map(|model| ProductCase::of(*model)).collect();
        run_routing::measure(&device, &sizes, &mut report);
        run_layer::measure(&device, &sizes, &mut report);
        run_products::measure(&device, &sizes, &tiers, &mut report);
    }
    report.write()?;
    Ok(report.succeeded())
}
