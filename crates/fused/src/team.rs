use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `f` with `0..tasks`, on all threads of the current pool.
pub(crate) fn for_each(tasks: usize, f: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                task if task < tasks => f(task),
                _ => return,
            }
        }
    };
    let workers = rayon::current_num_threads().min(tasks);
    if workers <= 1 {
        return work();
    }
    rayon::in_place_scope(|scope| {
        for _ in 1..workers {
            scope.spawn(|_| work());
        }
        work();
    });
}
