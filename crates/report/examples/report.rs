//! Writes a page for some run folders: `cargo run -p kiln-report --example report -- OUT RUN [RUN...]`.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let out = arguments.next().ok_or("OUT RUN [RUN...]: where to write, and the folders of runs")?;
    let runs: Vec<_> = arguments.collect();
    let summary = report::write(&runs, &out)?;
    println!("{}: {} runs, {} bytes", out.display(), summary.runs, summary.bytes);
    summary.notes.iter().for_each(|note| println!("{note}"));
    Ok(())
}
