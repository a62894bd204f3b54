//! The state of an `mbarrier` object, 64 bits of shared memory, as the manual's operations change it.
//!
//! The hardware's encoding is opaque; this one is
//!
//! ```text
//!  63   62 61   60        40   39        20   19         0
//! +---+-------+-------------+--------------+-------------+
//! | 1 | phase | transactions|   pending    |  expected   |     transactions plus 2^20
//! +---+-------+-------------+--------------+-------------+
//! ```
//!
//! so that memory of zeros is no barrier. A state that `arrive` returns is the object before the arrival.

use std::fmt;

/// Largest count of arrivals, and of bytes either way.
const LIMIT: u32 = (1 << 20) - 1;

/// What an operation on an `mbarrier` object may not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadBarrier {
    /// The 64 bits are no object: `mbarrier.init` is missing, or something else was written there.
    NotInitialised,
    /// A count of arrivals outside of 1 to 2^20 - 1.
    Count(u32),
    /// More arrivals than are pending.
    TooMany {
        /// Arrivals of the operation.
        count: u32,
        /// Arrivals that the phase still waits for.
        pending: u32,
    },
    /// More bytes expected or completed than the object can count, 2^20 - 1.
    Transactions(i64),
    /// A `.noComplete` arrival that completes the phase.
    Completes,
    /// A wait for a state that is neither of this phase nor of the one before.
    OldState,
}

impl fmt::Display for BadBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialised => {
                write!(f, "there is no mbarrier object at this address: initialise it with mbarrier.init")
            }
            Self::Count(count) => write!(f, "a count of {count} arrivals is outside of 1 to {LIMIT}"),
            Self::TooMany { count, pending } => {
                write!(f, "{count} arrivals on an mbarrier object that waits for {pending} in this phase")
            }
            Self::Transactions(bytes) => write!(f, "{bytes} pending bytes are outside of -{LIMIT} to {LIMIT}"),
            Self::Completes => write!(f, "an arrival with .noComplete completes the phase"),
            Self::OldState => write!(f, "the state that is waited for is older than the phase before this one"),
        }
    }
}

impl std::error::Error for BadBarrier {}

/// An `mbarrier` object.
///
/// A phase completes when no arrivals and no bytes are pending; then the pending arrivals are the expected ones again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mbarrier {
    /// Arrivals of a phase.
    pub expected: u32,
    /// Arrivals that this phase still waits for.
    pub pending: u32,
    /// Bytes that are expected and not there; negative where they came before they were expected.
    pub transactions: i32,
    /// Phases completed, modulo 4.
    pub phase: u32,
}

impl Mbarrier {
    /// `mbarrier.init`
    pub fn new(count: u32) -> Result<Self, BadBarrier> {
        in_range(count)?;
        Ok(Self { expected: count, pending: count, transactions: 0, phase: 0 })
    }

    /// The object that these bits are.
    pub fn decode(bits: u64) -> Result<Self, BadBarrier> {
        if bits >> 63 == 0 {
            return Err(BadBarrier::NotInitialised);
        }
        let field = |from: u32, length: u32| (bits >> from) as u32 & ((1 << length) - 1);
        let transactions = field(40, 21) as i32 - (1 << 20);
        Ok(Self { expected: field(0, 20), pending: field(20, 20), transactions, phase: field(61, 2) })
    }

    /// The bits of this object, of which `mbarrier.inval` makes 0.
    pub fn encode(&self) -> u64 {
        let transactions = (self.transactions + (1 << 20)) as u64;
        1 << 63
            | u64::from(self.phase) << 61
            | transactions << 40
            | u64::from(self.pending) << 20
            | u64::from(self.expected)
    }

    /// `mbarrier.arrive`; returns the state.
    pub fn arrive(&mut self, count: u32) -> Result<u64, BadBarrier> {
        let state = self.encode();
        self.pending = self.without(count)?;
        self.advance();
        Ok(state)
    }

    /// `mbarrier.arrive.noComplete`; returns the state.
    pub fn arrive_no_complete(&mut self, count: u32) -> Result<u64, BadBarrier> {
        let state = self.encode();
        let pending = self.without(count)?;
        if pending == 0 && self.transactions == 0 {
            return Err(BadBarrier::Completes);
        }
        self.pending = pending;
        Ok(state)
    }

    /// `mbarrier.arrive_drop`: arrives, and is not expected again; returns the state.
    pub fn arrive_drop(&mut self, count: u32) -> Result<u64, BadBarrier> {
        let state = self.encode();
        (self.pending, self.expected) = (self.without(count)?, self.without_expected(count)?);
        self.advance();
        Ok(state)
    }

    /// `mbarrier.arrive_drop.noComplete`; returns the state.
    pub fn arrive_drop_no_complete(&mut self, count: u32) -> Result<u64, BadBarrier> {
        let expected = self.without_expected(count)?;
        let state = self.arrive_no_complete(count)?;
        self.expected = expected;
        Ok(state)
    }

    /// `mbarrier.expect_tx`, and the first half of `mbarrier.arrive.expect_tx`: this phase waits for so many bytes more.
    pub fn expect(&mut self, bytes: u32) -> Result<(), BadBarrier> {
        self.transact(i64::from(bytes))
    }

    /// `mbarrier.complete_tx`, and what an asynchronous copy does when its bytes are there.
    pub fn complete(&mut self, bytes: u32) -> Result<(), BadBarrier> {
        self.transact(-i64::from(bytes))
    }

    /// `cp.async.mbarrier.arrive` without `.noinc`, when it is executed: one arrival more, by the copies when they are done.
    pub fn add_pending(&mut self) -> Result<(), BadBarrier> {
        in_range(self.pending + 1)?;
        self.pending += 1;
        Ok(())
    }

    /// `mbarrier.test_wait`: whether the phase of this state is complete.
    pub fn is_complete(&self, state: u64) -> Result<bool, BadBarrier> {
        match self.phase.wrapping_sub(Self::decode(state)?.phase) % 4 {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadBarrier::OldState),
        }
    }

    /// `mbarrier.test_wait.parity`: whether the phase of this parity is complete. Of a fresh object the phase before counts as complete,
    /// and its parity is 1.
    pub fn is_parity_complete(&self, parity: u32) -> bool {
        self.phase % 2 != parity % 2
    }

    /// `mbarrier.pending_count`: the arrivals that were pending in this state.
    pub fn pending_count(state: u64) -> Result<u32, BadBarrier> {
        Ok(Self::decode(state)?.pending)
    }

    fn without(&self, count: u32) -> Result<u32, BadBarrier> {
        in_range(count)?;
        self.pending.checked_sub(count).ok_or(BadBarrier::TooMany { count, pending: self.pending })
    }

    fn without_expected(&self, count: u32) -> Result<u32, BadBarrier> {
        self.expected.checked_sub(count).ok_or(BadBarrier::TooMany { count, pending: self.expected })
    }

    fn transact(&mut self, bytes: i64) -> Result<(), BadBarrier> {
        let transactions = i64::from(self.transactions) + bytes;
        if transactions.unsigned_abs() > u64::from(LIMIT) {
            return Err(BadBarrier::Transactions(transactions));
        }
        self.transactions = transactions as i32;
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        if self.pending == 0 && self.transactions == 0 {
            self.pending = self.expected;
            self.phase = (self.phase + 1) % 4;
        }
    }
}

fn in_range(count: u32) -> Result<(), BadBarrier> {
    if (1..=LIMIT).contains(&count) { Ok(()) } else { Err(BadBarrier::Count(count)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_phase_completes_when_arrivals_and_bytes_are_there() {
        let mut barrier = Mbarrier::new(2).unwrap();
        assert!(!barrier.is_parity_complete(0));
        assert!(barrier.is_parity_complete(1));
        barrier.expect(4096).unwrap();
        let state = barrier.arrive(1).unwrap();
        assert_eq!(Mbarrier::pending_count(state), Ok(2));
        barrier.complete(1024).unwrap();
        barrier.arrive(1).unwrap();
        assert_eq!(barrier.is_complete(state), Ok(false));
        assert_eq!(barrier.arrive(1), Err(BadBarrier::TooMany { count: 1, pending: 0 }));
        barrier.complete(3072).unwrap();
        assert_eq!(barrier.is_complete(state), Ok(true));
        assert!(barrier.is_parity_complete(0));
        assert_eq!(barrier, Mbarrier { expected: 2, pending: 2, transactions: 0, phase: 1 });
    }

    #[test]
    fn bytes_may_come_before_they_are_expected() {
        let mut barrier = Mbarrier::new(1).unwrap();
        barrier.complete(16).unwrap();
        assert_eq!(barrier.transactions, -16);
        barrier.expect(16).unwrap();
        assert_eq!(barrier.phase, 0);
        barrier.arrive(1).unwrap();
        assert_eq!(barrier.phase, 1);
    }

    #[test]
    fn an_arrival_by_copies_is_one_more_unless_it_is_among_the_expected() {
        let mut barrier = Mbarrier::new(1).unwrap();
        barrier.add_pending().unwrap();
        barrier.arrive(1).unwrap();
        assert_eq!((barrier.phase, barrier.pending), (0, 1));
        barrier.arrive(1).unwrap();
        assert_eq!(barrier, Mbarrier { expected: 1, pending: 1, transactions: 0, phase: 1 });
        for phase in 1..6u32 {
            assert!(barrier.is_parity_complete(phase - 1) && !barrier.is_parity_complete(phase));
            barrier.arrive(1).unwrap();
        }
    }

    #[test]
    fn a_dropped_arrival_is_not_expected_again() {
        let mut barrier = Mbarrier::new(3).unwrap();
        let state = barrier.arrive_drop(1).unwrap();
        assert_eq!(Mbarrier::decode(state), Mbarrier::new(3));
        barrier.arrive(2).unwrap();
        assert_eq!(barrier, Mbarrier { expected: 2, pending: 2, transactions: 0, phase: 1 });
        barrier.arrive_drop_no_complete(1).unwrap();
        assert_eq!(barrier.arrive_no_complete(1), Err(BadBarrier::Completes));
        barrier.arrive(1).unwrap();
        assert_eq!(barrier.expected, 1);
    }

    #[test]
    fn zeros_are_no_barrier_and_states_grow_old() {
        assert_eq!(Mbarrier::decode(0), Err(BadBarrier::NotInitialised));
        assert_eq!(Mbarrier::new(0), Err(BadBarrier::Count(0)));
        let mut barrier = Mbarrier::new(1).unwrap();
        let state = barrier.arrive(1).unwrap();
        barrier.arrive(1).unwrap();
        assert_eq!(barrier.is_complete(state), Err(BadBarrier::OldState));
        assert_eq!(barrier.expect(1 << 20), Err(BadBarrier::Transactions(1 << 20)));
    }

    proptest! {
        #[test]
        fn bits_are_the_object(expected in 0u32..1 << 20, pending in 0u32..1 << 20, transactions in -(LIMIT as i32)..=LIMIT as i32, phase in 0u32..4) {
            let barrier = Mbarrier { expected, pending, transactions, phase };
            prop_assert_eq!(Mbarrier::decode(barrier.encode()), Ok(barrier));
        }
    }
}
