//! The flight recorder, and what a diagnosis says of ranks that fail, stop or disagree.

mod common;

use burn::tensor::{Float, Tensor};
use comm::flight::{Absent, Finding, FlightRecord, FlightRecorder, diagnose};
use comm::{CommError, Communicator, Reduce, run_ranks};
use common::*;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Returns the records of `n` ranks after `work`. The number counts the ranks that have come back from it.
fn records_after(
    n: usize,
    timeout: Duration,
    work: impl Fn(&Communicator, &AtomicUsize) -> Result<(), CommError> + Send + Sync + 'static,
) -> Vec<FlightRecord> {
    let recorders: Arc<Mutex<Vec<Arc<FlightRecorder>>>> = Arc::default();
    let (all, back) = (recorders.clone(), AtomicUsize::new(0));
    let _ = run_ranks(ranks(n), timeout, move |comm| {
        all.lock().unwrap().push(comm.flight());
        let result = work(&comm, &back);
        back.fetch_add(1, Ordering::Relaxed);
        result.map_err(io::Error::other)
    });
    recorders.lock().unwrap().iter().map(|recorder| recorder.record()).collect()
}

/// Waits outside of any call until so many ranks are back.
fn until(back: &AtomicUsize, ranks: usize) {
    let start = Instant::now();
    while back.load(Ordering::Relaxed) < ranks && start.elapsed() < HANG {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_rank_that_others_wait_for_in_vain_is_the_cause_whether_it_comes_late_or_never() {
    for late in [false, true] {
        patiently(|timeout| {
            let records = records_after(4, timeout, move |comm, back| {
                comm.note_place(17, "data");
                comm.barrier()?;
                if comm.rank() == 3 {
                    until(back, 3);
                    if !late {
                        return Ok(());
                    }
                }
                comm.all_reduce_numbers(&[1.0], Reduce::Sum).map(drop)
            });
            let diagnosis = diagnose(&records);
            let Finding::Absent(cause) = &diagnosis.findings[0] else { panic!("{diagnosis}") };
            let Absent { rank, waiting, seconds, outside, place, last, .. } = cause;
            assert_eq!((*rank, &waiting[..], cause.late), (3, &[0, 1, 2][..], late), "{diagnosis}");
            assert_eq!(cause.call.to_string(), "all_reduce number 1 over the world");
            assert_eq!(last.as_ref().unwrap().to_string(), "barrier number 0 over the world");
            assert_eq!(place.as_ref().unwrap().what, "data");
            assert!(*seconds >= timeout.as_secs_f64() && outside.unwrap() >= 0.9 * seconds, "{diagnosis}");
        });
    }
}

#[test]
fn a_rank_that_makes_another_call_is_named_by_the_majority() {
    let records = records_after(4, HANG, |comm, _| {
        let pair = comm.split(comm.rank() / 2)?;
        pair.barrier()?;
        let ones = Tensor::<1>::ones([8], comm.device());
        if comm.rank() == 0 { comm.all_gather(ones).map(drop) } else { comm.all_reduce(ones, Reduce::Sum).map(drop) }
    });
    let diagnosis = diagnose(&records);
    // Call 0 is the exchange of the split's colors.
    let expected = "in call number 1 over the world, rank 0 called all_gather of [8] F32, but ranks 1, 2 and 3 called \
                    all_reduce of [8] F32: look at the branch or the shape that only rank 0 took";
    assert_eq!(diagnosis.to_string(), expected);
}

#[test]
fn a_chain_of_stages_that_wait_for_each_other_leads_to_the_first() {
    patiently(|timeout| {
        let records = records_after(4, timeout, |comm, back| match comm.rank() {
            0 => {
                until(back, 3);
                Ok(())
            }
            stage => {
                let x = comm.recv::<Float>(stage - 1)?;
                if stage < 3 { comm.send(x, stage + 1) } else { Ok(()) }
            }
        });
        let diagnosis = diagnose(&records);
        let Finding::Absent(cause) = &diagnosis.findings[0] else { panic!("{diagnosis}") };
        assert_eq!((cause.rank, &cause.waiting[..], &cause.last), (0, &[1][..], &None), "{diagnosis}");
        let mut behind: Vec<_> = diagnosis.findings[1..].iter().map(Finding::suspects).collect();
        behind.sort();
        assert_eq!(behind, [[1], [2]], "{diagnosis}");
    });
}

#[test]
fn a_rank_that_panics_is_the_cause_and_not_the_ranks_that_learn_of_it() {
    let records = records_after(3, HANG, |comm, _| {
        comm.barrier()?;
        comm.note_place(5, "forward");
        if comm.rank() == 1 {
            panic!("out of paper");
        }
        comm.barrier()
    });
    let expected = "rank 1 failed, in step 5 (forward): panicked: out of paper";
    assert_eq!(diagnose(&records).findings[0].to_string(), expected);
}

#[test]
fn a_watchdog_reads_the_record_of_a_rank_in_a_call() {
    let recorders: Mutex<Vec<_>> = Mutex::default();
    on_ranks(2, |comm| {
        recorders.lock().unwrap().push(comm.flight());
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            comm.recv::<Float>(1).unwrap();
            return;
        }
        let start = Instant::now();
        let all = || recorders.lock().unwrap().iter().map(|recorder| recorder.record()).collect::<Vec<_>>();
        let waits = |record: &FlightRecord| record.calls.iter().any(|call| call.pair.is_some());
        while !all().iter().any(waits) && start.elapsed() < HANG {
            thread::sleep(Duration::from_millis(1));
        }
        // A wait of a millisecond is no fault.
        let findings = diagnose(&all()).findings;
        let waits = findings[1].to_string();
        assert!(findings[0] == Finding::Healthy && waits.starts_with("rank 0 has waited for "), "{findings:?}");
        assert!(waits.ends_with(" in recv number 0 from rank 1 over the world for rank 1"), "{waits}");
        comm.send(tensor(comm, &[1.0]), 0).unwrap();
    });
    let records: Vec<_> = recorders.into_inner().unwrap().iter().map(|recorder| recorder.record()).collect();
    assert_eq!(diagnose(&records).findings, [Finding::Healthy]);
}

#[test]
fn a_record_holds_the_last_256_calls_and_is_the_same_from_json() {
    let records = on_ranks(2, |comm| {
        let peer = 1 - comm.rank();
        for _ in 0..150 {
            comm.barrier().unwrap();
            comm.send(tensor(comm, &[1.0]), peer).unwrap();
            comm.recv::<Float>(peer).unwrap();
        }
        let alone = comm.split(comm.rank()).unwrap();
        alone.barrier().unwrap(); // communicates nothing
        comm.flight().record()
    });
    for record in records {
        let numbers = |name: &str| -> Vec<u64> {
            let calls = record.calls.iter().filter(|call| call.collective.starts_with(name));
            calls.map(|call| call.seq).collect()
        };
        assert_eq!(record.calls.len(), 256);
        assert_eq!(numbers("barrier"), (65..150).collect::<Vec<_>>());
        assert_eq!(numbers("recv"), (65..150).collect::<Vec<_>>());
        assert_eq!(numbers("all_gather"), [150]);
        assert_eq!(record.calls.iter().find(|call| call.collective.starts_with("recv")).unwrap().bytes, Some(4));
        let mut read: FlightRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        // JSON may change the last bits of a time.
        let close = |read: &mut f64, time: f64| {
            assert!((*read - time).abs() < 1e-6);
            *read = time;
        };
        close(&mut read.written, record.written);
        close(&mut read.since_last_event, record.since_last_event);
        close(&mut read.silence, record.silence);
        for (read, call) in read.calls.iter_mut().zip(&record.calls) {
            close(&mut read.entered, call.entered);
            close(read.left.as_mut().unwrap(), call.left.unwrap());
        }
        assert!(read == record);
    }
}
