//! Products on tensor cores, as CUDA C++ compiled by NVRTC (`data/make.py`), against plain sums.

use half::{bf16, f16};
use ptx::tensor::Request;
use ptx::{Counts, Launch, Memory, Module, Options, Rate, launch};

/// Whole numbers from -4 to 4, of which all sums here are exact.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) % 9
    };
    (0..count).map(|_| next() as f32 - 4.0).collect()
}

/// The `m` x `n` product of matrices by rows.
fn product(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
    let mut c = vec![0f32; m * n];
    for row in 0..m {
        for i in 0..k {
            for column in 0..n {
                c[row * n + column] += a[row * k + i] * b[i * n + column];
            }
        }
    }
    c
}

fn transposed(a: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| a[i % rows * columns + i / rows]).collect()
}

fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()
}

fn brains(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A card with one module.
struct Card {
    memory: Memory,
    module: Module,
}

impl Card {
    fn new(text: &str) -> Self {
        let memory = Memory::new(1 << 26).unwrap();
        let module = Module::load(text, &memory).unwrap_or_else(|error| panic!("{error}"));
        Self { memory, module }
    }

    fn put(&self, bytes: &[u8]) -> u64 {
        let address = self.memory.alloc(bytes.len() as u64, 256, "a test").unwrap();
        self.memory.write(address, bytes).unwrap();
        address
    }

    fn get(&self, address: u64, count: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * count];
        self.memory.read(address, &mut bytes).unwrap();
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn run(&self, kernel: &str, grid: [u32; 3], threads: u32, dynamic_shared: u32, params: &[u8]) -> Counts {
        let kernel = self.module.kernel(kernel).unwrap();
        let shape = Launch { grid, block: [threads, 1, 1], dynamic_shared, params, ..Launch::default() };
        launch(kernel, shape, &self.memory, &Options::default()).unwrap_or_else(|fault| panic!("{fault}"))
    }
}

/// Three addresses and three sizes, as most kernels here take them.
fn params(addresses: [u64; 3], sizes: [usize; 3]) -> Vec<u8> {
    let addresses = addresses.iter().flat_map(|address| address.to_le_bytes());
    addresses.chain(sizes.iter().flat_map(|size| (*size as u32).to_le_bytes())).collect()
}

#[test]
fn cp_async_ldmatrix_and_mma_multiply_matrices_that_are_no_multiple_of_the_tile() {
    let card = Card::new(include_str!("data/gemm_mma.ptx"));
    for (m, n, k) in [(64, 64, 32), (100, 72, 200), (17, 136, 8)] {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let [of_a, of_b] = [&a, &b].map(|values| card.put(&brains(values)));
        let c = card.memory.alloc(4 * (m * n) as u64, 256, "c").unwrap();
        let grid = [n.div_ceil(64) as u32, m.div_ceil(64) as u32, 1];
        let counts = card.run("gemm_mma", grid, 128, 0, &params([of_a, of_b, c], [m, n, k]));
        assert_eq!(card.get(c, m * n), product(&a, &b, m, n, k));
        let blocks = u64::from(grid[0] * grid[1]);
        let flops = blocks * (2 * 64 * 64 * k.next_multiple_of(32)) as u64;
        assert_eq!((counts.tensor_flops[Rate::Half as usize], counts.total_tensor_flops()), (flops, flops));
    }
}

#[test]
fn wmma_multiplies_f16_tf32_and_s8() {
    let card = Card::new(include_str!("data/gemm_wmma.ptx"));
    let (m, n, k) = (64, 96, 64);
    let (a, b, before) = (numbers(m * k, 3), numbers(k * n, 4), numbers(m * n, 5));
    let wanted = product(&a, &b, m, n, k);

    let [of_a, of_b, c] = [halves(&a), halves(&transposed(&b, k, n)), floats(&before)].map(|bytes| card.put(&bytes));
    let counts = card.run("gemm_wmma", [n as u32 / 32, m as u32 / 32, 1], 64, 0, &params([of_a, of_b, c], [m, n, k]));
    // C is read and written; a row of 8 or more of its numbers is a sector.
    assert_eq!(counts.global_written as usize, 4 * m * n);
    assert!(counts.global_read as usize >= 2 * (m * k + k * n) + 4 * m * n, "{}", counts.global_read);
    assert_eq!(counts.sectors, (counts.global_read + counts.global_written) / 32);
    let both: Vec<f32> = wanted.iter().zip(&before).map(|(product, before)| 2.0 * product + before).collect();
    assert_eq!(card.get(c, m * n), both);

    let [of_a, of_b, c] = [floats(&transposed(&a, m, k)), floats(&b), vec![0; 4 * m * n]].map(|bytes| card.put(&bytes));
    card.run("gemm_wmma_tf32", [n as u32 / 16, m as u32 / 16, 1], 32, 0, &params([of_a, of_b, c], [m, n, k]));
    assert_eq!(card.get(c, m * n), transposed(&wanted, m, n));

    let bytes = |values: &[f32]| values.iter().map(|value| *value as i8 as u8).collect::<Vec<u8>>();
    let [of_a, of_b, c] = [bytes(&a), bytes(&transposed(&b, k, n)), vec![0; 4 * m * n]].map(|bytes| card.put(&bytes));
    card.run("gemm_wmma_s8", [n as u32 / 8, m as u32 / 32, 1], 32, 0, &params([of_a, of_b, c], [m, n, k]));
    let found: Vec<f32> = card.get(c, m * n).iter().map(|value| value.to_bits() as i32 as f32).collect();
    assert_eq!(found, wanted);
}

#[test]
fn tensor_maps_mbarriers_and_wgmma_multiply_with_k_split_over_blocks() {
    let card = Card::new(include_str!("data/gemm_wgmma.ptx"));
    for (kernel, is_transposed) in [("gemm_wgmma", false), ("gemm_wgmma_transposed", true)] {
        for (m, n, k, split) in [(64, 128, 64, 1), (100, 200, 456, 1), (130, 136, 712, 2)] {
            let (a, b) = (numbers(m * k, 6), numbers(k * n, 7));
            let of_a = card.put(&brains(&a));
            let of_b = card.put(&brains(&if is_transposed { b.clone() } else { transposed(&b, k, n) }));
            let c = card.put(&vec![0; 4 * m * n]);
            let map =
                |data_type: u32, address: u64, sizes: [usize; 2], bytes: usize, swizzle: u32, counts: [u32; 2]| {
                    let sizes = sizes.map(|size| size as u64);
                    let strides = [sizes[0] * bytes as u64];
                    let (sizes, strides, steps) = (&sizes, &strides, &[1, 1]);
                    let request = Request {
                        data_type,
                        address,
                        sizes,
                        strides,
                        steps,
                        interleave: 0,
                        swizzle,
                        promotion: 0,
                        fill: 0,
                    };
                    request.tiled(&counts).unwrap().encode()
                };
            // Sizes and boxes from the innermost dimension on; types 9 and 7 are bf16 and f32, swizzle 3 is that of 128 bytes.
            let right = if is_transposed { ([n, k], [64, 64]) } else { ([k, n], [64, 128]) };
            let mut params = map(9, of_a, [k, m], 2, 3, [64, 64]).to_vec();
            params.extend(map(9, of_b, right.0, 2, 3, right.1));
            params.extend(map(7, c, [n, m], 4, 0, [128, 64]));
            params.extend((k as u32).to_le_bytes());
            let grid = [n.div_ceil(128) as u32, m.div_ceil(64) as u32, split];
            let stages = 3 * (64 + 128) * 64 * 2;
            card.run(kernel, grid, 160, stages + 64 * 128 * 4 + 64 + 2048, &params);
            assert_eq!(card.get(c, m * n), product(&a, &b, m, n, k), "{kernel} {m} {n} {k}");
        }
    }
}
