//! Tests of checkpoints in the memory of several machines, which are folders here.

use super::held::{Answer, Held, Request, What};
use super::recovery::{Found, copy_newest};
use super::*;
use crate::run::copies;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use checkpoint::{Checkpoint, Kind};
use comm::run_ranks_on_machines;
use fsdp::{Fsdp, FsdpConfig, Units};
use std::path::PathBuf;
use std::time::Duration;

const A_WEEK: u64 = 7 * 24 * 60 * 60;

fn memory(root: &Path, machine: usize) -> PathBuf {
    root.join(format!("memory-{machine}")).join("attempt")
}

/// Trains on ranks of these machines. The checkpoints of steps 1 and 2 are complete in memory; that of step 3 has been
/// begun. Step 2 is also on disk.
fn train(root: &Path, machines: &[usize]) {
    let linear: Linear = LinearConfig::new(6, 6).init(&Device::flex());
    let (root, of_ranks) = (root.to_path_buf(), machines.to_vec());
    let work = move |comm: Communicator| {
        let (rank, world_size, mut units) = (comm.rank(), comm.world_size(), Units::<Tensor<3>>::new());
        let first = units.add("first", linear.clone());
        units.first(first, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone()));
        units.last(first, |linear: &Linear, x: Tensor<3>, _| linear.forward(x).powi_scalar(2).mean());
        let mut fsdp = Fsdp::new(units, comm.clone(), FsdpConfig::default())?;
        let (config, files) = (CheckpointConfig { timeout: A_WEEK, ..CheckpointConfig::default() }, vec![]);
        let files = if rank == 0 { vec![("config.yaml".into(), b"a: 1".to_vec())] } else { files };
        let mut disk = Saver::new(Folder::of_run(&root.join("disk")), rank, config.clone(), files.clone());
        let folder = memory(&root, of_ranks[rank]);
        let mut saver = MemorySaver::new(&folder, comm.clone(), config, files).expect("a folder");
        for step in 1..=3 {
            fsdp.train_step(&[Tensor::ones([1, 2, 6], &Device::flex())], 0.1)?;
            let index = Index { step, world_size, ..Index::default() };
            saver.start(fsdp.state(), index.clone());
            if step == 3 {
                while saver.is_writing() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                fsdp.all_reduce(&[0.0])?;
                break;
            }
            let (finished, error) = saver.finish(true, |values| fsdp.all_reduce(values))?;
            saver = finished.unwrap_or_else(|| panic!("{error:?}"));
            if step == 2 {
                disk.start(fsdp.state(), index);
                disk.finish(|values| fsdp.all_reduce(values), |_| {})?;
            }
        }
        Ok::<_, TrainError>(())
    };
    let devices = vec![Device::flex(); machines.len()];
    run_ranks_on_machines(devices, machines.to_vec(), Duration::from_secs(60), work).unwrap();
}

fn ask(root: &Path, machine: usize, what: What) -> Answer {
    Request { memory: memory(root, machine), what }.answer()
}

fn held(root: &Path, machine: usize) -> Vec<Held> {
    match ask(root, machine, What::List) {
        Answer::Held(held) => held,
        other => panic!("{other:?}"),
    }
}

/// Collects the newest checkpoint that these machines hold; returns its step.
fn collect(root: &Path, machines: &[usize], run: &Path) -> Option<Result<u64, String>> {
    let ask_each = |of_each: Vec<(usize, What)>| {
        of_each.into_iter().map(|(machine, what)| Ok(ask(root, machines[machine], what))).collect()
    };
    match copy_newest(machines.len(), run, &ask_each) {
        Ok((Found::Step(step), _)) => Some(Ok(step)),
        Ok((Found::Damaged(why), _)) | Err(why) => Some(Err(why)),
        Ok((Found::Nothing, _)) => None,
    }
}

fn values(checkpoint: &Path) -> Vec<(String, Vec<f32>)> {
    let checkpoint = Checkpoint::open(checkpoint).unwrap();
    checkpoint.verify_all().unwrap();
    let of = |(name, len): (String, usize)| {
        let read = |kind| checkpoint.read(&name, kind, 0..len).unwrap();
        (name.clone(), Kind::ALL.map(read).concat())
    };
    let parameters = checkpoint.index().parameters.iter();
    parameters.map(|p| (p.name.clone(), p.shape.iter().product())).map(of).collect()
}

#[test]
fn whichever_machine_is_lost_the_others_hold_the_newest_complete_checkpoint() {
    for of_ranks in [&[0, 0, 1, 1][..], &[0, 1, 2], &[0, 0, 0, 1], &[0, 1, 1, 2, 2]] {
        let root = tempfile::tempdir().unwrap();
        train(root.path(), of_ranks);
        let machines = of_ranks.iter().max().unwrap() + 1;
        let on_disk = values(&Folder::of_run(&root.path().join("disk")).step(2));
        for lost in 0..machines {
            let run = root.path().join(format!("without-{lost}"));
            let others: Vec<usize> = (0..machines).filter(|machine| *machine != lost).collect();
            assert_eq!(collect(root.path(), &others, &run), Some(Ok(2)), "{of_ranks:?} without {lost}");
            assert_eq!(values(&Folder::of_run(&run).step(2)), on_disk);
        }
        let all: Vec<usize> = (0..machines).collect();
        assert_eq!(collect(root.path(), &all, &root.path().join("all")), Some(Ok(3)), "all parts have been written");
        for machine in all {
            let steps: Vec<u64> = held(root.path(), machine).iter().map(|held| held.step).collect();
            assert!(!steps.contains(&1), "what is no longer needed stays in memory: {steps:?}");
        }
    }
}

#[test]
fn a_part_that_is_not_what_was_written_is_taken_from_the_other_machine() {
    let root = tempfile::tempdir().unwrap();
    train(root.path(), &[0, 0, 1, 1]);
    let folder = |place: Place, machine| place.folder(&memory(root.path(), machine));
    let damage = |folder: Folder| {
        let file = folder.partial(2).join("rank-3.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
    };
    [0, 1].iter().for_each(|machine| folder(Place::Own, *machine).remove_parts(|step| step == 3).unwrap());
    damage(folder(Place::Own, 1));
    assert_eq!(collect(root.path(), &[0, 1], &root.path().join("first")), Some(Ok(2)));
    damage(folder(Place::Copies, 0));
    let run = root.path().join("second");
    let why = collect(root.path(), &[0, 1], &run).unwrap().unwrap_err();
    assert!(why.contains("rank-3.safetensors: is not what the rank has written"), "{why}");
    assert!(Folder::of_run(&run).clean(&copies::are_same).unwrap().is_empty());
}

#[test]
fn a_folder_of_another_attempt_is_removed_and_two_lost_neighbors_are_too_many() {
    let root = tempfile::tempdir().unwrap();
    let before = memory(root.path(), 1).with_file_name("before");
    fs::create_dir_all(&before).unwrap();
    let make_private = |path: &Path| fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700));
    make_private(before.parent().unwrap()).unwrap();
    train(root.path(), &[0, 1, 2]);
    assert!(!before.exists());
    assert_eq!(collect(root.path(), &[0], &root.path().join("run")), None);
}
