//! Calls on emulated cards, with one thread a rank: results against plain sums, and how a failed check frees the card.

use cudarc::driver::result::{
    ctx, device, malloc_sync, memcpy_dtoh_sync, memcpy_htod_sync, memset_d8_async, primary_ctx, stream,
};
use nccl::{Call, Communicator, Element, NcclError, Reduction, UniqueId};
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const RANKS: usize = 3;

#[derive(Debug)]
enum Failure {
    Nccl(NcclError),
    TooLate,
}

impl From<NcclError> for Failure {
    fn from(error: NcclError) -> Self {
        Self::Nccl(error)
    }
}

/// Lets one test at a time use the cards, which are emulated.
fn alone() -> MutexGuard<'static, ()> {
    static CARDS: Mutex<()> = Mutex::new(());
    static START: Once = Once::new();
    let guard = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
    START.call_once(|| {
        let test = std::env::current_exe().unwrap();
        for name in ["libemulated_cuda.so", "libemulated_nccl.so"] {
            let file = CString::new(test.parent().unwrap().join(name).to_str().unwrap()).unwrap();
            // SAFETY: no other thread reads the environment yet. Later, `dlopen` finds the libraries by the names that
            // they were linked with, libcuda.so.1 and libnccl.so.2.
            unsafe {
                std::env::set_var("KILN_EMULATED_CARDS", "4");
                std::env::set_var("KILN_EMULATED_MEMORY", "64M");
                assert!(!libc::dlopen(file.as_ptr(), libc::RTLD_NOW).is_null(), "{file:?}");
            }
        }
        cudarc::driver::result::init().unwrap();
    });
    guard
}

/// A check that fails after this time.
fn within(time: Duration) -> impl FnMut() -> Result<(), Failure> {
    let start = Instant::now();
    move || if start.elapsed() < time { Ok(()) } else { Err(Failure::TooLate) }
}

fn patience() -> impl FnMut() -> Result<(), Failure> {
    within(Duration::from_secs(30))
}

fn enter(card: usize) {
    // SAFETY: the card exists, and its context is never released.
    unsafe { ctx::set_current(primary_ctx::retain(device::get(card as i32).unwrap()).unwrap()).unwrap() }
}

fn put(values: &[f32]) -> u64 {
    // SAFETY: the memory has this length.
    unsafe {
        let address = malloc_sync(4 * values.len().max(1)).unwrap();
        memcpy_htod_sync(address, values).unwrap();
        ctx::synchronize().unwrap();
        address
    }
}

fn get(address: u64, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    // SAFETY: the memory has this length.
    unsafe { memcpy_dtoh_sync(&mut values, address).unwrap() };
    values
}

/// Runs one thread a rank, each with its card and a communicator of all.
fn ranks<T: Send>(work: impl Fn(usize, Communicator) -> T + Sync) -> Vec<T> {
    let id = UniqueId::new().unwrap();
    thread::scope(|scope| {
        let rank = |rank: usize| {
            let work = &work;
            scope.spawn(move || work(rank, Communicator::new(id, rank, RANKS, rank, patience()).unwrap()))
        };
        let threads: Vec<_> = (0..RANKS).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs calls whose memory stays.
fn run(comm: &mut Communicator, calls: &[Call], check: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    // SAFETY: no test frees memory.
    unsafe { comm.run(calls, || {}, check) }
}

#[test]
fn calls_give_what_plain_sums_give() {
    let _cards = alone();
    ranks(|rank, mut comm| {
        let (element, many) = (Element::F32, 2 * RANKS);
        let of_rank = |rank: usize| (0..many).map(|i| (10 * rank + i) as f32).collect::<Vec<_>>();
        let total: Vec<f32> = (0..many).map(|i| (0..RANKS).map(|rank| of_rank(rank)[i]).sum()).collect();
        let (from, to) = (put(&of_rank(rank)), put(&[0.0; RANKS * 2 * RANKS]));
        let mut done = |call| run(&mut comm, &[call], patience()).unwrap();
        done(Call::AllReduce { from, to, count: many, element, how: Reduction::Sum });
        assert_eq!(get(to, many), total);
        done(Call::AllReduce { from, to, count: many, element, how: Reduction::Max });
        assert_eq!(get(to, many), of_rank(RANKS - 1));
        done(Call::ReduceScatter { from, to, count: 2, element, how: Reduction::Sum });
        assert_eq!(get(to, 2), total[2 * rank..2 * rank + 2]);
        done(Call::AllGather { from, to, count: many, element });
        assert_eq!(get(to, RANKS * many), (0..RANKS).flat_map(of_rank).collect::<Vec<_>>());
        assert_eq!((comm.rank(), comm.size()), (rank, RANKS));
    });
}

#[test]
fn messages_of_one_group_have_other_lengths_for_each_rank() {
    let _cards = alone();
    let count = |from: usize, to: usize| (from + 2 * to) % 4 * 5;
    ranks(|rank, mut comm| {
        let sent = |from: usize, to: usize| vec![(10 * from + to) as f32; count(from, to)];
        let outgoing: Vec<_> = (0..RANKS).map(|to| put(&sent(rank, to))).collect();
        let incoming: Vec<_> = (0..RANKS).map(|from| put(&vec![0.0; count(from, rank)])).collect();
        let send = |to: usize| Call::Send { from: outgoing[to], bytes: 4 * count(rank, to), to };
        let recv = |from: usize| Call::Recv { to: incoming[from], bytes: 4 * count(from, rank), from };
        let calls: Vec<_> = (0..RANKS).flat_map(|peer| [send(peer), recv(peer)]).collect();
        run(&mut comm, &calls, patience()).unwrap();
        for (from, address) in incoming.into_iter().enumerate() {
            assert_eq!(get(address, count(from, rank)), sent(from, rank));
        }
    });
}

/// Streams of an emulated card run late: without the wait, most rounds would see the zeros.
#[test]
fn calls_come_after_all_that_was_queued_on_the_card() {
    let _cards = alone();
    ranks(|_, mut comm| {
        let (other, memory) = (stream::create(stream::StreamKind::NonBlocking).unwrap(), put(&[0.0]));
        for round in 1..20u8 {
            // SAFETY: the memory has four bytes.
            unsafe { memset_d8_async(memory, round, 4, other).unwrap() };
            let how = Reduction::Max;
            let call = Call::AllReduce { from: memory, to: memory, count: 4, element: Element::U8, how };
            run(&mut comm, &[call], patience()).unwrap();
            assert_eq!(get(memory, 1)[0].to_bits().to_ne_bytes(), [round; 4]);
        }
    });
}

#[test]
fn a_failed_check_frees_the_card_and_ends_the_communicator() {
    let _cards = alone();
    ranks(|rank, mut comm| {
        let memory = put(&[1.0]);
        let call = Call::AllReduce { from: memory, to: memory, count: 1, element: Element::F32, how: Reduction::Sum };
        if rank == 1 {
            // This rank does not come. It leaves when the others have given up.
            thread::sleep(Duration::from_millis(600));
            return;
        }
        let failure = run(&mut comm, &[call], within(Duration::from_millis(300))).unwrap_err();
        // A rank whose neighbour has aborted may learn of that first.
        assert!(matches!(failure, Failure::TooLate | Failure::Nccl(NcclError::Call { code: 6, .. })), "{failure:?}");
        ctx::synchronize().unwrap();
        let later = run(&mut comm, &[call], patience()).unwrap_err();
        assert!(matches!(later, Failure::Nccl(NcclError::Aborted(card)) if card == rank), "{later:?}");
    });
}

#[test]
fn joining_without_all_ranks_ends_and_a_shared_card_is_refused() {
    let _cards = alone();
    let id = UniqueId::new().unwrap();
    let alone = Communicator::new(id, 0, 2, 0, within(Duration::from_millis(100)));
    assert!(matches!(alone.err(), Some(Failure::TooLate)));
    let id = UniqueId::new().unwrap();
    thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let failure = Communicator::new(id, rank, 2, 0, patience()).err().unwrap();
                assert!(matches!(&failure, Failure::Nccl(NcclError::Call { code: 5, .. })), "{failure:?}");
            });
        }
    });
    enter(0);
    ctx::synchronize().unwrap();
}
