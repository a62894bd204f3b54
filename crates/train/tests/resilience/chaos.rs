//! Random faults at random moments under random layouts. `KILN_CHAOS_RUNS=200` makes as many runs, and `KILN_CHAOS_SEED`
//! names the first seed; a failure prints its own.

use super::{check_folder, losses, said, with_faults};
use crate::common::folder_with_text;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::env;
use std::path::Path;

const STEPS: usize = 14;

const LAYOUTS: &[&[&str]] = &[
    &[],
    &["--strategy=ddp"],
    &["--strategy=zero1"],
    &["--strategy=hybrid_shard"],
    &["--set=parallel.tp=2"],
    &["--set=parallel.pp=2"],
    &["--set=parallel.pp=2", "--set=parallel.tp=2"],
    &["--set=parallel.cp=2"],
    &["--set=parallel.pp=4", "--set=parallel.schedule=zero_bubble"],
];

/// A fault of a kind in an attempt.
fn fault(random: &mut StdRng, attempt: usize) -> String {
    let kind = ["panic", "error", "kill", "hang", "lost", "slow"].choose(random).unwrap();
    let (step, rank) = (random.random_range(1..=STEPS), random.random_range(0..4));
    let more = match *kind {
        "slow" => format!(",ms={}", random.random_range(1..100)),
        "lost" => format!(",back={}", attempt + random.random_range(2..4)),
        _ => String::new(),
    };
    format!("{kind}:step={step},rank={rank},attempt={attempt}{more}")
}

/// Runs a schedule of faults, and checks what came of it.
fn run(folder: &Path, seed: u64, undisturbed: &mut HashMap<usize, Vec<f64>>) {
    let random = &mut StdRng::seed_from_u64(seed);
    let layout = random.random_range(0..LAYOUTS.len());
    let faults: Vec<String> = (1..=random.random_range(1..=3)).map(|attempt| fault(random, attempt)).collect();
    let (faults, out) = (faults.join("; "), format!("chaos-{seed}"));
    let steps = format!("--steps={STEPS}");
    let memory = format!("--set=resilience.memory_every={}", [0, 0, 1, 2].choose(random).unwrap());
    let args = [
        &[&*steps, "--restarts=6", "--set=resilience.min_gpus=1", "--set=comm.timeout_seconds=5", &memory],
        LAYOUTS[layout],
    ]
    .concat();
    let case = format!("KILN_CHAOS_SEED={seed}: KILN_FAULTS=\"{faults}\" {}", args.join(" "));
    let output = with_faults(folder, &faults, &[&args], &out);
    let told = said(&output);
    assert!(output.status.success(), "{case}\n{told}");
    let expected = undisturbed.entry(layout).or_insert_with(|| {
        let alone = format!("undisturbed-{layout}");
        assert!(with_faults(folder, "", &[&args[..1], LAYOUTS[layout]], &alone).status.success());
        losses(&folder.join(alone))
    });
    let run = folder.join(&out);
    let found = losses(&run);
    let same_ranks = !faults.contains("lost");
    for (step, (found, expected)) in found.iter().zip(expected.iter()).enumerate() {
        let is_right = if same_ranks { found == expected } else { (found - expected).abs() <= 1e-5 * expected };
        assert!(is_right, "{case}\nstep {}: {found}, not {expected}\n{told}", step + 1);
    }
    assert_eq!(found.len(), STEPS, "{case}\n{told}");
    check_folder(folder, &out);
}

#[test]
fn runs_with_random_faults_end_with_the_losses_of_undisturbed_ones() {
    let number = |name: &str, otherwise| env::var(name).map_or(otherwise, |text| text.parse().expect("a number"));
    let (first, runs) = (number("KILN_CHAOS_SEED", 1), number("KILN_CHAOS_RUNS", 4));
    let (folder, mut undisturbed) = (folder_with_text(), HashMap::new());
    for seed in first..first + runs {
        run(folder.path(), seed, &mut undisturbed);
        if runs > 10 {
            println!("seed {seed}: as expected");
        }
    }
}
