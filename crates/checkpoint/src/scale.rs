//! Tests of what opening a checkpoint costs a rank if the model is large and there are many ranks. They write only the
//! index and its tables; the ranks' files are missing or sparse.

use crate::blocks::{self, Digest, hex, root};
use crate::files::BLOCKS;
use crate::table::{Builder, NONE, PieceEntry, TABLE};
use crate::{Checkpoint, FileEntry, Index, Kind, Region};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and their peak.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn add(bytes: isize) {
    let (held, most) = HELD.get();
    HELD.set((held + bytes, most.max(held + bytes)));
}

// SAFETY: every call is forwarded to the system's allocator unchanged. The counter is a thread-local without a
// destructor and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The peak of bytes that `work` held.
fn most_held<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get().0;
    HELD.set((before, before));
    let result = work();
    (result, (HELD.get().1 - before) as usize)
}

const WIDTH: usize = 25_600;
const LAYERS: usize = 128;

/// A parameter as a tensor-parallel rank holds it: name, shape, and the rank's box.
type Cut = (String, Vec<usize>, Region);

/// A tensor-parallel rank's share of the large matrices of one GPT-2 layer. All layers together have 1.007e12
/// parameters.
fn layer(layer: usize, rank: usize, tp: usize) -> Vec<Cut> {
    let (d, part) = (WIDTH, WIDTH / tp);
    let name = |of: &str| format!("blocks.{layer}.{of}.weight");
    let at = |view: Option<Vec<usize>>, start: Vec<usize>, size: Vec<usize>| Region { view, start, size };
    vec![
        // Query, key and value are cut in the same way.
        (name("attn.c_attn"), vec![d, 3 * d], at(Some(vec![d, 3, d]), vec![0, 0, rank * part], vec![d, 3, part])),
        (name("attn.c_proj"), vec![d, d], at(None, vec![rank * part, 0], vec![part, d])),
        (name("mlp.c_fc"), vec![d, 4 * d], at(None, vec![0, rank * 4 * part], vec![d, 4 * part])),
        (name("mlp.c_proj"), vec![4 * d, d], at(None, vec![rank * 4 * part, 0], vec![4 * part, d])),
    ]
}

/// What rank `rank` of `ranks` holds under `full_shard`, with `tp` ranks sharing each matrix: a range of each box.
fn parts(rank: usize, ranks: usize, tp: usize) -> impl Iterator<Item = (Cut, Range<usize>)> {
    let (of_tp, shard, shards) = (rank % tp, rank / tp, ranks / tp);
    (0..LAYERS).flat_map(move |number| {
        let cuts = layer(number, of_tp, tp);
        let all: usize = cuts.iter().map(|(.., region)| region.len()).sum();
        let mine = all * shard / shards..all * (shard + 1) / shards;
        let mut first = 0;
        let part = move |cut: Cut| {
            let (begin, len) = (first, cut.2.len());
            first += len;
            let range = [mine.start, mine.end].map(|at| at.clamp(begin, begin + len) - begin);
            (range[0] < range[1]).then_some((cut, range[0]..range[1]))
        };
        cuts.into_iter().filter_map(part)
    })
}

fn write_index(folder: &Path, ranks: usize, tp: usize) {
    let (mut table, mut files) = (Builder::default(), vec![]);
    for rank in 0..ranks {
        let mut at = 4096;
        for ((name, shape, region), range) in parts(rank, ranks, tp) {
            let bytes = 4 * range.len() as u64;
            let (region, at_kinds) = (Some(region), [at, at + bytes, at + 2 * bytes]);
            let piece = PieceEntry { name, shape, region, offset: range.start, len: range.len(), at: at_kinds };
            table.add(rank, piece).unwrap();
            at += 3 * bytes;
        }
        files.push(FileEntry { name: format!("rank-{rank}.safetensors"), bytes: at, blake3: hex(&[7; 32]) });
    }
    let (parameters, table) = table.finish().unwrap();
    let of_table = blocks::of(&table);
    let before: u64 = files.iter().map(|file| blocks::count(file.bytes)).sum();
    let list = File::create(folder.join(BLOCKS)).unwrap();
    list.write_all_at(of_table.as_flattened(), before * size_of::<Digest>() as u64).unwrap(); // the rest is a hole
    fs::write(folder.join(TABLE), &table).unwrap();
    let table = FileEntry { name: TABLE.into(), bytes: table.len() as u64, blake3: hex(&root(&of_table)) };
    let optimizer_steps = 1;
    let index = Index { parameters, files, table, world_size: ranks, optimizer_steps, ..Index::default() };
    fs::write(folder.join("index.json"), Index { format: Index::FORMAT, ..index }.to_json()).unwrap();
}

#[test]
fn a_trillion_parameters_of_1024_ranks_are_found_within_100_mb_a_rank_in_any_other_layout() {
    let folder = tempfile::tempdir().unwrap();
    write_index(folder.path(), 1024, 8);
    for (rank, ranks, tp) in [(0, 1024, 8), (777, 1024, 8), (300, 512, 4), (77, 96, 1)] {
        let started = Instant::now();
        let (opened, held) = most_held(|| {
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            for ((name, shape, region), range) in parts(rank, ranks, tp) {
                let parameter = checkpoint.parameter(&name).unwrap();
                // The first and the last run of the box.
                let end = range.end;
                for part in [range.start..(range.start + 1).min(end), end - 1..end] {
                    let run = region.runs(&shape, part).next().unwrap();
                    assert_eq!(Kind::ALL.map(|kind| parameter.places(kind, run.clone()).count()), [1; 3], "{name}");
                }
            }
            started.elapsed()
        });
        eprintln!("rank {rank} of {ranks} with tp {tp}: {opened:.2?}, {:.1} MB at most", held as f64 / 1e6);
        assert!(held < 100_000_000, "{held} bytes");
    }
}

#[test]
fn an_index_of_few_bytes_takes_few_however_large_its_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let shape = vec![1 << 40, 2];
    let mut table = Builder::default();
    for column in 0..2 {
        let region = Some(Region { view: None, start: vec![0, column], size: vec![1 << 40, 1] });
        let at = [0, NONE, NONE];
        table
            .add(0, PieceEntry { name: "w".into(), shape: shape.clone(), region, offset: 0, len: 1 << 40, at })
            .unwrap();
    }
    let (parameters, table) = table.finish().unwrap();
    let of_table = blocks::of(&table);
    fs::write(folder.path().join(TABLE), &table).unwrap();
    // The file has the announced length but is a hole.
    let files = vec![FileEntry { name: "rank-0.safetensors".into(), bytes: 4 << 40, blake3: hex(&[7; 32]) }];
    File::create(folder.path().join(&files[0].name)).unwrap().set_len(4 << 40).unwrap_or_default();
    let list = File::create(folder.path().join(BLOCKS)).unwrap();
    list.write_all_at(of_table.as_flattened(), blocks::count(4 << 40) * 32).unwrap();
    let table = FileEntry::new(TABLE, table.len() as u64, &of_table);
    let index = Index { format: Index::FORMAT, parameters, files, table, world_size: 1, ..Index::default() };
    fs::write(folder.path().join("index.json"), index.to_json()).unwrap();
    let (places, held) = most_held(|| {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let parameter = checkpoint.parameter("w").unwrap();
        parameter.places(Kind::Param, 0..2 << 40).take(3).collect::<Vec<_>>()
    });
    assert_eq!(places, [(0, 0..4), (0, 0..4), (0, 4..8)], "element after element, as they are asked for");
    assert!(held < 1_000_000, "{held} bytes");
}
