//! Two ranks write a matrix and AdamW's moments of it; three ranks, then two others, read the parts that they hold.
use checkpoint::{Checkpoint, Folder, Index, Kind, Parameter, Piece, Region, Written, write_rank};
use std::error::Error;
use std::thread;

const SHAPE: [usize; 2] = [6, 4];

fn main() -> Result<(), Box<dyn Error>> {
    let run = tempfile::tempdir()?;
    let folder = Folder::of_run(run.path());
    write(&folder, 200)?;

    let checkpoint = Checkpoint::open(&folder.latest()?.ok_or("there is a checkpoint")?)?;
    assert_eq!((checkpoint.index().step, checkpoint.index().world_size), (200, 2));
    checkpoint.expect(&[Parameter { name: "w".into(), shape: SHAPE.to_vec() }])?;
    // Three ranks hold a third of the flat matrix each: 8 elements, which either writer, or both, have written.
    for rank in 0..3 {
        let range = 8 * rank..8 * (rank + 1);
        for kind in Kind::ALL {
            let expected: Vec<f32> = range.clone().map(|i| value(kind, i)).collect();
            assert_eq!(checkpoint.read("w", kind, range.clone())?, expected);
        }
    }
    // Two ranks hold half of the columns each: a box of the matrix.
    for rank in 0..2 {
        let half = Region { view: None, start: vec![0, 2 * rank], size: vec![6, 2] };
        let expected = (0..6).flat_map(|row| [0, 1].map(|column| value(Kind::Param, 4 * row + 2 * rank + column)));
        assert!(checkpoint.read_region("w", Kind::Param, &half, 0..half.len())?.into_iter().eq(expected));
    }
    Ok(())
}

/// Writes the checkpoint of a step: two ranks, here threads, have three rows of the matrix each.
fn write(folder: &Folder, step: u64) -> Result<(), Box<dyn Error>> {
    let rank_writes = |rank: usize| {
        let (offset, len) = (12 * rank, 12);
        let piece = Piece { name: "w".into(), shape: SHAPE.to_vec(), region: None, offset, len, has_moments: true };
        let values = move |kind| (offset..offset + len).map(|i| value(kind, i)).collect();
        write_rank(&folder.partial(step), rank, &[(piece, Box::new(values))], &Written::default())
    };
    thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| scope.spawn(move || rank_writes(rank)));
        ranks.into_iter().try_for_each(|rank| rank.join().expect("writing does not panic"))
    })?;
    // Until now the checkpoint does not exist. Files that the run adds are next to its parts.
    assert!(folder.latest()?.is_none());
    let index = Index { step, world_size: 2, ..Index::default() };
    folder.commit(index, &[("config.yaml".into(), b"model: ...".to_vec())])?;
    Ok(())
}

/// Element `i` of the flattened matrix or of one of its moments.
fn value(kind: Kind, i: usize) -> f32 {
    let place = Kind::ALL.iter().position(|one| *one == kind).unwrap_or_default();
    (100 * place + i) as f32
}
