//! Clusters: the built-in ones are valid, and what cannot be is refused by key and value.

use plan::{Cluster, Collective, Group};
use proptest::prelude::*;

#[test]
fn built_in_clusters_are_valid() {
    for name in Cluster::names() {
        let cluster = Cluster::named(name).unwrap();
        assert_eq!(cluster.name, name);
        assert!(!cluster.source.is_empty());
    }
    let error = Cluster::named("h100").unwrap_err().to_string();
    assert!(error.contains("there is no cluster `h100`: give one of") && error.contains("h100-sxm"), "{error}");
}

#[test]
fn what_cannot_be_is_refused() {
    let text = yaml_serde::to_string(&Cluster::named("h100-sxm").unwrap()).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        Cluster::parse("mine.yaml", &text.replacen(from, to, 1)).unwrap_err().to_string()
    };
    assert!(refused("nodes: 256", "nodes: 0").contains("nodes is 0: give at least 1"));
    assert!(refused("memory_bandwidth:", "memory_width:").contains("mine.yaml: "));
    assert!(refused("product: 0.72", "product: 1.2").contains("device.efficiency.product is 1.2: give a part"));
    assert!(refused("product: 0.72", "product: .nan").contains("device.efficiency.product is NaN"));
    let without = text.lines().filter(|line| !line.contains("latency")).collect::<Vec<_>>().join("\n");
    assert!(Cluster::parse("mine.yaml", &without).unwrap_err().to_string().contains("missing field `latency`"));
}

proptest! {
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
            Collective::Message,
        ];
        for kind in kinds {
            let seconds = cluster.communicate(kind, bytes, &near);
            prop_assert!(seconds > 0.0 && seconds.is_finite());
            prop_assert!(cluster.communicate(kind, 2.0 * bytes, &near) > seconds);
            prop_assert!(cluster.communicate(kind, bytes, &far) > seconds);
        }
    }
}
