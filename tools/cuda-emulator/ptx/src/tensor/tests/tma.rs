//! The copy engine against loops over elements.

use super::*;

/// Where the tensor of a test starts.
const BASE: u64 = 1 << 20;

/// What `cp.async.bulk.tensor` leaves in 64 KiB of shared memory; `tensor` lies at [`BASE`].
fn load(map: &TensorMap, coordinates: &[i32], offsets: &[u16], shared: u64, tensor: &[u8]) -> Vec<u8> {
    let mut memory = vec![0xa5; 1 << 16];
    let mut bytes = 0;
    for run in map.runs(coordinates, offsets, shared).unwrap() {
        let to = &mut memory[run.shared as usize..][..run.bytes];
        match run.source {
            Source::Global(address) => to.copy_from_slice(&tensor[(address - BASE) as usize..][..run.bytes]),
            Source::Outside => map.fill(to),
        }
        map.element.convert(to);
        bytes += run.bytes;
    }
    assert_eq!(bytes, map.bytes());
    memory
}

/// CuTe's `Swizzle<B, 4, 3>` of a byte's address.
fn swizzled(address: usize, swizzle: u32) -> usize {
    address ^ (address & ((1 << swizzle) - 1) << 7) >> 3
}

/// Bytes of an element of type `data_type` of `cuda.h`.
const SIZES: [usize; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];

struct Tensor {
    sizes: Vec<u64>,
    strides: Vec<u64>,
    bytes: Vec<u8>,
}

impl Tensor {
    /// With a gap behind every dimension, filled with small numbers of f32 if they are 4 bytes long.
    fn new(sizes: &[u64], size: usize, numbers: &mut Numbers) -> Self {
        let mut strides = vec![];
        let mut stride = size as u64;
        for extent in sizes {
            stride = (stride * extent).next_multiple_of(16) + 16 * numbers.below(2);
            strides.push(stride);
        }
        let bytes = (0..strides.pop().unwrap() / 4)
            .flat_map(|_| (numbers.whole(1000) as f32 * 1.000_1).to_le_bytes())
            .collect();
        Self { sizes: sizes.to_vec(), strides, bytes }
    }

    fn offset(&self, at: &[i64], size: usize) -> Option<usize> {
        let inside = at.iter().zip(&self.sizes).all(|(at, size)| (0..*size as i64).contains(at));
        let strides = std::iter::once(size as u64).chain(self.strides.iter().copied());
        inside.then(|| at.iter().zip(strides).map(|(at, stride)| *at as usize * stride as usize).sum())
    }

    fn request<'a>(&'a self, data_type: u32, steps: &'a [u32], swizzle: u32, fill: u32) -> Request<'a> {
        let (sizes, strides) = (&self.sizes, &self.strides);
        Request { data_type, address: BASE, sizes, strides, steps, interleave: 0, swizzle, promotion: 2, fill }
    }
}

#[test]
fn boxes_of_every_rank_type_and_swizzle_are_their_elements() {
    let mut numbers = Numbers(7);
    for case in 0..400 {
        let rank = 1 + case % 5;
        let data_type = case / 5 % 13;
        let size = SIZES[data_type];
        let swizzle = numbers.below(4) as u32;
        let row = if swizzle == 0 { 16 * (1 + numbers.below(8) as usize) } else { 16 << swizzle };
        let sizes: Vec<u64> = (0..rank)
            .map(|i| if i == 0 { 1 + numbers.below(2 * (row / size) as u64) } else { 1 + numbers.below(7) })
            .collect();
        let mut counts: Vec<u32> = (0..rank).map(|_| 1 + numbers.below(5) as u32).collect();
        counts[0] = (row / size) as u32;
        let steps: Vec<u32> = (0..rank).map(|_| 1 + numbers.below(3) as u32).collect();
        let fill = if data_type >= 6 { numbers.below(2) as u32 } else { 0 };
        let tensor = Tensor::new(&sizes, size, &mut numbers);
        let map = tensor.request(data_type as u32, &steps, swizzle, fill).tiled(&counts).unwrap();
        let map = TensorMap::decode(&map.encode()).unwrap();
        let coordinates: Vec<i32> = sizes.iter().map(|size| numbers.below(size + 6) as i32 - 3).collect();
        let shared = 128 * numbers.below(16);
        let found = load(&map, &coordinates, &[], shared, &tensor.bytes);

        let mut wanted = vec![0xa5u8; 1 << 16];
        let counts: Vec<usize> =
            (0..rank).map(|i| if i == 0 { counts[0] } else { counts[i].div_ceil(steps[i]) } as usize).collect();
        for element in 0..counts.iter().product::<usize>() {
            let mut rest = element;
            let at: Vec<i64> = (0..rank)
                .map(|i| {
                    let index = rest % counts[i];
                    rest /= counts[i];
                    i64::from(coordinates[i]) + (index * if i == 0 { 1 } else { steps[i] as usize }) as i64
                })
                .collect();
            let mut bytes = match tensor.offset(&at, size) {
                Some(offset) => tensor.bytes[offset..][..size].to_vec(),
                None => {
                    let mut bytes = vec![if fill == 1 { 0xff } else { 0 }; size];
                    bytes[size - 1] &= 0x7f;
                    bytes
                }
            };
            map.element.convert(&mut bytes);
            let place = swizzled(shared as usize + element * size, swizzle);
            wanted[place..][..size].copy_from_slice(&bytes);
        }
        assert!(found == wanted, "{map:?} {coordinates:?}");
    }
}

#[test]
fn im2col_is_the_input_of_a_convolution() {
    let mut numbers = Numbers(8);
    // Sizes from the width on, filter, padding and stride of every spatial dimension.
    for (spatial, filter, padding, step) in [
        (vec![9u64], 3i64, 1i64, 1u32),
        (vec![9], 4, 0, 2),
        (vec![6, 5], 3, 1, 1),
        (vec![6, 5], 3, 1, 2),
        (vec![7, 4], 1, 0, 1),
        (vec![4, 5, 3], 3, 1, 1),
    ] {
        let (channels, images, pixels, size) = (12u64, 3, 40, 4);
        let sizes: Vec<u64> = std::iter::once(channels).chain(spatial.iter().copied()).chain([images]).collect();
        let tensor = Tensor::new(&sizes, size, &mut numbers);
        let steps: Vec<u32> = (0..sizes.len()).map(|i| if i == 0 || i + 1 == sizes.len() { 1 } else { step }).collect();
        let (lower, upper) = (-padding as i32, (padding - filter + 1) as i32);
        let (lower, upper) = (vec![lower; spatial.len()], vec![upper; spatial.len()]);
        let map = tensor.request(7, &steps, 0, 0).im2col(&lower, &upper, 8, pixels).unwrap();
        let map = TensorMap::decode(&map.encode()).unwrap();
        let extents: Vec<i64> =
            spatial.iter().map(|size| (*size as i64 + 2 * padding - filter) / i64::from(step) + 1).collect();
        let outputs = extents.iter().product::<i64>() * images as i64;

        for first in [0, 5, outputs - 7] {
            // Where the filter's first tap of an output pixel lies.
            let tap = |output: i64| {
                let mut rest = output;
                let mut at: Vec<i64> = vec![];
                for extent in &extents {
                    at.push(rest % extent * i64::from(step) - padding);
                    rest /= extent;
                }
                at.push(rest);
                at
            };
            for channel in [0i32, 8] {
                let coordinates: Vec<i32> =
                    std::iter::once(channel).chain(tap(first).iter().map(|at| *at as i32)).collect();
                let offsets: Vec<u16> = spatial.iter().map(|_| numbers.below(filter as u64) as u16).collect();
                let found = load(&map, &coordinates, &offsets, 0, &tensor.bytes);
                for (i, found) in found.chunks_exact(size).take(8 * pixels as usize).enumerate() {
                    let mut at = vec![i64::from(channel) + i as i64 % 8];
                    at.extend(tap(first + i as i64 / 8));
                    at.iter_mut().skip(1).zip(&offsets).for_each(|(at, offset)| *at += i64::from(*offset));
                    let wanted = tensor.offset(&at, size).map_or(&[0; 4][..], |offset| &tensor.bytes[offset..][..size]);
                    assert_eq!(found, wanted, "{map:?} {coordinates:?} {offsets:?} element {i}");
                }
            }
        }
    }
}

#[test]
fn f32_becomes_tf32_and_loses_subnormal_numbers_where_the_type_says_so() {
    let inputs = [1.0f32, 1.0 + 3.0 / 4096.0, f32::MIN_POSITIVE / 4.0, -f32::MIN_POSITIVE / 4.0];
    let run = |element: Element| {
        let mut bytes = inputs.map(f32::to_le_bytes).as_flattened().to_vec();
        element.convert(&mut bytes);
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>()
    };
    assert_eq!(run(Element::F32), inputs);
    assert_eq!(run(Element::F32Ftz), [inputs[0], inputs[1], 0.0, -0.0]);
    assert_eq!(run(Element::Tf32), [1.0, 1.0 + 4.0 / 4096.0, inputs[2], inputs[3]]);
    assert!(run(Element::Tf32Ftz)[3].is_sign_negative());
}

#[test]
fn reductions_combine_elements_of_every_type() {
    let reduce = |operation: &str, element, old: u64, new: u64| {
        Reduction::new(Operation::parse(operation).unwrap(), element).map(|reduction| reduction.apply(old, new)).ok()
    };
    let [f, d] = [|value: f32| u64::from(value.to_bits()), |value: f32| f64::from(value).to_bits()];
    let minus_two = u64::from(-2i32 as u32);
    for (operation, element, old, new, wanted) in [
        ("add", Element::U32, 0xffff_ffff, 3, Some(2)),
        ("add", Element::S32, minus_two, 1, Some(0xffff_ffff)),
        ("add", Element::U64, u64::MAX, 3, Some(2)),
        ("add", Element::F32, f(1.5), f(2.0), Some(f(3.5))),
        ("add", Element::F32, 1, 1, Some(0)),
        ("add", Element::F64, d(1.5), d(2.0), Some(d(3.5))),
        ("add", Element::F16, 0x3c00, 0x4000, Some(0x4200)),
        ("add", Element::Bf16, 0x3f80, 0x4000, Some(0x4040)),
        ("min", Element::S32, minus_two, 1, Some(minus_two)),
        ("min", Element::U32, minus_two, 1, Some(1)),
        ("max", Element::S64, u64::MAX, 1, Some(1)),
        ("max", Element::F16, 0xbc00, 0x3800, Some(0x3800)),
        ("min", Element::Bf16, 0xbf80, 0x3f00, Some(0xbf80)),
        ("min", Element::F32, f(1.0), f(2.0), None),
        ("inc", Element::U32, 7, 7, Some(0)),
        ("inc", Element::U32, 6, 7, Some(7)),
        ("dec", Element::U32, 0, 7, Some(7)),
        ("dec", Element::U32, 9, 7, Some(7)),
        ("dec", Element::U32, 5, 7, Some(4)),
        ("inc", Element::U64, 6, 7, None),
        ("and", Element::U64, 0b1100, 0b1010, Some(0b1000)),
        ("or", Element::U32, 0b1100, 0b1010, Some(0b1110)),
        ("xor", Element::U32, 0b1100, 0b1010, Some(0b0110)),
        ("xor", Element::F32, 0, 0, None),
    ] {
        assert_eq!(reduce(operation, element, old, new), wanted, "{operation} of {element:?}");
    }
}

#[test]
fn a_map_is_refused_as_the_driver_refuses_it() {
    let mut numbers = Numbers(9);
    let tensor = Tensor::new(&[64, 8], 2, &mut numbers);
    let good = tensor.request(9, &[1, 1], 3, 0);
    assert!(good.tiled(&[64, 8]).is_ok());
    for (refused, what) in [
        (good.tiled(&[128, 8]), "boxDim[0] is 256 bytes, more than the swizzle's 128"),
        (good.tiled(&[4, 8]), "boxDim[0] is 8 bytes, not a multiple of 16"),
        (good.tiled(&[64, 257]), "boxDim[1] is 257, not from 1 to 256"),
        (good.tiled(&[64]), "boxDim has 1 entries of 2"),
        (Request { address: BASE + 8, ..good }.tiled(&[64, 8]), "globalAddress 0x100008 is not a multiple of 16"),
        (
            Request { strides: &[136], ..good }.tiled(&[64, 8]),
            "globalStrides[0] is 136, not a multiple of 16 below 2^40",
        ),
        (Request { steps: &[1, 9], ..good }.tiled(&[64, 8]), "elementStrides[1] is 9, not from 1 to 8"),
        (Request { sizes: &[64, 0], ..good }.tiled(&[64, 8]), "globalDim[1] is 0, not from 1 to 2^32"),
        (Request { data_type: 2, fill: 1, ..good }.tiled(&[32, 8]), "a fill of NaN needs a floating-point type"),
        (Request { swizzle: 4, ..good }.tiled(&[64, 8]), "swizzle 4 is not known here"),
        (good.im2col(&[], &[], 64, 8), "tensorRank is 2, not from 3 to 5 as im2col needs it"),
    ] {
        assert_eq!(refused.unwrap_err().0, what);
    }
    let mut bytes = good.tiled(&[64, 8]).unwrap().encode();
    bytes[9] ^= 1;
    assert!(TensorMap::decode(&bytes).is_err());
    assert!(TensorMap::decode(&[0; 128]).is_err());
    let map = good.tiled(&[32, 8]).unwrap();
    assert!(map.runs(&[0, 0], &[], 0).is_err(), "rows of 64 bytes in a swizzle of 128");
    assert!(good.tiled(&[64, 8]).unwrap().runs(&[0, 0], &[], 64).is_err(), "an offset of 64 bytes");
}

#[test]
fn instructions_are_read_from_their_words() {
    let parse = |words: &str| BulkTensor::parse(&words.split('.').collect::<Vec<_>>());
    let plain = BulkTensor {
        dimensions: 2,
        direction: Direction::Load,
        mode: Offsets::Tile,
        multicast: false,
        cache_hint: false,
    };
    for (words, wanted) in [
        ("async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes", plain),
        (
            "async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint",
            BulkTensor { dimensions: 4, mode: Offsets::Im2col, multicast: true, cache_hint: true, ..plain },
        ),
        (
            "async.bulk.tensor.1d.global.shared::cta.tile.bulk_group",
            BulkTensor { dimensions: 1, direction: Direction::Store, ..plain },
        ),
        (
            "reduce.async.bulk.tensor.3d.global.shared::cta.add.im2col_no_offs.bulk_group",
            BulkTensor {
                dimensions: 3,
                direction: Direction::Reduce(Operation::Add),
                mode: Offsets::Im2colNoOffsets,
                ..plain
            },
        ),
        (
            "async.bulk.prefetch.tensor.5d.L2.global.tile",
            BulkTensor { dimensions: 5, direction: Direction::Prefetch, ..plain },
        ),
    ] {
        assert_eq!(parse(words), Ok(wanted), "{words}");
    }
    for words in [
        "async.bulk.tensor.6d.shared::cluster.global.mbarrier::complete_tx::bytes",
        "async.bulk.tensor.2d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes",
        "async.bulk.tensor.2d.shared::cluster.global.bulk_group",
        "async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes.multicast::cluster",
        "async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes",
        "reduce.async.bulk.tensor.2d.global.shared::cta.bulk_group",
    ] {
        assert!(parse(words).is_err(), "{words}");
    }
    assert!(check_bulk(16, 32, 48).is_ok() && check_bulk(16, 32, 40).is_err());
}
