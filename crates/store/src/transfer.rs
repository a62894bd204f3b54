//! Parts of files on their way to and from a store.

use crate::StoreError;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::time::{Duration, Instant};

/// Most parts of a file under way at once.
const PARTS_AT_ONCE: usize = 8;
/// Once a part takes this long, fewer are under way at once.
pub(crate) const SLOW: Duration = Duration::from_secs(15);

/// Transfers parts of a file, and hands each to `done`. The first goes alone. More go at once only while none is `slow`:
/// parts share the speed of a link, and over a slow one, none of many would be there in time.
pub(crate) async fn transfer<T>(
    mut parts: impl Iterator<Item = impl Future<Output = Result<T, StoreError>>>,
    slow: Duration,
    mut done: impl FnMut(T) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let (mut under_way, mut at_once) = (FuturesUnordered::new(), 1);
    loop {
        while under_way.len() < at_once
            && let Some(part) = parts.next()
        {
            let began = Instant::now();
            under_way.push(async move { Ok((part.await?, began.elapsed() >= slow)) });
        }
        let Some(part) = under_way.next().await else { return Ok(()) };
        let (part, is_slow) = part?;
        at_once = if is_slow { (at_once / 2).max(1) } else { (at_once + 1).min(PARTS_AT_ONCE) };
        done(part)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::runtime::Builder;

    #[test]
    fn more_parts_go_at_once_unless_they_are_slow_and_an_error_ends_it() {
        let most_at_once = |slow: Duration| {
            let (under_way, most, mut got) = (Cell::new(0), Cell::new(0), vec![]);
            let parts = (0..40).map(|number| {
                let (under_way, most) = (&under_way, &most);
                async move {
                    under_way.set(under_way.get() + 1);
                    most.set(most.get().max(under_way.get()));
                    tokio::task::yield_now().await;
                    under_way.set(under_way.get() - 1);
                    Ok(number)
                }
            });
            let done = |number| {
                got.push(number);
                Ok(())
            };
            Builder::new_current_thread().build().unwrap().block_on(transfer(parts, slow, done)).unwrap();
            got.sort_unstable();
            assert_eq!(got, (0..40).collect::<Vec<_>>());
            most.get()
        };
        assert_eq!((most_at_once(Duration::MAX), most_at_once(Duration::ZERO)), (PARTS_AT_ONCE, 1));
        let missing = || StoreError::Missing { url: "s3://b/a".into() };
        let parts = (0..40).map(|number| async move { if number == 9 { Err(missing()) } else { Ok(()) } });
        let transferred = transfer(parts, SLOW, |()| Ok(()));
        assert!(Builder::new_current_thread().build().unwrap().block_on(transferred).is_err());
    }
}
