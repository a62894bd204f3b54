//! A cluster: its devices, nodes and links, with the rates that they reach.

use crate::{Offload, PlanError, SharedCores};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use yaml_serde::{Mapping, Value};

/// The built-in clusters.
const CLUSTERS: [(&str, &str); 7] = [
    ("a100-40", include_str!("../clusters/a100-40.yaml")),
    ("a100-80", include_str!("../clusters/a100-80.yaml")),
    ("h100-sxm", include_str!("../clusters/h100-sxm.yaml")),
    ("h200", include_str!("../clusters/h200.yaml")),
    ("h800", include_str!("../clusters/h800.yaml")),
    ("b200", include_str!("../clusters/b200.yaml")),
    ("cpu", include_str!("../clusters/cpu.yaml")),
];

/// Bytes of a name, and nodes, devices or cores, at most.
const LONGEST_NAME: usize = 100;
const MOST: usize = 1_000_000;

/// Machines of one kind and how they are connected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// What it is called in messages.
    pub name: String,
    /// Where the figures come from.
    pub source: String,
    /// Number of nodes; absent for as many as a plan needs.
    #[serde(default)]
    pub nodes: Option<usize>,
    /// Devices of a node.
    pub devices_per_node: usize,
    /// Bytes of a node's CPU memory, for what GPUs offload; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<f64>,
    /// Rates of what GPUs offload there; absent if they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
    /// A device.
    pub device: Device,
    /// From each device to the others of its node.
    pub node_link: Link,
    /// From each device to other nodes.
    pub network: Link,
}

/// A device that computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Bytes of memory.
    pub memory: f64,
    /// Bytes per second between memory and processor.
    pub memory_bandwidth: f64,
    /// Floating-point operations per second of matrix products.
    pub peak: Peak,
    /// The parts of these rates that programs reach.
    pub efficiency: Efficiency,
    /// Cores of a node's CPU, which all ranks of the node share; 0 for GPUs, of which each rank has one. Rates are those
    /// of all cores together.
    #[serde(default)]
    pub cpu_cores: usize,
    /// How programs use it, if it is a GPU; absent for CUDA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
}

/// How programs use a GPU. Runs choose their precision by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "names of interfaces")]
pub enum Backend {
    Cuda,
    Vulkan,
    Metal,
}

/// Floating-point operations per second of dense matrix products, by the type of the factors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peak {
    /// fp32, with fp32's precision: not TF32.
    pub fp32: f64,
    /// bf16 and fp16.
    pub bf16: f64,
}

/// The parts of a device's rates that programs reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Efficiency {
    /// Part of the peak that a large matrix product reaches.
    pub product: f64,
    /// The contracted dimension of a product that reaches half of that.
    pub product_half_k: f64,
    /// Part of it that products of many experts reach.
    pub grouped_product: f64,
    /// Part of the peak that attention reaches, counting only visible keys.
    pub attention_forward: f64,
    /// The same for its backward, whose FLOPs count twice the forward's.
    pub attention_backward: f64,
    /// Part of the memory's bandwidth that elementwise operations reach.
    pub memory: f64,
    /// Part of it that products reach whose columns are no multiple of 8, in 16 bits; 1 if they are padded.
    pub unaligned: f64,
    /// Bytes that elementwise operations of a forward and a backward move for each byte that is kept between them.
    pub elementwise_traffic: f64,
    /// Bytes that the loss moves for each logit, forward and backward.
    pub logit_traffic: f64,
    /// Part of a block that a recomputation repeats.
    pub recomputed: f64,
    /// Speed of the slowest device of a run, as a part of the usual one; all others wait for it.
    pub slowest_device: f64,
    /// Seconds that each operation takes at least.
    pub launch: f64,
}

/// A link of one device, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bytes per second that large messages reach.
    pub bandwidth: f64,
    /// Seconds from a device to the next.
    pub latency: f64,
}

impl Cluster {
    /// Names of the built-in clusters.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CLUSTERS.iter().map(|(name, _)| *name)
    }

    /// Returns a built-in cluster, or reads one from a YAML file if `name` ends with `.yaml` or `.yml`.
    ///
    /// # Errors
    /// If there is none, or if a figure is missing or cannot be.
    pub fn named(name: &str) -> Result<Self, PlanError> {
        if name.ends_with(".yaml") || name.ends_with(".yml") {
            let text = fs::read_to_string(Path::new(name));
            let text = text.map_err(|error| PlanError::Unreadable { path: name.into(), message: error.to_string() })?;
            return Self::parse(name, &text);
        }
        match built_in(name) {
            Some(text) => Self::parse(name, text),
            None if Path::new(name).exists() => {
                let message = "give the path of a file that ends with .yaml or .yml".into();
                Err(PlanError::Unreadable { path: name.into(), message })
            }
            None => Err(unknown(name)),
        }
    }

    /// Reads a cluster; `path` is named in errors. With `base: NAME`, figures that are not given are those of a built-in
    /// one.
    ///
    /// # Errors
    /// If the text is no cluster, or if a figure is missing or cannot be.
    pub fn parse(path: &str, text: &str) -> Result<Self, PlanError> {
        let unreadable =
            |error: yaml_serde::Error| PlanError::Unreadable { path: path.into(), message: plain(&error.to_string()) };
        let mut given: Mapping = yaml_serde::from_str(text).map_err(unreadable)?;
        let cluster: Self = match given.remove("base") {
            None => yaml_serde::from_str(text).map_err(unreadable)?,
            Some(base) => {
                let name = base.as_str().unwrap_or_default();
                let base = built_in(name).ok_or_else(|| {
                    let (known, meant) = known(name);
                    let message = format!("base: there is no built-in cluster `{name}`: give one of {known}{meant}");
                    PlanError::Unreadable { path: path.into(), message }
                })?;
                let cluster = over(base, &given).map_err(|error| match first_wrong(base, &given) {
                    Some((key, error)) => {
                        PlanError::Unreadable { path: path.into(), message: format!("{key}: {}", plain(&error)) }
                    }
                    None => unreadable(error),
                })?;
                let is_cpu = over(base, &Mapping::new()).is_ok_and(|base| base.is_cpu());
                if is_cpu != cluster.is_cpu() {
                    let remedy = match is_cpu {
                        true => "the base computes on CPUs: give at least 1 core, or a base with GPUs",
                        false => "the base has GPUs: leave it out, or give `base: cpu`",
                    };
                    let (path, value) = (path.into(), cluster.device.cpu_cores.to_string());
                    return Err(PlanError::Figure { path, key: "device.cpu_cores", value, remedy });
                }
                cluster
            }
        };
        cluster.validate(path)?;
        Ok(cluster)
    }

    /// Whether ranks compute on CPUs.
    pub fn is_cpu(&self) -> bool {
        self.device.cpu_cores > 0
    }

    /// Returns the kind of its devices, by which `--device` calls them.
    pub fn kind(&self) -> &'static str {
        match self.device.backend {
            _ if self.is_cpu() => "cpu",
            None | Some(Backend::Cuda) => "cuda",
            Some(Backend::Vulkan) => "vulkan",
            Some(Backend::Metal) => "metal",
        }
    }

    /// Returns the cores that this many ranks share, on CPUs.
    pub fn shared_cores(&self, ranks: usize) -> Option<SharedCores> {
        self.is_cpu().then(|| SharedCores { of_node: self.device.cpu_cores, nodes: self.nodes_of(ranks) })
    }

    /// Returns the number of nodes that this many ranks fill.
    pub fn nodes_of(&self, ranks: usize) -> usize {
        ranks.div_ceil(self.devices_per_node)
    }

    /// Returns the number of ranks that the cluster has room for, if it is limited.
    pub fn ranks(&self) -> Option<usize> {
        self.nodes.map(|nodes| nodes.saturating_mul(self.devices_per_node))
    }

    fn validate(&self, path: &str) -> Result<(), PlanError> {
        let Device { memory, memory_bandwidth, peak, efficiency, cpu_cores, backend } = self.device;
        let fault = |key, value, remedy| PlanError::Figure { path: path.into(), key, value, remedy };
        let is_shown = |c: char| !c.is_control();
        if self.name.trim().is_empty() || self.name.len() > LONGEST_NAME || !self.name.chars().all(is_shown) {
            let value = format!("{:?}", self.name);
            return Err(fault("name", value, "give at most 100 bytes of text on one line, without control characters"));
        }
        let numbers = [
            ("nodes", self.nodes.unwrap_or(1), 1),
            ("devices_per_node", self.devices_per_node, 1),
            ("device.cpu_cores", cpu_cores, 0),
        ];
        for (key, value, least) in numbers {
            if !(least..=MOST).contains(&value) {
                let remedy =
                    if least == 0 { "give a number from 0 to 1000000" } else { "give a number from 1 to 1000000" };
                return Err(fault(key, value.to_string(), remedy));
            }
        }
        if let Some(backend) = backend.filter(|_| cpu_cores > 0) {
            let value = format!("{backend:?}").to_lowercase();
            return Err(fault("device.backend", value, "leave it out: with device.cpu_cores, ranks compute on CPUs"));
        }
        let fault = |key, value, remedy| fault(key, figure(value), remedy);
        // Far above what there is, and below what a wrong unit gives.
        let sizes = [("device.memory", memory), ("host_memory", self.host_memory.unwrap_or(1e12))];
        for (key, value) in sizes {
            if !(1e3..=1e14).contains(&value) {
                return Err(fault(key, value, "give bytes, from 1e3 to 1e14"));
            }
        }
        for (key, value) in [("device.peak.fp32", peak.fp32), ("device.peak.bf16", peak.bf16)] {
            if !(1e3..=1e17).contains(&value) {
                return Err(fault(key, value, "give FLOPs per second, from 1e3 to 1e17"));
            }
        }
        let offload = self.offload.unwrap_or(Offload { link: self.node_link, memory_bandwidth });
        let rates = [
            ("device.memory_bandwidth", memory_bandwidth),
            ("node_link.bandwidth", self.node_link.bandwidth),
            ("network.bandwidth", self.network.bandwidth),
            ("offload.link.bandwidth", offload.link.bandwidth),
            ("offload.memory_bandwidth", offload.memory_bandwidth),
        ];
        for (key, value) in rates {
            if !(1e3..=1e14).contains(&value) {
                return Err(fault(key, value, "give bytes per second, from 1e3 to 1e14"));
            }
        }
        let parts = [
            ("device.efficiency.product", efficiency.product),
            ("device.efficiency.grouped_product", efficiency.grouped_product),
            ("device.efficiency.attention_forward", efficiency.attention_forward),
            ("device.efficiency.attention_backward", efficiency.attention_backward),
            ("device.efficiency.unaligned", efficiency.unaligned),
            ("device.efficiency.memory", efficiency.memory),
            ("device.efficiency.recomputed", efficiency.recomputed),
            ("device.efficiency.slowest_device", efficiency.slowest_device),
        ];
        for (key, value) in parts {
            if !(1e-6..=1.0).contains(&value) {
                return Err(fault(key, value, "give a part of the rate, above 0 and at most 1"));
            }
        }
        let least = [
            ("device.efficiency.product_half_k", efficiency.product_half_k),
            ("device.efficiency.elementwise_traffic", efficiency.elementwise_traffic),
            ("device.efficiency.logit_traffic", efficiency.logit_traffic),
        ];
        for (key, value) in least {
            if !(0.0..=1e6).contains(&value) {
                return Err(fault(key, value, "give a number from 0 to 1e6"));
            }
        }
        if !(0.0..=0.1).contains(&efficiency.launch) {
            return Err(fault("device.efficiency.launch", efficiency.launch, "give seconds, from 0 to 0.1"));
        }
        let latencies = [
            ("node_link.latency", self.node_link.latency),
            ("network.latency", self.network.latency),
            ("offload.link.latency", offload.link.latency),
        ];
        for (key, value) in latencies {
            if !(0.0..=10.0).contains(&value) {
                return Err(fault(key, value, "give seconds, from 0 to 10"));
            }
        }
        Ok(())
    }
}

/// The text of a built-in cluster.
fn built_in(name: &str) -> Option<&'static str> {
    CLUSTERS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The error of a name that is none, with those that begin alike.
fn unknown(name: &str) -> PlanError {
    let (known, meant) = known(name);
    PlanError::UnknownCluster { name: name.into(), known, meant }
}

/// Returns the names of the built-in clusters, and those that may be meant.
fn known(name: &str) -> (String, String) {
    let first = |name: &str| name.split('-').next().unwrap_or_default().to_lowercase();
    let near: Vec<&str> = Cluster::names().filter(|known| first(known) == first(name)).collect();
    let meant = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
    (Cluster::names().collect::<Vec<_>>().join(", "), meant)
}

/// Reads a built-in cluster with other figures over its own.
fn over(base: &str, given: &Mapping) -> Result<Cluster, yaml_serde::Error> {
    let mut all: Mapping = yaml_serde::from_str(base).expect("a built-in cluster is a mapping");
    merge(&mut all, given.clone());
    yaml_serde::from_value(Value::Mapping(all))
}

/// Returns the first key whose value alone cannot be over the base's, and why. (Once merged, a value has no line.)
fn first_wrong(base: &str, given: &Mapping) -> Option<(String, String)> {
    fn each(given: &Mapping, is_wrong: &dyn Fn(Mapping) -> Option<String>) -> Option<(String, String)> {
        given.iter().find_map(|(key, value)| {
            let alone = |value: Value| Mapping::from_iter([(key.clone(), value)]);
            let name = key.as_str().unwrap_or_default();
            match value {
                Value::Mapping(inner) if !inner.is_empty() => {
                    let (inner, error) = each(inner, &|given| is_wrong(alone(Value::Mapping(given))))?;
                    Some((format!("{name}.{inner}"), error))
                }
                value => Some((name.into(), is_wrong(alone(value.clone()))?)),
            }
        })
    }
    each(given, &|given| over(base, &given).err().map(|error| error.to_string()))
}

/// Merges `over` into `under`, key by key.
fn merge(under: &mut Mapping, over: Mapping) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Mapping(under)), Value::Mapping(over)) => merge(under, over),
            (_, value) => _ = under.insert(key, value),
        }
    }
}

/// Writes a figure as a person would: `1e300`, not its 300 digits.
fn figure(value: f64) -> String {
    if value == 0.0 || !value.is_finite() || (1e-4..1e16).contains(&value.abs()) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

/// Puts a parser's message into words of the file's writer.
fn plain(message: &str) -> String {
    let types =
        ["Cluster", "Device", "Peak", "Efficiency", "Link", "Offload"].map(|name| format!("expected struct {name}"));
    let plain = types.iter().fold(message.to_string(), |text, of| text.replace(of, "expected keys with values"));
    let plain = plain.replace("expected usize", "expected a whole number").replace("expected f64", "expected a number");
    let plain = plain.replace("unit value", "no value").replace("floating point", "the number");
    let plain = plain.split('`').map(shorter).collect::<Vec<_>>().join("`");
    plain.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Writes a number of many digits as a figure.
fn shorter(part: &str) -> String {
    match part.parse::<f64>() {
        Ok(number) if part.len() > 20 => figure(number),
        _ => part.into(),
    }
}
