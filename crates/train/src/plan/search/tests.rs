use super::*;
use crate::config::Source;

fn config(preset: &str, cluster: &Cluster, settings: &[&str]) -> Config {
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    let mut config = Config::load(Source::Preset(preset), &settings).unwrap();
    config.train.device = cluster.kind().into();
    config.parallel.precision.choose(cluster.kind());
    config.validate().unwrap();
    config
}

/// Chunks that are given stay; without blocks, the first and the last one are layouts, too.
#[test]
fn given_stages_are_kept_and_all_numbers_of_them_are_tried() {
    let cluster = Cluster::named("h100-sxm").unwrap();
    let given = ["parallel.gpus=8", "parallel.pp=2", "parallel.schedule=interleaved_1f1b"];
    let chunks = ["parallel.virtual_stages=3", "parallel.stages=[1, 2, 2, 2, 2, 3]"];
    let config_of = |chunks: &[&str]| config("gpt2-124m", &cluster, &[&given[..], chunks].concat());
    let of = |config: &Config, fixed: &[&str]| candidates(config, &cluster, &|key| fixed.contains(&key));
    let pipelines =
        |found: &[Config]| found.iter().filter(|config| config.parallel.pp > 1).cloned().collect::<Vec<_>>();
    let found = pipelines(&of(&config_of(&chunks[..1]), &["parallel.virtual_stages"]));
    assert!(found.iter().all(|config| config.parallel.virtual_stages() == 3), "{found:?}");
    assert!(found.iter().any(|config| config.parallel.pp == 4));
    let every_other = ActivationCheckpointing::Every(2);
    assert!(found.iter().any(|config| config.parallel.activation_checkpointing == every_other));
    let found = pipelines(&of(&config_of(&chunks), &["parallel.virtual_stages", "parallel.stages"]));
    assert!(!found.is_empty() && found.iter().all(|config| config.parallel.pp == 2), "{found:?}");
    assert!(found.iter().all(|config| config.parallel.stages == config_of(&chunks).parallel.stages));
    let found = of(&config_of(&chunks), &[]);
    assert!(found.iter().all(|config| config.parallel.stages.is_none()));
    let schedules = |of: Schedule| found.iter().any(|config| config.parallel.schedule == of);
    assert!(schedules(Schedule::ZbV) && schedules(Schedule::ZeroBubble));
    let pieces: Vec<_> = found.iter().filter(|config| config.parallel.cp > 1).collect();
    assert!(!pieces.is_empty() && pieces.iter().all(|config| config.micro_batch_size() == 1));
    let few_blocks = config("gpt2-124m", &cluster, &["parallel.gpus=8", "model.n_layer=6"]);
    assert!(of(&few_blocks, &[]).iter().any(|config| config.parallel.pp == 8));
}

/// Where nothing fits into the devices, but states into the CPU's memory, and where all fits.
#[test]
fn states_are_offloaded_if_that_is_needed() {
    let mut cluster = Cluster::named("h100-sxm").unwrap();
    cluster.device.memory = 1.5e9;
    let config = config("gpt2-124m", &cluster, &["parallel.gpus=1", "train.global_batch_size=8"]);
    let of = |cluster: &Cluster, fixed: &[&str]| search(&config, cluster, &|key| fixed.contains(&key)).unwrap();
    let found = of(&cluster, &[]);
    assert!(!found.best.is_empty() && found.best.iter().all(|layout| layout.config.parallel.cpu_offload));
    let slow = found.best[0].time.step;
    assert!(of(&cluster, &["parallel.cpu_offload"]).best.is_empty());
    let rates = cluster.offload.take();
    assert!(of(&cluster, &[]).best.is_empty());
    (cluster.offload, cluster.device.memory) = (rates, 80e9);
    let fast = of(&cluster, &[]);
    assert!(!fast.best[0].config.parallel.cpu_offload && fast.best[0].time.step < slow);
}

/// Two short steps tell the time of a long one, whatever of its micro-batches fills no round.
#[test]
fn long_steps_follow_from_short_ones() {
    let cluster = Cluster::named("h100-sxm").unwrap();
    for (schedule, batch) in [("1f1b", 83), ("interleaved_1f1b", 80), ("interleaved_1f1b", 83), ("zb_v", 82)] {
        let (schedule, batch) = (format!("parallel.schedule={schedule}"), format!("train.global_batch_size={batch}"));
        let settings = ["parallel.gpus=4", "parallel.pp=4", "train.micro_batch_size=1", &schedule, &batch];
        let config = config("gpt2-124m", &cluster, &settings);
        let whole = step_time(&config, &cluster, Assumptions::default()).unwrap().summary();
        let found = summary(&config, &cluster).unwrap();
        let error = found.step / whole.step - 1.0;
        assert!(error.abs() < 0.01, "{settings:?}: {error}");
    }
}

/// Layouts that are left out unseen do not fit. Of layouts with small micro-batches, whose memory is not mostly
/// activations, the bound knows a good part.
#[test]
fn no_forecast_is_below_the_bound() {
    for (preset, gpus, cluster) in [("gpt2-124m", 8, "h100-sxm"), ("llama3-8b", 32, "h100-sxm")] {
        let cluster = Cluster::named(cluster).unwrap();
        let gpus = format!("parallel.gpus={gpus}");
        let sizes = ["train.global_batch_size=512", "train.micro_batch_size=1"];
        let config = config(preset, &cluster, &[&gpus, sizes[0], sizes[1]]);
        for are_small in [false, true] {
            let layouts = candidates(&config, &cluster, &|key| are_small && key == "train.micro_batch_size");
            assert!(layouts.len() > 20, "{preset}");
            let mut parts = vec![];
            for config in layouts.iter().step_by(layouts.len() / 20) {
                let micro_batch = MicroBatch::new(config, &cluster);
                let groups = groups(std::slice::from_ref(config), &cluster);
                let of = Estimate::new(config, &cluster, micro_batch, &groups);
                let forecast = device_memory(config, &cluster).most as f64;
                assert!(of.at_least[0] <= forecast, "{} of {forecast}: {:?}", of.at_least[0], config.parallel);
                parts.push(of.at_least[0] / forecast);
            }
            let mean = parts.iter().sum::<f64>() / parts.len() as f64;
            println!("{preset}: {mean:.2}");
            assert!(!are_small || mean > 0.3, "{preset}: {parts:?}");
        }
    }
}
