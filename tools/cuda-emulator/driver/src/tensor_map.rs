//! Tensor maps: descriptions of tensors in global memory that the copy engine follows.

use crate::abi::CUdeviceptr;
use crate::call::{api, refuse, values};
use crate::errors::{Answer, Code};
use crate::spec::spec;
use ptx::tensor::{Element, Fill, Mode, Swizzle, TensorMap};
use std::ffi::{c_int, c_uint, c_void};

/// Elements in the order of `CUtensorMapDataType`.
const ELEMENTS: [Element; 13] = [
    Element::U8,
    Element::U16,
    Element::U32,
    Element::S32,
    Element::U64,
    Element::S64,
    Element::F16,
    Element::F32,
    Element::F64,
    Element::Bf16,
    Element::F32Ftz,
    Element::Tf32,
    Element::Tf32Ftz,
];
const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

/// What both functions are given.
struct Given {
    to: *mut c_void,
    element: c_uint,
    rank: c_uint,
    address: CUdeviceptr,
    sizes: *const u64,
    strides: *const u64,
    steps: *const u32,
    /// Interleave, swizzle, promotion to L2, fill.
    modes: [c_uint; 4],
}

fn no<T>(why: String) -> Answer<T> {
    refuse(Code::INVALID_VALUE, &format!("tensor map: {why}"))
}

/// Checks what the API documents, and writes the map; `mode` gets the rank and the element's size.
unsafe fn encode(given: &Given, mode: impl FnOnce(usize, usize) -> Answer<Mode>) -> Answer {
    if spec().capability.0 < 9 {
        return no("sm_80 has none: KILN_EMULATED_ARCH=sm_90a makes the card an H100".to_owned());
    }
    if given.to.is_null() || !(given.to as usize).is_multiple_of(64) {
        return no(format!("its place {:?} is not a multiple of 64", given.to));
    }
    let (Some(&element), Some(&swizzle), [interleave @ 0..=2, _, promotion @ 0..=3, fill @ 0..=1]) =
        (ELEMENTS.get(given.element as usize), SWIZZLES.get(given.modes[1] as usize), given.modes)
    else {
        return no(format!("type {} or modes {:?} are not supported", given.element, given.modes));
    };
    let rank = given.rank as usize;
    if !(1..=5).contains(&rank) || (interleave != 0 && rank < 3) {
        return no(format!("rank {rank}"));
    }
    // SAFETY: the client gives as many as the rank says.
    let (sizes, strides, steps) =
        unsafe { (values(given.sizes, rank)?, values(given.strides, rank - 1)?, values(given.steps, rank)?) };
    let multiple = if interleave == 2 { 32 } else { 16 };
    if !given.address.is_multiple_of(multiple) {
        return no(format!("its address {:#x} is not a multiple of {multiple}", given.address));
    }
    if sizes.iter().any(|size| !(1..=1 << 32).contains(size)) {
        return no(format!("sizes {sizes:?} are not all from 1 to 2^32"));
    }
    if strides.iter().any(|stride| !stride.is_multiple_of(multiple) || *stride >= 1 << 40) {
        return no(format!("strides of {strides:?} bytes are not all multiples of {multiple} below 2^40"));
    }
    if steps.iter().any(|step| !(1..=8).contains(step)) {
        return no(format!("element strides {steps:?} are not all from 1 to 8"));
    }
    if fill == 1 && !element.is_float() {
        return no("a fill of NaN for integers".to_owned());
    }
    let size = element.size();
    let mode = mode(rank, size)?;
    let inner = match mode {
        Mode::Tiled { size: counts } => counts[0],
        Mode::Im2col { channels, .. } => channels,
    };
    let inner = inner as usize * size;
    if interleave == 0 && !inner.is_multiple_of(16) {
        return no(format!("the inner dimension of {inner} bytes is not a multiple of 16"));
    }
    let span = [usize::MAX, 32, 64, 128][given.modes[1] as usize];
    if interleave == 0 && inner > span {
        return no(format!("the inner dimension of {inner} bytes is larger than the swizzle's {span}"));
    }
    if interleave == 2 && given.modes[1] != 1 {
        return no("an interleave of 32 bytes needs the swizzle of 32 bytes".to_owned());
    }
    let map = TensorMap {
        element,
        rank,
        address: given.address,
        sizes: std::array::from_fn(|i| sizes.get(i).copied().unwrap_or(1)),
        strides: std::array::from_fn(|i| match i {
            0 => size as u64,
            _ => strides.get(i - 1).copied().unwrap_or(0),
        }),
        steps: std::array::from_fn(|i| steps.get(i).copied().unwrap_or(1)),
        mode,
        interleave: interleave * 16,
        swizzle,
        promotion,
        fill: if fill == 1 { Fill::Nan } else { Fill::Zero },
    };
    // SAFETY: the client vouches for 128 bytes.
    unsafe { given.to.cast::<[u8; 128]>().write(map.encode()) };
    Ok(())
}

#[rustfmt::skip]
api! {
    fn cuTensorMapEncodeTiled(
        to: *mut c_void, element: c_uint, rank: c_uint, address: CUdeviceptr,
        sizes: *const u64, strides: *const u64, boxes: *const u32, steps: *const u32,
        interleave: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint,
    ) {
        let modes = [interleave, swizzle, promotion, fill];
        encode(&Given { to, element, rank, address, sizes, strides, steps, modes }, |rank, _| {
            let counts = values(boxes, rank)?;
            if counts.iter().any(|count| !(1..=256).contains(count)) {
                return no(format!("a box of {counts:?} elements; each has to be from 1 to 256"));
            }
            Ok(Mode::Tiled { size: std::array::from_fn(|i| counts.get(i).copied().unwrap_or(1)) })
        })
    }
    fn cuTensorMapEncodeIm2col(
        to: *mut c_void, element: c_uint, rank: c_uint, address: CUdeviceptr,
        sizes: *const u64, strides: *const u64, lower: *const c_int, upper: *const c_int,
        channels: c_uint, pixels: c_uint, steps: *const u32,
        interleave: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint,
    ) {
        let modes = [interleave, swizzle, promotion, fill];
        encode(&Given { to, element, rank, address, sizes, strides, steps, modes }, |rank, _| {
            if rank < 3 || !(1..=256).contains(&channels) || !(1..=1024).contains(&pixels) {
                return no(format!("im2col of rank {rank}, {channels} channels and {pixels} pixels"));
            }
            let (low, high) = (values(lower, rank - 2)?, values(upper, rank - 2)?);
            let bits = [0, 0, 0, 16, 8, 5][rank];
            let fits = |corner: &i32| (-(1 << (bits - 1))..1 << (bits - 1)).contains(corner);
            if !low.iter().chain(&high).all(fits) {
                return no(format!("corners {low:?} and {high:?} do not fit {bits} bits"));
            }
            let corner = |given: &[i32]| std::array::from_fn(|i| given.get(i).copied().unwrap_or(0));
            Ok(Mode::Im2col { lower: corner(&low), upper: corner(&high), channels, pixels })
        })
    }
    fn cuTensorMapEncodeIm2colWide(
        _to: *mut c_void, _element: c_uint, _rank: c_uint, _address: CUdeviceptr,
        _sizes: *const u64, _strides: *const u64, _lower: c_int, _upper: c_int,
        _channels: c_uint, _pixels: c_uint, _steps: *const u32,
        _interleave: c_uint, _mode: c_uint, _swizzle: c_uint, _promotion: c_uint, _fill: c_uint,
    ) {
        // Cards of compute capability 10.0 have it.
        crate::call::unsupported("cuTensorMapEncodeIm2colWide")
    }
    fn cuTensorMapReplaceAddress(map: *mut c_void, address: CUdeviceptr) {
        let bytes = values(map.cast::<[u8; 128]>(), 1)?[0];
        let mut decoded = TensorMap::decode(&bytes).or_else(|refused| no(format!("{refused:?}")))?;
        if !address.is_multiple_of(16) {
            return no(format!("its address {address:#x} is not a multiple of 16"));
        }
        decoded.address = address;
        map.cast::<[u8; 128]>().write(decoded.encode());
        Ok(())
    }
}
