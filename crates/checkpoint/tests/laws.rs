//! What is written by any ranks is read by any, or refused.

use checkpoint::{Checkpoint, CheckpointError, Folder, Index, Kind, Piece, Region, Values, write_rank};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

const PARAMETERS: &[(&str, &[usize])] = &[("a", &[7, 11]), ("b", &[5]), ("c", &[2, 3, 4])];

fn len(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Element `i` of a parameter.
fn value(name: &str, kind: Kind, i: usize) -> f32 {
    (i * 3 + kind as usize) as f32 + f32::from(name.as_bytes()[0]) / 256.0
}

/// Writes the parameters, each cut at `cuts` (in thousandths of its length) for one rank more than there are cuts.
fn write(run: &Path, step: u64, cuts: &[usize]) -> Result<PathBuf, CheckpointError> {
    let folder = Folder::of_run(run);
    let mut cuts = cuts.to_vec();
    cuts.sort();
    for rank in 0..=cuts.len() {
        let mut pieces: Vec<(Piece, Values)> = vec![];
        for (name, shape) in PARAMETERS {
            let cut = |i: usize| cuts.get(i).map_or(len(shape), |cut| len(shape) * cut / 1000);
            let (offset, end) = (if rank == 0 { 0 } else { cut(rank - 1) }, cut(rank));
            if offset < end {
                let len = end - offset;
                let piece = Piece {
                    name: name.to_string(),
                    shape: shape.to_vec(),
                    region: None,
                    offset,
                    len,
                    has_moments: true,
                };
                pieces.push((piece, Box::new(move |kind| (offset..end).map(|i| value(name, kind, i)).collect())));
            }
        }
        write_rank(&folder.partial(step), rank, pieces)?;
    }
    let index = Index { step, world_size: cuts.len() + 1, optimizer_steps: step, ..Index::default() };
    folder.commit(index, &[("config.yaml".into(), b"model: {}\n".to_vec())])
}

/// Opens, verifies and reads everything.
fn read_all(path: &Path) -> Result<(), CheckpointError> {
    let checkpoint = Checkpoint::open(path)?;
    checkpoint.verify(0, 1)?;
    for parameter in &checkpoint.index().parameters {
        for kind in Kind::ALL {
            checkpoint.read(&parameter.name, kind, 0..parameter.len().unwrap_or_default())?;
        }
    }
    Ok(())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_range_is_read_whoever_wrote_it(
        cuts in prop::collection::vec(0usize..1000, 0..6), of in 0..PARAMETERS.len(), from in 0usize..1000, to in 0usize..1000,
    ) {
        let run = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(&write(run.path(), 3, &cuts).unwrap()).unwrap();
        checkpoint.verify(0, 1).unwrap();
        let (name, shape) = PARAMETERS[of];
        let [from, to] = [from.min(to), from.max(to)].map(|at| len(shape) * at / 1000);
        for kind in Kind::ALL {
            let expected: Vec<f32> = (from..to).map(|i| value(name, kind, i)).collect();
            prop_assert_eq!(checkpoint.read(name, kind, from..to).unwrap(), expected);
        }
        prop_assert!(checkpoint.read(name, Kind::Param, 0..len(shape) + 1).is_err());
    }

    #[test]
    fn a_file_of_which_any_byte_is_changed_or_missing_is_refused(
        file in 0usize..4, at in 0usize..1_000_000, change in 1u8.., cut: bool,
    ) {
        let run = tempfile::tempdir().unwrap();
        let path = write(run.path(), 3, &[500]).unwrap();
        let file = &files(&path)[file];
        let mut bytes = fs::read(file).unwrap();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] ^= change }
        fs::write(file, bytes).unwrap();
        let error = read_all(&path).expect_err("it is not what was written").to_string();
        prop_assert!(error.contains(path.to_str().unwrap()), "{}", error);
    }

    #[test]
    fn an_index_of_any_bytes_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let run = tempfile::tempdir().unwrap();
        let path = write(run.path(), 3, &[]).unwrap();
        fs::write(path.join("index.json"), bytes).unwrap();
        prop_assert!(read_all(&path).is_err());
    }
}

#[test]
fn what_is_not_committed_does_not_count_and_is_cleaned_away() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    write(run.path(), 3, &[]).unwrap();
    write_rank(&folder.partial(6), 0, vec![]).unwrap();
    assert_eq!(folder.latest().unwrap(), Some(folder.step(3)));
    folder.clean().unwrap();
    assert_eq!(files(&run.path().join("checkpoints")), [folder.step(3)]);
}

#[test]
fn a_commit_without_all_ranks_or_with_a_gap_is_refused() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    let piece = Piece { name: "a".into(), shape: vec![4], region: None, offset: 0, len: 3, has_moments: false };
    write_rank(&folder.partial(1), 0, vec![(piece, Box::new(|_| vec![0.0; 3]))]).unwrap();
    let error =
        |world_size| folder.commit(Index { step: 1, world_size, ..Index::default() }, &[]).unwrap_err().to_string();
    assert!(error(2).contains("rank-1.json"), "{}", error(2));
    assert!(error(1).contains("the pieces of parameter a are not the whole of it"), "{}", error(1));
    assert_eq!(folder.latest().unwrap(), None);
}

#[test]
fn the_newest_are_kept_and_those_that_are_named() {
    let run = tempfile::tempdir().unwrap();
    (1..=12).for_each(|step| drop(write(run.path(), step * 5, &[]).unwrap()));
    let folder = Folder::of_run(run.path());
    let steps = || folder.list().unwrap().into_iter().map(|(step, _)| step).collect::<Vec<u64>>();
    folder.prune(2, &[25, 10]).unwrap();
    assert_eq!(steps(), [10, 25, 55, 60]);
    folder.prune(2, &[]).unwrap();
    assert_eq!(steps(), [55, 60]);
    assert_eq!(files(&run.path().join("checkpoints")).len(), 2);
}

#[test]
fn checkpoints_after_the_one_gone_back_to_no_longer_count() {
    let run = tempfile::tempdir().unwrap();
    [3, 6, 9].into_iter().for_each(|step| drop(write(run.path(), step, &[]).unwrap()));
    let folder = Folder::of_run(run.path());
    let aside = folder.set_aside(3).unwrap();
    assert_eq!(folder.latest().unwrap(), Some(folder.step(3)));
    assert_eq!(aside.len(), 2);
    aside.iter().for_each(|path| read_all(path).unwrap());
    // And again, with another one of step 6.
    write(run.path(), 6, &[]).unwrap();
    assert_eq!(folder.set_aside(3).unwrap(), [run.path().join("checkpoints/abandoned/step-6")]);
}

#[test]
fn a_checkpoint_whose_replacement_was_killed_comes_back() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    write(run.path(), 3, &[]).unwrap();
    write(run.path(), 3, &[]).unwrap();
    fs::rename(folder.step(3), run.path().join("checkpoints/.step-3.replaced")).unwrap();
    folder.clean().unwrap();
    read_all(&folder.step(3)).unwrap();
}

/// Linux has a file on which the disk is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_names_the_file_and_leaves_older_checkpoints() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    write(run.path(), 3, &[]).unwrap();
    fs::create_dir_all(folder.partial(6)).unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.partial(6).join("rank-0.safetensors")).unwrap();
    let error = write(run.path(), 6, &[]).unwrap_err().to_string();
    for part in ["rank-0.safetensors", "No space left", "older checkpoints are as they were"] {
        assert!(error.contains(part), "no `{part}` in: {error}");
    }
    read_all(&folder.latest().unwrap().unwrap()).unwrap();
}

/// Three ranks have columns of a matrix, which is read by rows, and by other columns.
#[test]
fn columns_of_ranks_are_read_as_any_other_part() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    let shape = vec![5, 7];
    let number = |flat: usize| flat as f32 + 0.5;
    for (rank, columns) in [0..3, 3..4, 4..7].into_iter().enumerate() {
        let region = Region { view: None, start: vec![0, columns.start], size: vec![5, columns.len()] };
        let flat: Vec<usize> = region.runs(&shape, 0..region.len()).into_iter().flatten().collect();
        let values = move |_: Kind| flat.iter().map(|i| number(*i)).collect();
        let (len, region) = (region.len(), Some(region));
        let piece = Piece { name: "w".into(), shape: shape.clone(), region, offset: 0, len, has_moments: false };
        write_rank(&folder.partial(1), rank, vec![(piece, Box::new(values))]).unwrap();
    }
    folder.commit(Index { step: 1, world_size: 3, ..Index::default() }, &[]).unwrap();
    let checkpoint = Checkpoint::open(&folder.latest().unwrap().unwrap()).unwrap();
    let expected = |flat: Vec<usize>| flat.into_iter().map(number).collect::<Vec<f32>>();
    assert_eq!(checkpoint.read("w", Kind::Param, 2..33).unwrap(), expected((2..33).collect()));
    let others = Region { view: None, start: vec![1, 2], size: vec![3, 4] };
    let flat = others.runs(&shape, 1..11).into_iter().flatten().collect();
    assert_eq!(checkpoint.read_region("w", Kind::Param, &others, 1..11).unwrap(), expected(flat));
    let beyond = Region { view: None, start: vec![1, 2], size: vec![3, 6] };
    let error = checkpoint.read_region("w", Kind::Param, &beyond, 0..1).unwrap_err().to_string();
    assert!(error.contains("parameter w of shape [5, 7] has no elements 0..1"), "{error}");
}
