//! Checks how every public function rejects invalid arguments, and what it returns for empty ones.

mod cases;

use proptest::prelude::*;
use std::collections::BTreeSet;
use test_kit::arguments::{check, exported};

#[test]
fn every_public_function_has_a_case_or_a_reason() {
    let known = cases::CASES.iter().map(|case| case.0).chain(cases::WITHOUT.iter().map(|without| without.0));
    let (exported, known) = (exported("moe"), known.map(String::from).collect::<BTreeSet<String>>());
    let [missing, gone] = [&exported - &known, &known - &exported];
    assert!(
        missing.is_empty() && gone.is_empty(),
        "tests/arguments/cases.rs lacks {missing:?}: add a case or a reason; it has {gone:?}, which is not exported"
    );
}

proptest! {
    // Seeds cannot be shrunk.
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 0, failure_persistence: None, ..Default::default() })]

    #[test]
    fn arguments_are_refused_by_name_or_every_result_is_written(seed: u64) {
        // A layer calls functions of the crate below, whose messages name them.
        let names = &exported("moe") | &exported("fused");
        let wrong: Vec<String> = cases::CASES.iter().filter_map(|case| check(*case, seed, &names).err()).collect();
        prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
