//! Collectives on CubeCL devices: several ranks on one device, and one rank or more on each of several devices.
//!
//! `KILN_KERNEL_DEVICE` selects the kind of device, as in the kernel tests; all devices of that kind are used.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

mod common;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use comm::Communicator;
use common::*;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use std::process::Command;
use std::sync::LazyLock;

/// The devices of the selected kind, set up as for training: with one CubeCL stream each.
static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let mut config = CubeClRuntimeConfig::default().override_from_env();
    config.streaming.max_streams = 1;
    CubeClRuntimeConfig::try_set(config);
    match std::env::var("KILN_KERNEL_DEVICE").as_deref() {
        #[cfg(feature = "cpu-jit")]
        Err(_) | Ok("cpu") => vec![Device::cpu()],
        #[cfg(feature = "vulkan")]
        Ok("vulkan") => vec![Device::vulkan(burn::tensor::DeviceKind::DefaultDevice)],
        #[cfg(feature = "cuda")]
        Ok("cuda") => Device::enumerate(burn::tensor::DeviceType::Cuda).into_iter().collect(),
        name => panic!("KILN_KERNEL_DEVICE is {name:?}, and this build has no such device"),
    }
});

/// Whether the devices compute in `dtype`. CubeCL's CPU runtime offers bf16 on every CPU, but without AVX512-BF16 its
/// kernels end in a missing symbol, `__truncsfbf2`.
fn is_supported(dtype: DType) -> bool {
    #[cfg(target_arch = "x86_64")]
    let rounds = is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let rounds = true;
    let on_cpu = matches!(std::env::var("KILN_KERNEL_DEVICE").as_deref(), Err(_) | Ok("cpu"));
    DEVICES[0].supports_dtype(dtype) && (dtype != DType::BF16 || !on_cpu || rounds)
}

/// Returns devices for `n` ranks in turn; if there are several devices, neighboring ranks have different ones.
fn devices(n: usize) -> Vec<Device> {
    DEVICES.iter().cycle().take(n).cloned().collect()
}

fn tensor_of(comm: &Communicator, dtype: DType, len: usize) -> Tensor<1> {
    let value = |i| noise((comm.rank() * 100_000 + i) as u64, 200_001) as f32 / 100.0 - 1000.0;
    let data = TensorData::new((0..len).map(value).collect::<Vec<_>>(), [len]);
    Tensor::from_data(data.convert_dtype(dtype), (comm.device(), dtype))
}

fn ints_of(comm: &Communicator, len: usize) -> Tensor<1, Int> {
    let value = |i| noise((comm.rank() * 100_000 + i) as u64, 2_000_001) as i32 - 1_000_000;
    let data = TensorData::new((0..len).map(value).collect::<Vec<_>>(), [len]);
    Tensor::from_data(data, (comm.device(), DType::I32))
}

fn bits(data: TensorData) -> Vec<u64> {
    data.iter::<f64>().map(f64::to_bits).collect()
}

/// Returns the bits of each collective's result on a rank.
fn everything(comm: &Communicator, dtype: DType, len: usize) -> Vec<(&'static str, Vec<u64>)> {
    let counts: Vec<_> = (0..comm.world_size()).map(|to| (comm.rank() + 2 * to) % 5 * (len / 20)).collect();
    let (onto, ints) = (tensor_of(comm, DType::F32, len), || ints_of(comm, len));
    let found = every_collective(comm, len, |len| tensor_of(comm, dtype, len), ints, onto, &counts);
    found.into_iter().map(|(name, data)| (name, bits(data))).collect()
}

#[test]
fn every_collective_has_the_bits_of_the_cpu() {
    // On four devices, five ranks use each of them, and one device has two ranks. An `all_reduce` takes one round up to
    // 32 KiB and two rounds above, here with padded chunks.
    let cases = [(5, DType::F32, 60), (5, DType::F32, 9001), (2, DType::BF16, 60), (2, DType::F16, 60)];
    for (n, dtype, len) in cases.into_iter().filter(|case| is_supported(case.1)) {
        let expected = on_ranks(n, |comm| everything(comm, dtype, len));
        let found = on(devices(n), |comm| everything(comm, dtype, len));
        for (rank, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            for ((name, found), (_, expected)) in found.into_iter().zip(expected) {
                assert!(found == expected, "{name} of {len} {dtype:?} on rank {rank} of {n}");
            }
        }
    }
}

/// Nothing is read before the end, so only the devices' own ordering separates the rounds.
#[test]
fn what_was_given_may_be_overwritten_and_what_came_may_be_used_at_once() {
    const ROUNDS: usize = 12;
    const LEN: usize = 3000;
    let n = 4;
    on(devices(n), |comm| {
        let me = comm.rank();
        let mut mine = Tensor::<1>::full([LEN], me as f32, comm.device());
        let mut found = vec![];
        for round in 0..ROUNDS {
            let gathered = comm.all_gather(mine.clone()).unwrap();
            let sum = comm.reduce_scatter(gathered.clone()).unwrap();
            comm.send(sum.clone() + 1.0, (me + 1) % n).unwrap();
            let passed: Tensor<1> = comm.recv((me + n - 1) % n).unwrap();
            // The addition is in place if nobody else has the memory.
            mine = mine + n as f32;
            found.push((round, gathered, sum * 2.0, passed * 2.0));
        }
        for (round, gathered, sum, passed) in found {
            let of_rank = |rank: usize| (round * n + rank) as f32;
            let all = |tensor: Tensor<1>, value: f32| tensor.into_data().iter::<f32>().all(|found| found == value);
            for (rank, shard) in gathered.chunk(n, 0).into_iter().enumerate() {
                assert!(all(shard, of_rank(rank)), "round {round}: shard {rank} on rank {me}");
            }
            // All ranks gathered the same tensor, and rank `i` has the sum of shard `i`.
            assert!(all(sum, 2.0 * n as f32 * of_rank(me)), "round {round}: sum on rank {me}");
            let before = (me + n - 1) % n;
            assert!(all(passed, 2.0 * (n as f32 * of_rank(before) + 1.0)), "round {round}: what came to rank {me}");
        }
    });
}

/// The environment variable that sets the number of rounds in the profiled process.
const ROUNDS: &str = "KILN_TEST_ROUNDS";
/// Elements per shard.
const SHARD: usize = 5000;

/// Returns numbers from the emulated driver's profile: host waits, and bytes copied to, from and on GPUs.
fn profile_of(rounds: usize) -> Option<[usize; 4]> {
    let name = "each_byte_moves_once_from_card_to_card_and_no_thread_waits_for_a_card";
    let file = std::env::temp_dir().join(format!("kiln-comm-{}-{rounds}", std::process::id()));
    let mut counted = Command::new(std::env::current_exe().unwrap());
    counted.args(["--exact", name, "--nocapture"]).env(ROUNDS, rounds.to_string()).env("KILN_EMULATED_PROFILE", &file);
    let output = counted.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = std::fs::read_to_string(&file).ok()?;
    std::fs::remove_file(&file).unwrap();
    let number = |before: &str, after: &str| {
        let line = profile.lines().find(|line| line.starts_with('#') && line.contains(before)).unwrap();
        line.split(before).nth(1).unwrap().split(after).next().unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    };
    let bytes = |which| number(&format!("# copies {which}: "), " bytes");
    Some([number("the host waited ", " times"), bytes("to a card"), bytes("from a card"), bytes("on cards")])
}

#[test]
fn each_byte_moves_once_from_card_to_card_and_no_thread_waits_for_a_card() {
    let n = DEVICES.len();
    if let Ok(rounds) = std::env::var(ROUNDS) {
        let rounds: usize = rounds.parse().unwrap();
        on(devices(n), |comm| {
            let shard = Tensor::<1>::full([SHARD], comm.rank() as f32, comm.device());
            let mut last = shard.clone();
            for _ in 0..rounds {
                let gathered = comm.all_gather(shard.clone()).unwrap();
                last = comm.reduce_scatter(gathered).unwrap();
            }
            last.into_data();
        });
        return;
    }
    if n < 2 {
        eprintln!("skipped, since there is one device: counts of what moves between cards");
        return;
    }
    let Some(few) = profile_of(2) else {
        eprintln!("skipped, since these cards are not emulated: counts of what moves between them");
        return;
    };
    let many = profile_of(12).unwrap();
    let [waits, to_cards, from_cards, on_cards] = [0, 1, 2, 3].map(|i| many[i] - few[i]);
    // Each GPU receives all shards, including its own, and its chunk of the others' sums.
    assert_eq!(on_cards, 10 * n * 4 * SHARD * (n + n - 1));
    assert_eq!((waits, from_cards), (0, 0));
    // The rest are kernel arguments.
    assert!(to_cards < 10 * n * 4 * SHARD / 2, "{to_cards} bytes went to cards");
}
