//! Calls into libraries that panic where they should return an error.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What `call` returns, or None if it panics. Its panic is not printed; those of other threads are printed as usual.
///
/// `call` must not leave half-done state behind that is used afterwards.
pub fn catch<T>(call: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                print(panic);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    QUIET.set(before);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::{env, thread};

    #[test]
    #[ignore = "run by the next"]
    fn panics_twice() {
        assert!(catch(|| panic!("in a whisper")).is_none());
        assert!(thread::spawn(|| panic!("aloud")).join().is_err());
    }

    #[test]
    fn only_the_panic_that_is_caught_is_not_printed() {
        let arguments = ["--ignored", "--exact", "quiet::tests::panics_twice", "--nocapture"];
        let output = Command::new(env::current_exe().unwrap()).args(arguments).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && printed.contains("aloud") && !printed.contains("whisper"), "{printed}");
    }
}
