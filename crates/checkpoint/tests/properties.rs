//! Properties of checkpoints: what any number of ranks writes, any number reads or refuses.

use checkpoint::{Best, Checkpoint, CheckpointError, Folder, Index, Kind, Piece, Region, Values, Written, write_rank};
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

/// Writes the parameters, each cut at `cuts` (in thousandths of its length), on one more rank than there are cuts.
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
        write_rank(&folder.partial(step), rank, &pieces, &Written::default())?;
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
        file in 0usize..6, at in 0usize..1_000_000, change in 1u8.., cut: bool,
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

/// Two ranks write files of several blocks.
#[test]
fn a_byte_that_was_changed_anywhere_in_large_files_is_found_by_the_rank_that_has_it_and_its_file_named() {
    const LEN: usize = 1_500_000;
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    for rank in 0..2 {
        let (offset, len) = (rank * LEN, LEN);
        let piece = Piece { name: "w".into(), shape: vec![2 * LEN], region: None, offset, len, has_moments: false };
        let values = move |_: Kind| (offset..offset + len).map(|i| i as f32).collect();
        write_rank(&folder.partial(1), rank, &[(piece, Box::new(values))], &Written::default()).unwrap();
    }
    let path = folder.commit(Index { step: 1, world_size: 2, ..Index::default() }, &[]).unwrap();
    let read = |range| Checkpoint::open(&path).unwrap().read("w", Kind::Param, range);
    assert_eq!(read(LEN - 9..LEN + 9).unwrap(), (LEN - 9..LEN + 9).map(|i| i as f32).collect::<Vec<_>>());
    for (file, at) in [(0, 100), (0, 3_000_000), (0, 5_999_999), (1, 2 << 20), (1, 4_194_303), (1, 10)] {
        let name = format!("rank-{file}.safetensors");
        let mut bytes = fs::read(path.join(&name)).unwrap();
        bytes[at] ^= 4;
        fs::write(path.join(&name), &bytes).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let found: Vec<String> =
            (0..5).filter_map(|rank| Some(checkpoint.verify(rank, 5).err()?.to_string())).collect();
        assert!(found.len() == 1 && found[0].contains(&format!("{name}: has digest ")), "{found:?}");
        assert!(checkpoint.verify_all().is_err());
        // Without verification, the error appears as soon as the block is read.
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let wrong = file * LEN + at.saturating_sub(header) / 4;
        assert!(read(wrong..wrong + 1).is_err(), "{name} {at}");
        bytes[at] ^= 4;
        fs::write(path.join(&name), &bytes).unwrap();
    }
}

#[test]
fn a_file_that_is_cut_off_while_it_is_read_is_an_error() {
    let run = tempfile::tempdir().unwrap();
    let path = write(run.path(), 3, &[500]).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify_all().unwrap();
    fs::OpenOptions::new().write(true).open(path.join("rank-1.safetensors")).unwrap().set_len(200).unwrap();
    let error = checkpoint.read("a", Kind::ExpAvg, 0..77).unwrap_err().to_string();
    assert!(error.contains("rank-1.safetensors: was cut off while it was read"), "{error}");
}

#[test]
fn files_are_those_that_other_programs_read() {
    let run = tempfile::tempdir().unwrap();
    let path = write(run.path(), 3, &[500]).unwrap();
    let bytes = fs::read(path.join("rank-0.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor("exp_avg.a").unwrap();
    let values: Vec<f32> = tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(values, (0..38).map(|i| value("a", Kind::ExpAvg, i)).collect::<Vec<_>>());
    assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
}

/// A checkpoint from somebody else may contain anything.
#[test]
fn pipes_endless_files_and_names_that_a_terminal_obeys_are_refused() {
    let run = tempfile::tempdir().unwrap();
    for (file, answer) in [("index.json", "is not a file"), ("rank-0.safetensors", "is not a file")] {
        let path = write(run.path(), 3, &[]).unwrap();
        fs::remove_file(path.join(file)).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path.join(file)).status().unwrap().success());
        let error = read_all(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("{file}: {answer}")), "{error}");
    }
    let path = write(run.path(), 3, &[]).unwrap();
    fs::File::create(path.join("index.json")).unwrap().set_len(1 << 36).unwrap();
    let error = read_all(&path).unwrap_err().to_string();
    assert!(error.contains("which it cannot need"), "{error}");
    let index = Index { step: 3, world_size: 1, strategy: "\u{1b}]0;owned\u{7}".into(), ..Index::default() };
    let folder = Folder::of_run(run.path());
    write_rank(&folder.partial(3), 0, &[], &Written::default()).unwrap();
    let error = folder.commit(index, &[]).unwrap_err().to_string();
    assert!(error.contains(r#""\u{1b}]0;owned\u{7}" has characters that no name has"#), "{error}");
}

#[test]
fn an_older_format_is_named_with_what_to_do() {
    let run = tempfile::tempdir().unwrap();
    let path = write(run.path(), 3, &[]).unwrap();
    fs::write(path.join("index.json"), "{\"format\": 1, \"step\": 3, \"parameters\": []}").unwrap();
    let error = read_all(&path).unwrap_err().to_string();
    assert!(error.contains("has format 1, and this program reads 2: use the version of Kiln that wrote it"), "{error}");
}

#[test]
fn what_is_not_committed_does_not_count_and_is_cleaned_away() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    write(run.path(), 3, &[]).unwrap();
    write_rank(&folder.partial(6), 0, &[], &Written::default()).unwrap();
    assert_eq!(folder.latest().unwrap(), Some(folder.step(3)));
    folder.clean(&|_, _| Ok(true)).unwrap();
    assert_eq!(files(&run.path().join("checkpoints")), [folder.step(3)]);
}

#[test]
fn a_commit_without_all_ranks_or_with_a_gap_is_refused() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    let piece = Piece { name: "a".into(), shape: vec![4], region: None, offset: 0, len: 3, has_moments: false };
    write_rank(&folder.partial(1), 0, &[(piece, Box::new(|_| vec![0.0; 3]))], &Written::default()).unwrap();
    let error =
        |world_size| folder.commit(Index { step: 1, world_size, ..Index::default() }, &[]).unwrap_err().to_string();
    assert!(error(2).contains("rank-1.json"), "{}", error(2));
    assert!(error(1).contains("the pieces of parameter a are not the whole of it"), "{}", error(1));
    assert_eq!(folder.latest().unwrap(), None);
}

#[test]
fn the_newest_are_kept_and_those_that_are_named() {
    let run = tempfile::tempdir().unwrap();
    (0..=12).for_each(|step| drop(write(run.path(), step * 5, &[]).unwrap()));
    let folder = Folder::of_run(run.path());
    let steps = || folder.list().unwrap().into_iter().map(|(step, _)| step).collect::<Vec<u64>>();
    folder.prune(2, 20, &[25, 10]).unwrap();
    assert_eq!(steps(), [0, 10, 20, 25, 40, 55, 60]);
    folder.prune(2, 0, &[25, 10]).unwrap();
    assert_eq!(steps(), [0, 10, 25, 55, 60]);
    folder.prune(2, 0, &[]).unwrap();
    assert_eq!(steps(), [0, 55, 60]);
    assert_eq!(files(&run.path().join("checkpoints")).len(), 3);
}

#[test]
fn a_rank_with_a_parameter_that_is_not_finite_is_never_done_and_infinite_moments_are_written() {
    for (spoilt, value) in [(Kind::Param, f32::NAN), (Kind::Param, f32::INFINITY), (Kind::ExpAvgSq, f32::INFINITY)] {
        let run = tempfile::tempdir().unwrap();
        let folder = Folder::of_run(run.path());
        folder.begin(&Index { step: 3, world_size: 2, optimizer_steps: 3, ..Index::default() }, &[]).unwrap();
        let written = [0, 1].map(|rank| {
            let (name, shape) = ("w".into(), vec![4]);
            let piece = Piece { name, shape, region: None, offset: 2 * rank, len: 2, has_moments: true };
            let values: Values = Box::new(move |kind| vec![0.5, if rank == 1 && kind == spoilt { value } else { 1.0 }]);
            write_rank(&folder.partial(3), rank, &[(piece, values)], &Written::default())
        });
        assert!(written[0].is_ok());
        if spoilt != Kind::Param {
            assert!(folder.missing(3, 2).is_empty());
            continue;
        }
        let error = written[1].as_ref().unwrap_err().to_string();
        assert!(error.contains(&format!("parameter w is not finite (it has the value {value})")), "{error}");
        assert_eq!(folder.missing(3, 2), [1]);
        assert_eq!(folder.clean(&|_, _| Ok(true)).unwrap(), [""; 0].map(PathBuf::from));
        assert_eq!(files(&run.path().join("checkpoints")).len(), 0);
    }
}

#[test]
fn a_missing_step_is_answered_with_those_that_there_are() {
    let run = tempfile::tempdir().unwrap();
    let at = |which: &str| run.path().with_file_name(format!("{}@{which}", run.path().file_name().unwrap().display()));
    let error = |path: &Path| Folder::find(path).unwrap_err().to_string();
    assert!(error(&at("6")).ends_with("checkpoints: there is no checkpoint of step 6: there is none at all"));
    write(run.path(), 3, &[]).unwrap();
    assert!(error(&at("6")).ends_with("there is that of step 3 (RUN@3)"));
    write(run.path(), 9, &[]).unwrap();
    write(run.path(), 12, &[]).unwrap();
    let folder = Folder::of_run(run.path());
    for path in [at("6"), folder.step(6)] {
        let expected = "there is no checkpoint of step 6: there are those of steps 3, 9 and 12 (RUN@12)";
        assert!(error(&path).ends_with(expected), "{}", error(&path));
    }
    assert_eq!(Folder::find(&at("9")).unwrap(), folder.step(9));
    assert!(error(&at("best")).contains("the checkpoint of step 12 knows no best validation"));
    // The newest readable checkpoint says which one is best.
    write_rank(&folder.partial(15), 0, &[], &Written::default()).unwrap();
    let best = Some(Best { step: 9, val_loss: 1.5 });
    folder.commit(Index { step: 15, world_size: 1, best, ..Index::default() }, &[]).unwrap();
    write(run.path(), 18, &[]).unwrap();
    fs::write(folder.step(18).join("index.json"), "{").unwrap();
    assert_eq!(Folder::find(&at("best")).unwrap(), folder.step(9));
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
    // Again, with another checkpoint of step 6.
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
    folder.clean(&|_, _| Ok(true)).unwrap();
    read_all(&folder.step(3)).unwrap();
}

/// A process may be killed at any moment after the last rank's last byte.
#[test]
fn a_checkpoint_that_all_ranks_have_written_is_completed_and_not_removed() {
    let config = || vec![("config.yaml".to_string(), b"model: {}\n".to_vec())];
    let index = Index { step: 6, world_size: 1, optimizer_steps: 6, ..Index::default() };
    let written = |run: &Path, begun: bool| {
        write(run, 3, &[]).unwrap();
        let folder = Folder::of_run(run);
        if begun {
            folder.begin(&index, &config()).unwrap();
        }
        let shape = vec![9];
        let piece = Piece { name: "a".into(), shape, region: None, offset: 0, len: 9, has_moments: true };
        let values: Values = Box::new(|kind| (0..9).map(|i| value("a", kind, i)).collect());
        write_rank(&folder.partial(6), 0, &[(piece, values)], &Written::default()).unwrap();
        folder
    };
    // Killed before completion began; after the index was written but before the rename; with a leftover entry of a
    // rank.
    for moment in 0..3 {
        let run = tempfile::tempdir().unwrap();
        let folder = written(run.path(), true);
        if moment > 0 {
            let said = fs::read(folder.partial(6).join("rank-0.json")).unwrap();
            fs::rename(folder.complete(6).unwrap(), folder.partial(6)).unwrap();
            if moment == 2 {
                fs::write(folder.partial(6).join("rank-0.json"), said).unwrap();
            }
        }
        assert!(folder.needs_mending().unwrap());
        assert_eq!(folder.clean(&|_, _| Ok(true)).unwrap(), [folder.step(6)]);
        assert!(!folder.needs_mending().unwrap());
        read_all(&folder.latest().unwrap().unwrap()).unwrap();
        let names = files(&folder.step(6)).into_iter().map(|path| path.file_name().unwrap().to_owned());
        let expected = ["blocks.bin", "config.yaml", "index.json", "pieces.bin", "rank-0.safetensors"];
        assert_eq!(names.collect::<Vec<_>>(), expected, "moment {moment}");
    }
    // The caller may refuse.
    let run = tempfile::tempdir().unwrap();
    let folder = written(run.path(), true);
    let refused = |partial: &Path, ranks: usize| Ok((partial, ranks) != (&folder.partial(6), 1));
    assert_eq!(folder.clean(&refused).unwrap(), [""; 0].map(PathBuf::from));
    assert!(!folder.partial(6).exists());
    // A checkpoint that was never begun, or has lost a part since, is incomplete.
    for begun in [false, true] {
        let run = tempfile::tempdir().unwrap();
        let folder = written(run.path(), begun);
        if begun {
            fs::write(folder.partial(6).join("rank-0.safetensors"), "cut").unwrap();
        }
        assert_eq!(folder.clean(&|_, _| Ok(true)).unwrap(), [""; 0].map(PathBuf::from));
        assert_eq!(files(&run.path().join("checkpoints")), [folder.step(3)]);
    }
    // A head may claim more ranks than can be looked up.
    let run = tempfile::tempdir().unwrap();
    let folder = written(run.path(), true);
    let head = folder.partial(6).join("head.json");
    let text = fs::read_to_string(&head).unwrap().replace(r#""world_size":1,"#, r#""world_size":1000000000000000,"#);
    assert!(text.contains("1000000000000000"), "{text}");
    fs::write(&head, text).unwrap();
    assert!(!folder.needs_mending().unwrap());
    assert_eq!(folder.clean(&|_, _| Ok(true)).unwrap(), [""; 0].map(PathBuf::from));
    // What cannot be judged because it cannot be read stays.
    let run = tempfile::tempdir().unwrap();
    let folder = written(run.path(), true);
    let unreadable = |partial: &Path, _: usize| {
        Err(CheckpointError::Read { path: partial.into(), source: std::io::ErrorKind::StaleNetworkFileHandle.into() })
    };
    assert!(matches!(folder.clean(&unreadable), Err(CheckpointError::Read { .. })));
    assert!(folder.partial(6).is_dir());
}

#[test]
fn the_ranks_that_are_missing_are_known() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    assert_eq!(folder.missing(3, 3), [0, 1, 2]);
    write_rank(&folder.partial(3), 1, &[], &Written::default()).unwrap();
    assert_eq!(folder.missing(3, 3), [0, 2]);
}

#[test]
fn only_names_that_it_writes_are_checkpoints() {
    let run = tempfile::tempdir().unwrap();
    let step = write(run.path(), 7, &[]).unwrap();
    ["step-007", "step-+8", "step-9x", ".step-05.partial"]
        .iter()
        .for_each(|name| fs::create_dir(step.with_file_name(name)).unwrap());
    let folder = Folder::of_run(run.path());
    assert_eq!(folder.list().unwrap(), [(7, step)]);
    folder.prune(0, 0, &[]).unwrap();
    assert_eq!(files(&run.path().join("checkpoints")).len(), 4);
}

#[test]
fn links_are_not_followed_to_what_would_be_written_or_removed() {
    use std::os::unix::fs::symlink;
    let elsewhere = tempfile::tempdir().unwrap();
    write(elsewhere.path(), 3, &[]).unwrap();
    let own = elsewhere.path().join("checkpoints");
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    symlink(&own, run.path().join("checkpoints")).unwrap();
    let refused = |result: Result<(), CheckpointError>| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("checkpoints: is a symbolic link, and Kiln writes and removes files in it"), "{error}");
    };
    refused(folder.clean(&|_, _| Ok(true)).map(drop));
    refused(folder.prune(0, 0, &[]));
    refused(folder.set_aside(0).map(drop));
    refused(folder.commit(Index::default(), &[]).map(drop));
    fs::remove_file(run.path().join("checkpoints")).unwrap();

    // A half-written folder and files in it.
    write(run.path(), 3, &[]).unwrap();
    symlink(&own, folder.partial(6)).unwrap();
    assert_eq!(folder.clean(&|_, _| Ok(true)).unwrap(), [""; 0].map(PathBuf::from));
    assert!(own.join("step-3").exists() && !folder.partial(6).exists());
    let mine = elsewhere.path().join("mine");
    fs::write(&mine, "mine").unwrap();
    fs::create_dir(folder.partial(6)).unwrap();
    symlink(&mine, folder.partial(6).join("head.json.new")).unwrap();
    symlink(&mine, folder.partial(6).join("config.yaml")).unwrap();
    let error = write(run.path(), 6, &[]).unwrap_err().to_string();
    assert!(error.contains("head.json"), "{error}");
    assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
    assert!(folder.partial(6).join("config.yaml").symlink_metadata().unwrap().is_file(), "a link is replaced");

    symlink(&own, run.path().join("checkpoints/abandoned")).unwrap();
    let error = folder.set_aside(0).unwrap_err().to_string();
    assert!(error.contains("abandoned: is a symbolic link"), "{error}");
}

/// On Linux, `/dev/full` acts as a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_names_the_file_and_leaves_older_checkpoints() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    write(run.path(), 3, &[]).unwrap();
    fs::create_dir_all(folder.partial(6)).unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.partial(6).join("rank-0.safetensors")).unwrap();
    let error = write(run.path(), 6, &[]).unwrap_err().to_string();
    for part in ["rank-0.safetensors", "No space left", "older checkpoints are unchanged"] {
        assert!(error.contains(part), "no `{part}` in: {error}");
    }
    read_all(&folder.latest().unwrap().unwrap()).unwrap();
}

/// Three ranks hold columns of a matrix, which is read by rows and by other columns.
#[test]
fn columns_of_ranks_are_read_as_any_other_part() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    let shape = vec![5, 7];
    let number = |flat: usize| flat as f32 + 0.5;
    for (rank, columns) in [0..3, 3..4, 4..7].into_iter().enumerate() {
        let region = Region { view: None, start: vec![0, columns.start], size: vec![5, columns.len()] };
        let flat: Vec<usize> = region.runs(&shape, 0..region.len()).flatten().collect();
        let values = move |_: Kind| flat.iter().map(|i| number(*i)).collect();
        let (len, region) = (region.len(), Some(region));
        let piece = Piece { name: "w".into(), shape: shape.clone(), region, offset: 0, len, has_moments: false };
        write_rank(&folder.partial(1), rank, &[(piece, Box::new(values))], &Written::default()).unwrap();
    }
    folder.commit(Index { step: 1, world_size: 3, ..Index::default() }, &[]).unwrap();
    let checkpoint = Checkpoint::open(&folder.latest().unwrap().unwrap()).unwrap();
    let expected = |flat: Vec<usize>| flat.into_iter().map(number).collect::<Vec<f32>>();
    assert_eq!(checkpoint.read("w", Kind::Param, 2..33).unwrap(), expected((2..33).collect()));
    let others = Region { view: None, start: vec![1, 2], size: vec![3, 4] };
    let flat = others.runs(&shape, 1..11).flatten().collect();
    assert_eq!(checkpoint.read_region("w", Kind::Param, &others, 1..11).unwrap(), expected(flat));
    let beyond = Region { view: None, start: vec![1, 2], size: vec![3, 6] };
    let error = checkpoint.read_region("w", Kind::Param, &beyond, 0..1).unwrap_err().to_string();
    assert!(error.contains("parameter w of shape [5, 7] has no elements 0..1"), "{error}");
}
