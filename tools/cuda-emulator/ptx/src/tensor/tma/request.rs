//! What `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col` are asked for, and what they refuse.

use super::super::{Refused, Swizzle};
use super::RANK;
use super::map::{Element, Fill, Mode, TensorMap};

/// The arguments of `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col`, numbers as in `cuda.h`.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// `CUtensorMapDataType`
    pub data_type: u32,
    /// Address of the tensor in global memory.
    pub address: u64,
    /// Elements in each dimension, of which there are as many.
    pub sizes: &'a [u64],
    /// Bytes from one element to the next in each dimension but the first.
    pub strides: &'a [u64],
    /// `elementStrides`
    pub steps: &'a [u32],
    /// `CUtensorMapInterleave`
    pub interleave: u32,
    /// `CUtensorMapSwizzle`
    pub swizzle: u32,
    /// `CUtensorMapL2promotion`
    pub promotion: u32,
    /// `CUtensorMapFloatOOBfill`
    pub fill: u32,
}

impl Request<'_> {
    /// `cuTensorMapEncodeTiled` with this `boxDim`.
    pub fn tiled(&self, size: &[u32]) -> Result<TensorMap, Refused> {
        let rank = self.sizes.len();
        demand(size.len() == rank, || format!("boxDim has {} entries of {rank}", size.len()))?;
        for (i, count) in size.iter().enumerate() {
            demand((1..=256).contains(count), || format!("boxDim[{i}] is {count}, not from 1 to 256"))?;
        }
        let map = self.check(Mode::Tiled { size: padded(size, 1) })?;
        self.check_row(&map, "boxDim[0]", size[0])?;
        Ok(map)
    }

    /// `cuTensorMapEncodeIm2col` with these corners, `channelsPerPixel` and `pixelsPerColumn`.
    pub fn im2col(&self, lower: &[i32], upper: &[i32], channels: u32, pixels: u32) -> Result<TensorMap, Refused> {
        let rank = self.sizes.len();
        demand((3..=5).contains(&rank), || format!("tensorRank is {rank}, not from 3 to 5 as im2col needs it"))?;
        let bits = [15, 7, 4][rank - 3];
        for (name, corner) in [("pixelBoxLowerCorner", lower), ("pixelBoxUpperCorner", upper)] {
            demand(corner.len() == rank - 2, || format!("{name} has {} entries, not {}", corner.len(), rank - 2))?;
            let range = -(1 << bits)..1 << bits;
            for (i, at) in corner.iter().enumerate() {
                demand(range.contains(at), || format!("{name}[{i}] is {at}, not within {range:?}"))?;
            }
        }
        demand((1..=256).contains(&channels), || format!("channelsPerPixel is {channels}, not from 1 to 256"))?;
        demand((1..=1024).contains(&pixels), || format!("pixelsPerColumn is {pixels}, not from 1 to 1024"))?;
        let corner = |from: &[i32]| std::array::from_fn(|i| from.get(i).copied().unwrap_or(0));
        let map = self.check(Mode::Im2col { lower: corner(lower), upper: corner(upper), channels, pixels })?;
        self.check_row(&map, "channelsPerPixel", channels)?;
        Ok(map)
    }

    fn check(&self, mode: Mode) -> Result<TensorMap, Refused> {
        let rank = self.sizes.len();
        let element = Element::ALL.get(self.data_type as usize).copied();
        let element = element.ok_or_else(|| Refused(format!("tensorDataType {} is not known here", self.data_type)))?;
        let least = if self.interleave == 0 { 1 } else { 3 };
        demand((least..=RANK).contains(&rank), || format!("tensorRank is {rank}, not from {least} to {RANK}"))?;
        demand(self.interleave <= 2, || format!("interleave {} is not known here", self.interleave))?;
        let unit = if self.interleave == 2 { 32 } else { 16 };
        let address = self.address;
        demand(address.is_multiple_of(unit), || format!("globalAddress {address:#x} is not a multiple of {unit}"))?;
        for (i, size) in self.sizes.iter().enumerate() {
            demand((1..=1 << 32).contains(size), || format!("globalDim[{i}] is {size}, not from 1 to 2^32"))?;
        }
        demand(self.strides.len() + 1 == rank, || format!("globalStrides has {} entries", self.strides.len()))?;
        for (i, stride) in self.strides.iter().enumerate() {
            let fits = stride.is_multiple_of(unit) && *stride < 1 << 40;
            demand(fits, || format!("globalStrides[{i}] is {stride}, not a multiple of {unit} below 2^40"))?;
        }
        demand(self.steps.len() == rank, || format!("elementStrides has {} entries of {rank}", self.steps.len()))?;
        for (i, step) in self.steps.iter().enumerate() {
            demand((1..=8).contains(step), || format!("elementStrides[{i}] is {step}, not from 1 to 8"))?;
        }
        let swizzle = match self.swizzle {
            0 => Swizzle::None,
            1 => Swizzle::B32,
            2 => Swizzle::B64,
            3 => Swizzle::B128,
            other => return Err(Refused(format!("swizzle {other} is not known here"))),
        };
        let matches = self.interleave != 2 || swizzle == Swizzle::B32;
        demand(matches, || "interleave by 32 bytes needs a swizzle of 32 bytes".to_owned())?;
        demand(self.promotion <= 3, || format!("l2Promotion {} is not known here", self.promotion))?;
        demand(self.fill <= 1, || format!("oobFill {} is not known here", self.fill))?;
        demand(self.fill == 0 || element.is_float(), || "a fill of NaN needs a floating-point type".to_owned())?;
        let mut strides = [0; RANK];
        strides[0] = element.size() as u64;
        strides[1..rank].copy_from_slice(self.strides);
        Ok(TensorMap {
            element,
            rank,
            address,
            sizes: padded(self.sizes, 1),
            strides,
            steps: padded(self.steps, 1),
            mode,
            interleave: self.interleave * 16,
            swizzle,
            promotion: self.promotion,
            fill: if self.fill == 0 { Fill::Zero } else { Fill::Nan },
        })
    }

    fn check_row(&self, map: &TensorMap, name: &str, count: u32) -> Result<(), Refused> {
        if map.interleave != 0 {
            return Ok(());
        }
        let bytes = count as usize * map.element.size();
        demand(bytes.is_multiple_of(16), || format!("{name} is {bytes} bytes, not a multiple of 16"))?;
        let width = map.swizzle.width();
        let fits = map.swizzle == Swizzle::None || bytes <= width;
        demand(fits, || format!("{name} is {bytes} bytes, more than the swizzle's {width}"))
    }
}

fn padded<T: Copy>(from: &[T], with: T) -> [T; RANK] {
    std::array::from_fn(|i| from.get(i).copied().unwrap_or(with))
}

fn demand(holds: bool, message: impl FnOnce() -> String) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(Refused(message())) }
}
