//! The layouts by which cubek finds a tile's matrices; see the picture in [`multi_level`](super).

use super::super::tiles::ENTRY;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::{Coords1d, Layout, LayoutExpand};
use cubek::matmul::multi_level::args::BatchedCoords;

/// Maps a batch to a number of its tile in the table (the first row or the expert), times `stride`.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Offset {
    tiles: Box<[i32]>,
    stride: usize,
    #[cube(comptime)]
    entry: usize,
}

#[cube]
impl Layout for Offset {
    type Coordinates = Coords1d;
    type SourceCoordinates = Coords1d;

    fn to_source_pos(&self, tile: Self::Coordinates) -> Self::SourceCoordinates {
        self.tiles[tile * ENTRY + self.entry] as usize * self.stride
    }

    fn shape(&self) -> Self::Coordinates {
        usize::MAX
    }

    fn is_in_bounds(&self, _tile: Self::Coordinates) -> bool {
        true.runtime()
    }

    fn to_source_pos_checked(&self, tile: Self::Coordinates) -> (Self::SourceCoordinates, bool) {
        (self.to_source_pos(tile), self.is_in_bounds(tile))
    }
}

/// Maps (start of the tile, row, column) to an index of `[.., width]`.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Lhs {
    /// Number of elements of the tensor.
    len: usize,
    width: usize,
    #[cube(comptime)]
    rows: u32,
    #[cube(comptime)]
    vector_size: usize,
}

#[cube]
impl Layout for Lhs {
    type Coordinates = BatchedCoords;
    type SourceCoordinates = Coords1d;

    fn to_source_pos(&self, at: Self::Coordinates) -> Self::SourceCoordinates {
        (at.0 + at.1 as usize * self.width + at.2 as usize) / self.vector_size
    }

    fn shape(&self) -> Self::Coordinates {
        (u32::MAX.runtime() as usize, self.rows.runtime(), self.width as u32)
    }

    fn is_in_bounds(&self, at: Self::Coordinates) -> bool {
        at.0 + at.1 as usize * self.width < self.len && (at.2 as usize) < self.width
    }

    fn to_source_pos_checked(&self, at: Self::Coordinates) -> (Self::SourceCoordinates, bool) {
        (self.to_source_pos(at), self.is_in_bounds(at))
    }
}

/// Maps (tile, row, column) to an index of `[.., width]`.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Out {
    tiles: Box<[i32]>,
    width: usize,
    #[cube(comptime)]
    rows: u32,
    #[cube(comptime)]
    vector_size: usize,
}

#[cube]
impl Layout for Out {
    type Coordinates = BatchedCoords;
    type SourceCoordinates = Coords1d;

    fn to_source_pos(&self, at: Self::Coordinates) -> Self::SourceCoordinates {
        let row = self.tiles[at.0 * ENTRY + 1] as usize + at.1 as usize;
        (row * self.width + at.2 as usize) / self.vector_size
    }

    fn shape(&self) -> Self::Coordinates {
        (u32::MAX.runtime() as usize, self.rows.runtime(), self.width as u32)
    }

    fn is_in_bounds(&self, at: Self::Coordinates) -> bool {
        let row = self.tiles[at.0 * ENTRY + 1] as u32 + at.1;
        at.1 < self.rows && row < self.tiles[at.0 * ENTRY + 2] as u32 && (at.2 as usize) < self.width
    }

    fn to_source_pos_checked(&self, at: Self::Coordinates) -> (Self::SourceCoordinates, bool) {
        (self.to_source_pos(at), self.is_in_bounds(at))
    }
}
