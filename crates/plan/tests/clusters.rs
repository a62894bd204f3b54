//! Clusters: the built-in ones are valid, and what cannot be is refused by key and value.

use plan::{Cluster, Collective, Group, Pass, Product, Work};
use proptest::prelude::*;

#[test]
fn built_in_clusters_are_valid() {
    for name in Cluster::names() {
        let cluster = Cluster::named(name).unwrap();
        assert_eq!(cluster.name, name);
        assert!(!cluster.source.is_empty());
    }
    let error = Cluster::named("h100").unwrap_err().to_string();
    assert!(error.contains("there is no cluster `h100`: give one of a100-40"), "{error}");
    assert!(error.ends_with("; did you mean h100-sxm?"), "{error}");
    let error = Cluster::named("A100").unwrap_err().to_string();
    assert!(error.ends_with("; did you mean a100-40 or a100-80?"), "{error}");
    let error = Cluster::named("tests").unwrap_err().to_string();
    assert_eq!(error, "tests: give the path of a file that ends with .yaml or .yml");
}

/// A cluster that is like a built-in one needs only what differs.
#[test]
fn clusters_inherit_from_built_in_ones() {
    let h100 = Cluster::named("h100-sxm").unwrap();
    let text = "base: h100-sxm\nname: mine\ndevice: {memory: 94e9, peak: {bf16: 835e12}}\n";
    let mut mine = Cluster::parse("mine.yaml", text).unwrap();
    assert_eq!((mine.name.as_str(), mine.device.memory, mine.device.peak.bf16), ("mine", 94e9, 835e12));
    (mine.name, mine.device.memory, mine.device.peak.bf16) = (h100.name.clone(), 80e9, 989e12);
    assert_eq!(mine, h100);
    for (base, message) in [
        ("base: h100", "mine.yaml: base: there is no built-in cluster `h100`: give one of"),
        ("base: [1]", "mine.yaml: base: there is no built-in cluster ``"),
        ("base: h100-sxm\ndevice: {memroy: 1e9}", "mine.yaml: device.memroy: unknown field `memroy`"),
        ("base: h100-sxm\ndevice: {memory: 80GB, cpu_cores: 0}", "mine.yaml: device.memory: invalid type: string"),
        ("base: h100-sxm\ndevice:", "mine.yaml: device: "),
        ("base: [", "mine.yaml: "),
        ("base: h100-sxm\ndevice: {cpu_cores: 2}", "mine.yaml: device.cpu_cores is 2: the base has GPUs"),
        ("base: cpu\ndevice: {cpu_cores: 0}", "mine.yaml: device.cpu_cores is 0: the base computes on CPUs"),
        ("base: h100-sxm\nnodes: 0", "mine.yaml: nodes is 0"),
    ] {
        let error = Cluster::parse("mine.yaml", base).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let text = yaml_serde::to_string(&Cluster::named("h100-sxm").unwrap()).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        Cluster::parse("mine.yaml", &text.replacen(from, to, 1)).unwrap_err().to_string()
    };
    assert!(refused("nodes: null", "nodes: 0").contains("mine.yaml: nodes is 0: give a number from 1"));
    assert!(refused("bf16: 989", "bf16: 0.989e-300 # 989").contains("mine.yaml: device.peak.bf16 is 9.89e-301: give"));
    assert!(refused("memory: 8", "memory: 1e300 # 8").contains("device.memory is 1e300: give"));
    assert!(refused("name: h100-sxm", "name: \"a\\e[31m\"").contains(r#"name is "a\u{1b}[31m": give"#));
    assert!(refused("product: 0.72", "product: fast").contains(r#"string "fast", expected a number"#));
    assert!(refused("product: 0.72", "\"\\e[2J\": 1").contains(r"unknown field `\u{1b}[2J`"));
    assert!(refused("devices_per_node: 8", "devices_per_node: 1.5").contains("expected a whole number"));
    let error = refused("devices_per_node: 8", "devices_per_node: 1e300");
    assert!(error.contains("the number `1e300`, expected a whole number"), "{error}");
    assert!(refused("cpu_cores: 0", "cpu_cores: 2\n  backend: cuda").contains("device.backend is cuda: leave it out"));
    assert!(refused("bf16: 989", "bf16: 989000").contains("device.peak.bf16 is 9.89e17: give FLOPs"));
    assert!(refused("host_memory: 2", "host_memory: 2e300 # 2").contains("host_memory is 2e300: give bytes"));
    assert!(refused("memory_bandwidth:", "memory_width:").contains("mine.yaml: "));
    assert!(refused("product: 0.72", "product: 1.2").contains("device.efficiency.product is 1.2: give a part"));
    assert!(refused("product: 0.72", "product: .nan").contains("device.efficiency.product is NaN"));
    let without = text.lines().filter(|line| !line.contains("latency")).collect::<Vec<_>>().join("\n");
    assert!(Cluster::parse("mine.yaml", &without).unwrap_err().to_string().contains("missing field `latency`"));
}

fn work() -> Work {
    let product = Product { rows: 1000.0, inner: 350.0, columns: 1050.0, count: 1.0 };
    Work { products: vec![product], attention: 1e9, kept: 3e6, launches: 2.0, half: true, ..Work::default() }
}

/// Times by hand, from the rates of `h100-sxm`: 8 devices in a node, 360 GB/s and 3.4 us in it, 45 GB/s and 14 us
/// between nodes, a peak of 989 TFLOP/s.
#[test]
fn times_are_those_of_the_formulas() {
    let cluster = Cluster::named("h100-sxm").unwrap();
    let close = |found: f64, expected: f64| {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found}, expected {expected}");
    };
    let group = |ranks: &[usize]| Group::new(ranks.to_vec(), &cluster);
    let (node, nodes) = (group(&[0, 1, 2, 3]), group(&[0, 1, 2, 3, 4, 5, 6, 7, 8]));
    let time = |collective, group: &Group| cluster.communicate(collective, 1e9, group);
    close(time(Collective::AllGather, &node), 3.0 * 3.4e-6 + 1e9 / 360e9);
    close(time(Collective::AllReduce, &node), 2.0 * 3.0 * 3.4e-6 + 1e9 / 360e9);
    close(time(Collective::PointToPoint, &group(&[0, 1])), 3.4e-6 + 1e9 / 360e9);
    close(time(Collective::PointToPoint, &group(&[0, 8])), 14e-6 + 1e9 / 45e9);
    // The second node has one rank, whose network link all data passes.
    close(time(Collective::ReduceScatter, &nodes), 7.0 * 3.4e-6 + 14e-6 + 1e9 / 45e9);
    // Of 8 others, 7 are in the same node for most ranks, none for the last.
    close(time(Collective::AllToAll, &nodes), 14e-6 + 1e9 / 45e9);

    // The product has 0.735 GFLOP, and as many contracted elements as reach half of 0.72 of the peak.
    let (flops, peak) = (2.0 * 1000.0 * 350.0 * 1050.0, 989e12);
    let moved = 3.4 * 3e6 / (3.35e12 * 0.85);
    let seconds = |pass| work().seconds(pass, &cluster.device);
    let launches = 2.0 * 5e-6;
    close(seconds(Pass::Forward), flops / (peak * 0.72 / 2.0) + 1e9 / (peak * 0.54) + moved / 3.0 + launches);
    close(seconds(Pass::Input), flops / (peak * 0.72 * 0.75) + 2e9 / (peak * 0.42) + 2.0 * moved / 3.0 + launches);
    close(seconds(Pass::Weights), flops / (peak * 0.72 * 1000.0 / 1350.0) + 5e-6);
    let in_forward = Work { gradients_in_forward: true, ..work() };
    let all = [Pass::Forward, Pass::Input, Pass::Weights].map(seconds).iter().sum::<f64>() - launches - 5e-6;
    close(in_forward.seconds(Pass::Forward, &cluster.device), all);
}

proptest! {
    /// Whatever figures a cluster has, it is refused or it gives times.
    #[test]
    fn any_figures_are_refused_or_give_times(field in 0..100_usize, value in prop_oneof![
        any::<f64>(), Just(0.0), Just(-1.0), Just(f64::NAN), Just(f64::INFINITY), Just(1e-300), Just(1e300), Just(1e12),
    ]) {
        let text = yaml_serde::to_string(&Cluster::named("h100-sxm").unwrap()).unwrap();
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        let figures: Vec<usize> = (0..lines.len())
            .filter(|i| lines[*i].split_once(": ").is_some_and(|(_, value)| value.parse::<f64>().is_ok()))
            .collect();
        let line = &mut lines[figures[field % figures.len()]];
        *line = format!("{}: {value:?}", line.split_once(": ").unwrap().0);
        let Ok(cluster) = Cluster::parse("mine.yaml", &lines.join("\n")) else { return Ok(()) };
        let seconds = cluster.communicate(Collective::AllReduce, 1e9, &Group::new(vec![0, 1, 9], &cluster));
        prop_assert!(seconds.is_finite() && seconds > 0.0, "{lines:?}");
        let seconds = cluster.offload.unwrap().seconds(1e9, 1e9, 9, &cluster);
        prop_assert!(seconds.is_finite() && seconds > 0.0, "{lines:?}");
        for pass in [Pass::Forward, Pass::Recompute, Pass::Input, Pass::Weights] {
            let seconds = work().seconds(pass, &cluster.device);
            prop_assert!(seconds.is_finite() && seconds > 0.0, "{lines:?}");
        }
    }

    /// No text makes the reader panic.
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        let _ = Cluster::parse("mine.yaml", &text);
    }

    /// More bytes take longer, and a group within a node is faster than one over several.
    #[test]
    fn times_grow_with_bytes_and_distance(bytes in 1.0..1e10_f64, ranks in 2..9_usize) {
        let cluster = Cluster::named("h100-sxm").unwrap();
        let near = Group::new((0..ranks).collect(), &cluster);
        let far = Group::new((0..ranks).map(|rank| rank * 8).collect(), &cluster);
        let kinds = [
            Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce, Collective::AllToAll,
            Collective::PointToPoint,
        ];
        for kind in kinds {
            let seconds = cluster.communicate(kind, bytes, &near);
            prop_assert!(seconds > 0.0 && seconds.is_finite());
            prop_assert!(cluster.communicate(kind, 2.0 * bytes, &near) > seconds);
            prop_assert!(cluster.communicate(kind, bytes, &far) > seconds);
        }
    }
}
