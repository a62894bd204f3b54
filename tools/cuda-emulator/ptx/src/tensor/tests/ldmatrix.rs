//! `ldmatrix`, `stmatrix` and `movmatrix` against single elements.

use super::*;

/// Address of row `row` of matrix `j`: rows are scattered.
fn row_address(j: usize, row: usize) -> usize {
    16 * ((8 * j + row) * 37 % 64)
}

fn addresses() -> [u64; 32] {
    std::array::from_fn(|lane| row_address(lane / 8, lane % 8) as u64)
}

fn memory() -> Bytes {
    let mut numbers = Numbers(2);
    Bytes((0..1024).map(|_| numbers.bits() as u8).collect())
}

fn element(memory: &Bytes, j: usize, row: usize, column: usize) -> u32 {
    let at = row_address(j, row) + 2 * column;
    u32::from(u16::from_le_bytes([memory.0[at], memory.0[at + 1]]))
}

fn split(words: &str) -> Vec<&str> {
    words.split('.').collect()
}

#[test]
fn a_lane_loads_two_elements_of_a_row_or_of_a_column() {
    let mut memory = memory();
    for (count, transpose) in [(1, ""), (2, ""), (4, ""), (1, "trans."), (2, "trans."), (4, "trans.")] {
        let load = Ldmatrix::parse(&split(&format!("sync.aligned.m8n8.x{count}.{transpose}shared.b16"))).unwrap();
        // Only the first lanes' addresses count.
        let addresses = std::array::from_fn(|lane| if lane < 8 * count { addresses()[lane] } else { 1 });
        let mut words = [[0u32; 32]; 4];
        load.execute(&addresses, &mut memory, &mut words[..count]).unwrap();
        for (j, words) in words.iter().enumerate().take(count) {
            for (lane, word) in words.iter().enumerate() {
                for i in 0..2 {
                    let (row, column) = (lane / 4, lane % 4 * 2 + i);
                    let (row, column) = if transpose.is_empty() { (row, column) } else { (column, row) };
                    assert_eq!(word >> (16 * i) & 0xffff, element(&memory, j, row, column));
                }
            }
        }
    }
}

#[test]
fn what_is_stored_is_what_was_loaded() {
    for transpose in ["", "trans."] {
        let words = format!("sync.aligned.m8n8.x4.{transpose}shared.b16");
        let (mut from, mut to, mut fragment) = (memory(), Bytes(vec![0; 1024]), [[0u32; 32]; 4]);
        Ldmatrix::parse(&split(&words)).unwrap().execute(&addresses(), &mut from, &mut fragment).unwrap();
        Stmatrix::parse(&split(&words)).unwrap().execute(&addresses(), &fragment, &mut to).unwrap();
        for (j, row) in (0..4).flat_map(|j| (0..8).map(move |row| (j, row))) {
            let at = row_address(j, row);
            assert_eq!(from.0[at..at + 16], to.0[at..at + 16]);
        }
    }
}

#[test]
fn moving_a_matrix_transposes_it() {
    let mut numbers = Numbers(3);
    let a: Words = std::array::from_fn(|_| numbers.bits() as u32);
    let at = |words: &Words, row: usize, column: usize| words[row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
    let moved = movmatrix(&a);
    for (row, column) in (0..8).flat_map(|row| (0..8).map(move |column| (row, column))) {
        assert_eq!(at(&moved, column, row), at(&a, row, column));
    }
}

#[test]
fn rows_are_aligned_to_16_bytes_and_other_shapes_are_refused() {
    let load = Ldmatrix::parse(&split("sync.aligned.m8n8.x1.shared.b16")).unwrap();
    assert!(load.execute(&[8; 32], &mut memory(), &mut [[0; 32]]).is_err());
    for words in ["sync.aligned.m16n16.x1.trans.shared.b8", "sync.aligned.m8n16.x2.shared.b8x16.b4x16_p64"] {
        assert!(Ldmatrix::parse(&split(words)).is_err());
    }
}
