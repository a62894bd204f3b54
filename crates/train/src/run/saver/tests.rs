//! Tests of savers of several ranks, one of which is slow, has a full disk, or has different values.

use super::*;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use checkpoint::{Best, Region};
use fsdp::{Copies, Fsdp, FsdpConfig, Part, StatePart, Strategy, Units};
use std::fs;
use std::os::unix::fs::symlink;
use test_kit::on_ranks;

const A_MINUTE: u64 = 60;
const A_WEEK: u64 = 7 * 24 * 60 * 60;

/// Keeps one checkpoint, which may take `timeout` seconds.
fn saver(folder: Folder, rank: usize, timeout: u64) -> Saver {
    Saver::new(folder, rank, CheckpointConfig { keep: 1, timeout, ..CheckpointConfig::default() }, vec![])
}

#[test]
fn a_checkpoint_of_ranks_whose_copies_differ_is_not_completed() {
    let device = Device::flex();
    let constant = Initializer::Constant { value: 0.1 };
    let linear: Linear = LinearConfig::new(4, 4).with_initializer(constant).init(&device);
    for spoilt in [None, Some(1)] {
        let run = tempfile::tempdir().unwrap();
        let (folder, linear) = (Folder::of_run(run.path()), linear.clone());
        let of_rank = folder.clone();
        let found = on_ranks(2, move |comm| {
            let (rank, mut units) = (comm.rank(), Units::<Tensor<3>>::new());
            let first = units.add("first", linear.clone());
            units.first(first, |linear: &Linear, x: &Tensor<3>| linear.forward(x.clone()));
            units.last(first, |linear: &Linear, x: Tensor<3>, _| linear.forward(x).powi_scalar(2).mean());
            let config = FsdpConfig { strategy: Strategy::Ddp, ..FsdpConfig::default() };
            let mut fsdp = Fsdp::new(units, comm, config)?;
            fsdp.train_step(&[Tensor::ones([1, 2, 4], &Device::flex())], 0.1)?;
            if spoilt == Some(rank) {
                fsdp.add_to_parameter("first.bias", &[1e-6; 4]);
            }
            let mut saver = saver(of_rank.clone(), rank, A_WEEK);
            saver.start(fsdp.state(), Index { step: 1, world_size: 2, ..Index::default() });
            // The next step does not change what is written and compared.
            fsdp.train_step(&[Tensor::ones([1, 2, 4], &Device::flex())], 0.1)?;
            let written = saver.under_way.as_mut().and_then(|save| save.thread.take()).unwrap().join().unwrap();
            fsdp.all_reduce(&[0.0])?;
            Ok::<_, TrainError>(written.err().map(|error| error.to_string()))
        });
        let names: Vec<_> = fs::read_dir(folder.step(1).parent().unwrap()).unwrap().flatten().collect();
        match spoilt {
            None => {
                assert_eq!(found, [None, None]);
                let mut files: Vec<_> = fs::read_dir(folder.step(1)).unwrap().flatten().collect();
                files.retain(|file| file.path().extension().is_some_and(|kind| kind == "copies"));
                assert!(files.is_empty(), "{files:?}");
            }
            Some(_) => {
                let error = found[0].as_ref().expect("rank 0 completes it");
                assert!(error.contains("unit first is not the same on ranks 0 and 1"), "{error}");
                assert!(names.is_empty(), "there is nothing that could be taken for a checkpoint: {names:?}");
            }
        }
    }
}

#[test]
fn after_the_last_upload_the_newest_checkpoints_and_the_best_stay() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    let config = |keep| CheckpointConfig { keep, ..CheckpointConfig::default() };
    let mut saver = Saver::new(folder.clone(), 0, config(9), vec![]);
    for step in 1..=4 {
        let best = Some(Best { step: 2, val_loss: 1.0 });
        saver.write(Index { step, world_size: 1, best, ..Index::default() }, || {
            let (name, shape) = ("w".into(), vec![1]);
            let piece = Piece { name, shape, region: None, offset: 0, len: 1, has_moments: false };
            let values: Values = Box::new(|_| vec![1.0]);
            (|_: &Path| Ok(()), vec![(piece, values)])
        });
        saver.finish(|values| Ok(values.to_vec()), |_| {}).unwrap();
    }
    saver.pruned(true);
    prune_uploaded(&folder, &config(1)).unwrap();
    let left: Vec<u64> = folder.list().unwrap().iter().map(|(step, _)| *step).collect();
    assert_eq!(left, [2, 4]);
}

/// How rank 1 differs from the others.
#[derive(Clone, Copy)]
struct Odd {
    /// The time it takes to produce its values.
    delay: Duration,
    /// Its value after step 6.
    value: f32,
}

/// Writes `w`, which has one element per rank.
fn write(saver: &mut Saver, step: u64, world_size: usize, odd: Odd) {
    let rank = saver.rank;
    let index = Index { step, world_size, ..Index::default() };
    saver.write(index, move || {
        let (name, shape) = ("w".into(), vec![world_size]);
        let piece = Piece { name, shape, region: None, offset: rank, len: 1, has_moments: false };
        let values: Values = Box::new(move |_| {
            thread::sleep(if rank == 1 { odd.delay } else { Duration::ZERO });
            vec![if rank == 1 && step == 6 { odd.value } else { 1.0 }]
        });
        (|_: &Path| Ok(()), vec![(piece, values)])
    });
}

/// Three ranks write two checkpoints, with a limit of `call` seconds per call and `timeout` seconds per checkpoint.
/// Returns the lines each rank printed.
fn on_three_ranks(
    run: &Path,
    call: u64,
    timeout: u64,
    odd: Odd,
) -> Result<Vec<Vec<String>>, comm::RankFailure<TrainError>> {
    let folder = Folder::of_run(run);
    comm::run_ranks(vec![Device::flex(); 3], Duration::from_secs(call), move |comm| {
        let mut saver = saver(folder.clone(), comm.rank(), timeout);
        let sum = |values: &[f64]| {
            let values = burn::tensor::TensorData::new(values.to_vec(), [values.len()]);
            let tensor = Tensor::<1>::from_data(values, (comm.device(), burn::tensor::DType::F64));
            Ok(comm.all_reduce(tensor, comm::Reduce::Sum)?.into_data().iter::<f64>().collect())
        };
        let mut told = vec![];
        for step in [3, 6] {
            write(&mut saver, step, 3, odd);
            // As in a run: the other ranks are notified before whatever waits for the disk is dropped.
            let finished = comm.abort_on_failure(|| saver.finish(sum, |line| told.push(line.to_string())))?;
            assert_eq!(finished.saved, (comm.rank() == 0).then(|| (step, folder.step(step))));
        }
        assert!(saver.pruned(true).is_none());
        Ok(told)
    })
}

#[test]
fn a_checkpoint_of_which_one_rank_has_a_parameter_that_is_not_finite_is_not_completed() {
    let run = tempfile::tempdir().unwrap();
    let odd = Odd { delay: Duration::ZERO, value: f32::NAN };
    let answer = on_three_ranks(run.path(), A_MINUTE, A_WEEK, odd).unwrap_err().to_string();
    let folder = Folder::of_run(run.path());
    let expected = format!(
        "rank 1: the checkpoint of step 6 is not saved, because parameter w is not finite (it has the value NaN); the last good checkpoint is {}",
        folder.step(3).display()
    );
    assert!(answer.contains(&expected), "{answer}");
    assert!(folder.clean(&copies::are_same).unwrap().is_empty());
    assert_eq!(folder.list().unwrap(), [(3, folder.step(3))]);
}

/// Runs a test with a limit of one second and, if it fails, of ten: a busy machine may also delay other ranks or disks.
fn patiently(test: impl Fn(u64)) {
    test_kit::patiently([1, 10].map(Duration::from_secs), |limit| test(limit.as_secs()));
}

#[test]
fn a_disk_that_takes_longer_than_a_call_may_is_waited_for_and_the_wait_is_told() {
    patiently(|call| {
        let run = tempfile::tempdir().unwrap();
        // The wait is told after two seconds at the earliest.
        let odd = Odd { delay: Duration::from_secs(3 * call), value: 1.0 };
        let told = on_three_ranks(run.path(), call, A_WEEK, odd).unwrap();
        assert!(told[1..].iter().all(Vec::is_empty), "{told:?}");
        let line = told[0].join("\n");
        assert!(line.contains("waiting for the checkpoint of step 3: ") && line.contains("not done: rank 1"), "{line}");
        let checkpoints = Folder::of_run(run.path());
        assert_eq!(checkpoints.list().unwrap(), [(6, checkpoints.step(6))]);
        checkpoint::Checkpoint::open(&checkpoints.step(6)).unwrap().verify_all().unwrap();
    });
}

#[test]
fn a_disk_that_takes_longer_than_a_checkpoint_may_ends_the_run_and_its_rank_is_named() {
    patiently(|timeout| {
        let run = tempfile::tempdir().unwrap();
        let odd = Odd { delay: Duration::from_secs(4 * timeout), value: 1.0 };
        let answer = on_three_ranks(run.path(), A_MINUTE, timeout, odd).unwrap_err().to_string();
        for part in ["rank 0: ", ".step-3.partial", "not written yet is that of rank 1", "checkpoint.timeout"] {
            assert!(answer.contains(part), "no `{part}` in: {answer}");
        }
        // It is complete by now.
        assert_eq!(Folder::of_run(run.path()).clean(&copies::are_same).unwrap(), [Folder::of_run(run.path()).step(3)]);
    });
}

#[test]
fn a_rank_whose_disk_is_full_says_so_and_the_others_write_on() {
    for _ in 0..3 {
        let run = tempfile::tempdir().unwrap();
        let folder = Folder::of_run(run.path());
        fs::create_dir_all(folder.partial(3)).unwrap();
        symlink("/dev/full", folder.partial(3).join("rank-1.safetensors")).unwrap();
        let mut savers: Vec<Saver> = (0..4).map(|rank| saver(folder.clone(), rank, A_WEEK)).collect();
        for saver in &mut savers {
            // Large enough that the others are still writing when the full disk is found.
            let (len, offset, param) = (1 << 20, saver.rank << 20, Tensor::zeros([1 << 20], &Device::flex()));
            let (name, shape) = ("w".into(), vec![4 << 20]);
            let of = Part { name, region: Region::whole(&shape), shape, range: offset..offset + len };
            let parts = vec![StatePart { of, param, optimizer: None }];
            let progress = fsdp::Progress { optimizer_steps: 3, loss_scale: None };
            let index = Index { step: 3, world_size: 4, ..Index::default() };
            saver.start(State { parts, progress, copies: Copies::default() }, index);
        }
        for saver in &mut savers {
            let save = saver.under_way.as_mut().unwrap();
            save.given_up.store(true, Ordering::Relaxed); // otherwise rank 0 would wait for rank 1
            let written = save.thread.take().unwrap().join().unwrap();
            let answer = written.err().map(|error| error.to_string()).unwrap_or_default();
            match saver.rank {
                1 => assert!(answer.contains("rank-1.safetensors: No space left on device"), "{answer}"),
                rank => assert_eq!(answer, "", "rank {rank}"),
            }
        }
    }
}

#[test]
fn a_checkpoint_that_a_disk_refuses_three_times_is_skipped_by_all_ranks_and_the_next_one_is_written() {
    let run = tempfile::tempdir().unwrap();
    let folder = Folder::of_run(run.path());
    fs::create_dir_all(folder.partial(3)).unwrap();
    symlink("/dev/full", folder.partial(3).join("rank-1.safetensors")).unwrap();
    let of_ranks = folder.clone();
    let skipped = on_ranks(3, move |comm| {
        let mut saver = saver(of_ranks.clone(), comm.rank(), A_WEEK);
        let odd = Odd { delay: Duration::ZERO, value: 1.0 };
        let sum = |values: &[f64]| Ok(comm.all_reduce_numbers(values, comm::Reduce::Sum)?);
        write(&mut saver, 3, 3, odd);
        let finished = saver.finish(sum, |_| {})?;
        assert!(finished.saved.is_none() && finished.has_failed);
        let skipped = saver.skip();
        comm.barrier().map_err(fsdp::FsdpError::from)?;
        write(&mut saver, 6, 3, odd);
        let finished = saver.finish(sum, |_| {})?;
        assert!(!finished.has_failed && saver.skip().is_none());
        assert_eq!(finished.saved.is_some(), comm.rank() == 0);
        Ok::<_, TrainError>(skipped.map(|(step, error)| (step, error.map(|error| error.to_string()))))
    });
    for (rank, skipped) in skipped.into_iter().enumerate() {
        let (step, error) = skipped.expect("all ranks skip it");
        assert_eq!((step, error.is_some()), (3, rank == 1));
        assert!(error.is_none_or(|error| error.contains("rank-1.safetensors: No space left on device")));
    }
    assert_eq!(folder.list().unwrap(), [(6, folder.step(6))]);
}
