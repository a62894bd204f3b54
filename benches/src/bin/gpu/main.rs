//! `gpu`: checks Kiln's operations on a GPU and measures them. `benches/gpu/run.py` runs it next to PyTorch.

mod cases;
mod check_operations;
mod checks;
mod numbers;
mod operations;
mod parts;
mod reference;
mod report;
mod run_layer;
mod run_operations;
mod run_products;
mod run_routing;
mod timer;

use burn::tensor::Device;
use cases::{ProductCase, Sizes};
use clap::Parser;
use parts::{GpuCheck, Measure, Outcome};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;

/// Checks Kiln's operations on a device, then measures them.
#[derive(Debug, Parser)]
struct Args {
    /// cuda:N; cpu for CubeCL's CPU runtime; flex for plain Rust, which has no tiers, to test this program itself
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Use tiny sizes and few rounds: tests that everything runs, not how fast
    #[arg(long)]
    smoke: bool,
    /// Where to write the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The commit that this program was built from
    #[arg(long, value_name = "ID", default_value = option_env!("KILN_COMMIT").unwrap_or("unknown"))]
    commit: String,
    /// Run only these parts of the checks; without --measure, measure nothing
    #[arg(long, value_name = "NAME")]
    check: Vec<GpuCheck>,
    /// Run only these measurements; without --check, check nothing
    #[arg(long, value_name = "NAME")]
    measure: Vec<Measure>,
    /// Run one part of the checks in this process
    #[arg(long, value_name = "NAME", hide = true)]
    part: Option<GpuCheck>,
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

/// Runs what `args` ask for. Returns whether everything was correct.
fn run(args: &Args) -> Result<bool, String> {
    let device = parts::open(&args.device)?;
    if let Some(part) = args.part {
        return Ok(checks::run(part, &device, args.smoke));
    }
    let name = device.identity().map_or_else(|| args.device.clone(), |identity| identity.name.clone());
    let mut report = Report::new(name, &args.device, &args.commit, args.smoke, args.json.clone());
    println!("device {} ({}), commit {}", report.device, args.device, args.commit);
    let all = args.check.is_empty() && args.measure.is_empty();
    let (checks, measures) =
        if all { (GpuCheck::ALL.to_vec(), Measure::ALL.to_vec()) } else { (args.check.clone(), args.measure.clone()) };
    for part in checks {
        report.checked(part, parts::check(part, &args.device, args.smoke)?);
    }
    let sizes = Sizes::new(args.smoke);
    report.cases = sizes.models.iter().flat_map(|model| ProductCase::of(*model)).collect();
    report.sizes = Some(sizes.clone());
    for measure in measures {
        run_one(measure, &device, &sizes, &mut report);
    }
    report.write()?;
    Ok(report.succeeded())
}

fn run_one(measure: Measure, device: &Device, sizes: &Sizes, report: &mut Report) {
    match measure {
        Measure::Operations => run_operations::measure(device, sizes, report),
        Measure::Routing => run_routing::measure(device, sizes, report),
        Measure::Layers => run_layer::measure(device, sizes, report),
        Measure::Products(tier) => {
            match report.outcome(GpuCheck::Product(tier, report.dtype())) {
                // If it was not checked here, the caller has checked it.
                None | Some(Outcome::Passed) => run_products::measure(device, sizes, tier, report),
                // The report already notes this.
                Some(_) => {}
            }
        }
    }
}
