//! Diagnoses of records made by hand.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn call(collective: &str, group: &[usize], axes: &str, seq: u64, entered: f64, left: Option<f64>) -> Call {
    Call {
        group: group.to_vec(),
        splits: vec![],
        axes: axes.into(),
        seq,
        collective: collective.into(),
        pair: None,
        len: Some(8),
        dtype: Some("F32".into()),
        bytes: left.map(|_| 0),
        entered,
        left,
        failed: None,
        background: false,
        place: None,
    }
}

fn message(name: &str, (from, to): (usize, usize), axes: &str, seq: u64, entered: f64, left: Option<f64>) -> Call {
    let collective = if name == "send" { format!("send to rank {to}") } else { format!("recv from rank {from}") };
    Call { pair: Some((from, to)), len: None, ..call(&collective, &[from, to], axes, seq, entered, left) }
}

const HEALTHY: &str =
    "the run was healthy as far as the records show: no rank had failed, and none waited longer than usual";

/// A record that was taken at 100 s.
fn record(rank: usize, world_size: usize, calls: Vec<Call>) -> FlightRecord {
    let last = calls.iter().flat_map(|call| [Some(call.entered), call.left]).flatten().fold(0.0, f64::max);
    let (written, place, aborted) = (100.0, None, None);
    FlightRecord {
        rank,
        world_size,
        written,
        since_last_event: written - last,
        silence: written - last,
        place,
        aborted,
        calls,
    }
}

fn lines(records: &[FlightRecord]) -> Vec<String> {
    diagnose(records).findings.iter().map(Finding::to_string).collect()
}

#[test]
fn a_rank_outside_of_any_call_is_named_with_its_place_and_the_waiting_ranks() {
    let done = || call("all_gather", &[0, 1, 2, 3], "dp_shard", 40, 80.0, Some(87.5));
    let waits = |rank| record(rank, 4, vec![done(), call("all_reduce", &[0, 1, 2, 3], "dp_shard", 41, 87.7, None)]);
    let place = Some(Place { step: 17, what: "data".into() });
    let outside = FlightRecord { place, ..record(3, 4, vec![done()]) };
    let expected = "rank 3 never entered all_reduce number 41 over dp_shard, where ranks 0, 1 and 2 have waited for \
                    12.3 s; it had been outside of any call for 12.5 s when its record was written, in step 17 (data): \
                    look at what rank 3 does after all_gather number 40 over dp_shard";
    assert_eq!(lines(&[waits(0), waits(1), waits(2), outside]), [expected]);
}

/// Each rank writes its record at another moment: the others have waited longer since.
#[test]
fn the_time_outside_of_calls_ends_when_the_record_was_written_and_starts_with_the_own_threads_last_call() {
    let done = || call("barrier", &[0, 1], "world", 0, 85.0, Some(90.0));
    let beside = Call { background: true, ..message("recv", (0, 1), "cp", 0, 86.0, Some(91.5)) };
    let hung = FlightRecord { written: 92.1, since_last_event: 0.6, ..record(1, 2, vec![done(), beside]) };
    let waits = record(0, 2, vec![done(), call("barrier", &[0, 1], "world", 1, 90.0, None)]);
    let told = &lines(&[waits, hung])[0];
    assert!(
        told.contains("waited for 10.0 s; it had been outside of any call for 2.1 s when its record was"),
        "{told}"
    );
}

#[test]
fn a_run_whose_ranks_wait_as_long_as_before_is_healthy() {
    // Rank 1 took 8 s before, too.
    let done = |entered| call("barrier", &[0, 1], "world", 0, entered, Some(80.0));
    let asked_after = |seconds: f64| {
        let waits = call("barrier", &[0, 1], "world", 1, 100.0 - seconds, None);
        lines(&[record(0, 2, vec![done(72.0), waits]), record(1, 2, vec![done(80.0)])])
    };
    let waits = "rank 0 has waited for 7.5 s in barrier number 1 over the world for rank 1";
    assert_eq!(asked_after(7.5), [HEALTHY, waits]);
    let told = asked_after(8.5);
    assert!(told[0].starts_with("rank 1 never entered barrier number 1 over the world"), "{told:?}");
    // A process whose rank was not asked has no record.
    let told = lines(&[record(0, 2, vec![call("barrier", &[0, 1], "world", 1, 99.9, None)])]);
    assert!(
        told[0] == HEALTHY && told[1].starts_with("there is no record of rank 1, for which rank 0 waits"),
        "{told:?}"
    );
}

#[test]
fn ranks_that_wait_for_each_other_are_a_deadlock() {
    let records = [
        record(0, 4, vec![call("all_reduce", &[0, 1], "dp_shard", 5, 90.0, None)]),
        record(1, 4, vec![call("all_gather", &[1, 2], "tp", 3, 90.0, None)]),
        record(2, 4, vec![message("recv", (0, 2), "pp", 7, 90.0, None)]),
        record(3, 4, vec![call("barrier", &[0, 1, 2, 3], "world", 9, 90.0, None)]),
    ];
    let expected = [
        "deadlock: rank 0 waits for rank 1 in all_reduce number 5 over dp_shard; rank 1 waits for rank 2 in all_gather \
         number 3 over tp; rank 2 waits for rank 0 in recv number 7 from rank 0 over pp: look at the order in which \
         these ranks make the calls",
        "rank 3 has waited for 10.0 s in barrier number 9 over the world for ranks 0, 1 and 2",
    ];
    assert_eq!(lines(&records), expected);
}

/// Rank 0 computes, and the gather that it started early waits for rank 1, which waits for rank 0.
#[test]
fn a_rank_that_computes_beside_a_call_is_in_no_deadlock() {
    let early = Call { background: true, ..call("all_gather", &[0, 1], "dp_shard", 5, 90.0, None) };
    let records = [record(0, 2, vec![early]), record(1, 2, vec![message("recv", (0, 1), "pp", 3, 90.0, None)])];
    let first = &diagnose(&records).findings[0];
    assert!(matches!(first, Finding::Absent(Absent { rank: 0, beside: Some(_), .. })), "{first}");
}

#[test]
fn what_most_ranks_call_is_right_even_if_rank_0_calls_something_else() {
    let version = |rank: usize| ["all_gather", "all_reduce", "all_reduce"][rank];
    let record = |rank| record(rank, 3, vec![call(version(rank), &[0, 1, 2], "world", 2, 90.0, None)]);
    let expected = "in call number 2 over the world, rank 0 called all_gather of [8] F32, but ranks 1 and 2 called \
                    all_reduce of [8] F32: look at the branch or the shape that only rank 0 took";
    let diagnosis = diagnose(&[record(0), record(1), record(2)]);
    assert_eq!(diagnosis.findings[0].to_string(), expected);
    // One against one: both are suspects.
    assert_eq!(diagnose(&[record(0), record(1)]).findings[0].suspects(), [0, 1]);
}

#[test]
fn a_rank_without_a_record_is_the_cause_if_others_wait_for_it() {
    let records = [
        record(0, 3, vec![call("barrier", &[0, 2], "dp_shard", 2, 90.0, None)]),
        record(1, 3, vec![call("barrier", &[0, 1], "tp", 6, 90.0, None)]),
    ];
    let expected = [
        "there is no record of rank 2, for which ranks 0 and 1 wait: it was killed before it could write one, or did not \
         get the signal that asks for it; look at the system's log of their hosts",
        "rank 1 has waited for 10.0 s in barrier number 6 over tp for rank 0",
    ];
    assert_eq!(lines(&records), expected);
}

#[test]
fn the_first_failure_is_named_and_not_what_follows_from_it() {
    let failed = |error: &str, blames: &[usize], own| {
        let failed = Some(CallFailure { error: error.into(), blames: blames.to_vec(), own });
        Call { bytes: None, failed, ..call("barrier", &[0, 1, 2], "world", 4, 90.0, Some(95.0)) }
    };
    let aborted = |record, at, reason: &str| {
        let aborted = Some(Aborted { at, reason: reason.into() });
        FlightRecord { aborted, ..record }
    };
    let records = [
        aborted(record(0, 3, vec![failed("barrier on rank 0: rank 2 failed", &[2], false)]), 95.1, "training failed"),
        aborted(record(1, 3, vec![]), 94.0, "panicked: out of paper"),
        aborted(record(2, 3, vec![]), 93.0, "disk full"),
    ];
    let named = lines(&records);
    assert_eq!(named[..2], ["rank 2 failed: disk full", "rank 1 failed: panicked: out of paper"]);
    assert!(named[2..].iter().all(|line| !line.contains("training failed")), "{named:?}");
}

#[test]
fn a_straggler_is_found_though_the_clocks_are_an_hour_apart() {
    // Rank 1 enters 50 ms after the others, by whatever clock.
    let calls = |rank: usize| {
        let clock = rank as f64 * 3600.0;
        let one = |seq: u64| {
            let (start, late) = (seq as f64 * 0.2, if rank == 1 { 0.05 } else { 0.0 });
            call("barrier", &[0, 1, 2], "world", seq, clock + start + late, Some(clock + start + 0.06))
        };
        (0..20).map(one).collect()
    };
    let record = |rank| FlightRecord { written: rank as f64 * 3600.0 + 4.0, ..record(rank, 3, calls(rank)) };
    let expected = [HEALTHY, "rank 1 is late: in half of 20 calls the others waited 50 ms or longer for it"];
    assert_eq!(lines(&[record(0), record(1), record(2)]), expected);
}

/// A step of a program: a call of some ranks or a message.
#[derive(Debug, Clone)]
enum Step {
    Meet(Vec<usize>),
    Message(usize, usize),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Outside,
    Killed,
    Panics,
}

/// Runs a program whose rank `stopped` makes only `calls` calls, and returns the ranks' records, each by its own clock.
fn run(n: usize, program: &[Step], stopped: usize, calls: usize, end: End, clocks: &[f64]) -> Vec<FlightRecord> {
    let takes_part = |step: &Step, rank: usize| match step {
        Step::Meet(ranks) => ranks.contains(&rank),
        Step::Message(from, to) => [*from, *to].contains(&rank),
    };
    let todo: Vec<Vec<usize>> = (0..n)
        .map(|rank| {
            let own = (0..program.len()).filter(|i| takes_part(&program[*i], rank));
            own.take(if rank == stopped { calls } else { usize::MAX }).collect()
        })
        .collect();
    let mut numbers = BTreeMap::new();
    let numbered: Vec<u64> = program
        .iter()
        .map(|step| {
            let next = numbers.entry(format!("{step:?}")).or_insert(0);
            *next += 1;
            *next - 1
        })
        .collect();
    let mut done = vec![vec![]; n]; // each rank's calls: step and times
    for sweep in 0.. {
        let (time, before) = (f64::from(sweep), done.clone());
        for rank in 0..n {
            let calls: &mut Vec<(usize, f64, Option<f64>)> = &mut done[rank];
            if calls.last().is_none_or(|last| last.2.is_some()) && calls.len() < todo[rank].len() {
                calls.push((todo[rank][calls.len()], time, None));
            }
        }
        let entered = |rank: usize, step| done[rank].iter().any(|call: &(usize, _, _)| call.0 == step);
        let complete: Vec<bool> = (0..n)
            .map(|rank| match done[rank].last() {
                Some((step, _, None)) => match &program[*step] {
                    Step::Meet(ranks) => ranks.iter().all(|rank| entered(*rank, *step)),
                    Step::Message(from, _) => entered(*from, *step),
                },
                _ => false,
            })
            .collect();
        for rank in (0..n).filter(|rank| complete[*rank]) {
            done[rank].last_mut().unwrap().2 = Some(time + 0.5);
        }
        if done == before {
            break;
        }
    }
    let record_of = |rank: usize| {
        let calls = done[rank].iter().map(|(step, entered, left)| {
            let (seq, entered, left) = (numbered[*step], entered + clocks[rank], left.map(|left| left + clocks[rank]));
            match &program[*step] {
                Step::Meet(ranks) => call("all_reduce", ranks, "dp_shard", seq, entered, left),
                Step::Message(from, to) => {
                    message(if *from == rank { "send" } else { "recv" }, (*from, *to), "pp", seq, entered, left)
                }
            }
        });
        let aborted = (end == End::Panics && rank == stopped)
            .then(|| Aborted { at: 1000.0 + clocks[rank], reason: "panicked: out of paper".into() });
        FlightRecord { written: 1000.0 + clocks[rank], aborted, ..record(rank, n, calls.collect()) }
    };
    (0..n).filter(|rank| end != End::Killed || *rank != stopped).map(record_of).collect()
}

fn step(n: usize) -> impl Strategy<Value = Step> {
    let meet = prop::sample::subsequence((0..n).collect::<Vec<_>>(), 2..=n).prop_map(Step::Meet);
    let pair = prop::sample::subsequence((0..n).collect::<Vec<_>>(), 2..=2);
    let message = (pair, any::<bool>()).prop_map(|(ranks, turned)| match turned {
        true => Step::Message(ranks[1], ranks[0]),
        false => Step::Message(ranks[0], ranks[1]),
    });
    prop_oneof![2 => meet, 1 => message]
}

proptest! {
    #[test]
    fn the_rank_that_stops_in_any_program_is_the_first_cause(
        (n, program) in (2usize..7).prop_flat_map(|n| (Just(n), prop::collection::vec(step(n), 1..30))),
        (stopped, calls) in (0usize..7, 0usize..10),
        end in prop::sample::select(vec![End::Outside, End::Killed, End::Panics]),
        clocks in prop::collection::vec(0.0..1e6f64, 7..=7),
    ) {
        let records = run(n, &program, stopped % n, calls, end, &clocks);
        let diagnosis = diagnose(&records);
        let somebody_waits = records.iter().flat_map(|record| &record.calls).any(|call| call.left.is_none());
        match (end, &diagnosis.findings[0]) {
            (End::Outside, Finding::Healthy) => prop_assert!(!somebody_waits),
            (End::Killed, Finding::Healthy) => {
                let is_missed = matches!(diagnosis.findings[1], Finding::NoRecord { .. });
                prop_assert!(is_missed && !somebody_waits);
            }
            (End::Outside, Finding::Absent(_)) | (End::Killed, Finding::NoRecord { .. }) | (End::Panics, Finding::Failed { .. }) => {
                prop_assert_eq!(diagnosis.findings[0].suspects(), [stopped % n]);
            }
            _ => prop_assert!(false, "{}", diagnosis),
        }
    }
}
