//! Ranks in persistent threads, for measuring collectives.

use burn::tensor::Device;
use comm::{CommError, Communicator, TIMEOUT, run_ranks};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Rank threads that live through a whole measurement and run the rounds that they are given.
pub struct RankThreads {
    orders: Vec<mpsc::Sender<Order>>,
    times: mpsc::Receiver<Duration>,
    group: Option<JoinHandle<()>>,
}

/// One round of a rank. `Work` creates it on each rank before the clock starts.
pub type Round = Box<dyn FnMut()>;

type Work = Arc<dyn Fn(&Communicator) -> Round + Send + Sync>;

struct Order {
    work: Work,
    rounds: u64,
}

impl RankThreads {
    /// Starts ranks on the CPU.
    pub fn start(ranks: usize) -> Self {
        let (orders, queues): (Vec<_>, Vec<_>) = (0..ranks).map(|_| mpsc::channel::<Order>()).unzip();
        let queues: Vec<_> = queues.into_iter().map(Mutex::new).collect();
        let (sender, times) = mpsc::channel();
        let group = thread::spawn(move || {
            let sender = Mutex::new(sender);
            let run = run_ranks(vec![Device::flex(); ranks], TIMEOUT, move |comm| {
                let sender = sender.lock().expect("nobody panics with it").clone();
                for order in queues[comm.rank()].lock().expect("each rank has its own").iter() {
                    let _ = sender.send(time(&comm, &order)?); // after the benchmark, nobody waits for this
                }
                Ok::<_, CommError>(())
            });
            run.expect("benchmarks make no wrong calls");
        });
        Self { orders, times, group: Some(group) }
    }

    /// The slowest rank's time for `rounds` rounds between two barriers. `work` creates a rank's round, with its
    /// tensors.
    ///
    /// # Panics
    /// If a rank fails.
    pub fn time(&self, rounds: u64, work: impl Fn(&Communicator) -> Round + Send + Sync + 'static) -> Duration {
        let work: Work = Arc::new(work);
        for queue in &self.orders {
            queue.send(Order { work: work.clone(), rounds }).expect("the ranks live as long as this");
        }
        let times = self.orders.iter().map(|_| self.times.recv().expect("no rank fails"));
        times.max().expect("there are ranks")
    }
}

impl Drop for RankThreads {
    fn drop(&mut self) {
        self.orders.clear();
        if let Some(group) = self.group.take() {
            let _ = group.join();
        }
    }
}

fn time(comm: &Communicator, order: &Order) -> Result<Duration, CommError> {
    let mut round = (order.work)(comm);
    comm.barrier()?;
    let started = Instant::now();
    for _ in 0..order.rounds {
        round();
    }
    comm.barrier()?;
    Ok(started.elapsed())
}
