//! Each check, where it fires and where it does not.

mod common;

use common::Card;
use ptx::{Fault, FaultKind, Options};

fn fault(body: &str, threads: u32, words: usize) -> Fault {
    let card = Card::kernel(body);
    let out = card.buffer(&vec![0u32; words]);
    card.run(threads, out).expect_err("a fault")
}

fn fine(body: &str, threads: u32, words: usize) -> Vec<u32> {
    let card = Card::kernel(body);
    let out = card.buffer(&vec![0u32; words]);
    card.run(threads, out).unwrap_or_else(|fault| panic!("{fault}"));
    card.read(out, words)
}

/// Address of the thread's word: `%rd1` in global memory, `%r1` in shared memory.
const WORD: &str = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; shl.b32 %r1, %r0, 2; mov.u32 %r2, dynamic; add.s32 %r1, %r1, %r2;\n";

#[test]
fn an_access_outside_of_an_allocation_names_thread_line_and_allocation() {
    let body = format!("{WORD}st.global.u32 [%rd1], %r0; ret;");
    assert_eq!(fine(&body, 64, 64)[63], 63);
    let found = fault(&body, 70, 64);
    assert_eq!(found.kind(), FaultKind::OutOfBounds);
    let place = found.place().expect("a place");
    assert_eq!((place.kernel.as_str(), place.thread), ("k", [64, 0, 0]));
    assert!(place.text.contains("st.global.u32") && found.what().contains("allocation #1 of 256 bytes"), "{found}");
    assert_eq!(fault("st.shared.u32 [1024], %r0;", 1, 1).kind(), FaultKind::OutOfBounds);
    assert_eq!(fault("ld.local.u32 %r1, [64];", 1, 1).kind(), FaultKind::OutOfBounds);
}

/// As compilers make an atomic addition to 16 bits: the word around them is read and exchanged.
#[test]
fn strong_accesses_of_a_half_written_word_and_exchanges_are_fine() {
    let card = Card::kernel(
        "mov.b16 %h1, 7; st.global.b16 [%rd0], %h1; ld.relaxed.gpu.global.b32 %r1, [%rd0];
         add.u32 %r2, %r1, 1; atom.global.cas.b32 %r3, [%rd0], %r1, %r2; ret;",
    );
    let fresh = card.memory.alloc(256, 256, "test").unwrap();
    card.run(1, fresh).unwrap_or_else(|fault| panic!("{fault}"));
    let mut low = [0; 2];
    card.memory.read(fresh, &mut low).unwrap();
    assert_eq!(low, [8, 0]);
    let used = "setp.eq.u32 %p1, %r1, 0; @%p1 bra L; L: ret;";
    let plain = format!("mov.b16 %h1, 7; st.global.b16 [%rd0], %h1; ld.global.b32 %r1, [%rd0]; {used}");
    assert_eq!(fine("atom.shared.exch.b32 %r1, [dynamic], %r0; ret;", 1, 1), [0]);
    for body in [plain, format!("ld.relaxed.gpu.global.b32 %r1, [%rd0]; {used}")] {
        let card = Card::kernel(&body);
        let fresh = card.memory.alloc(256, 256, "test").unwrap();
        assert_eq!(card.run(1, fresh).expect_err("a fault").kind(), FaultKind::Uninitialised, "{body}");
    }
}

#[test]
fn alignment_uninitialised_and_freed_memory() {
    assert_eq!(fault("ld.global.u32 %r1, [%rd0+2];", 1, 4).kind(), FaultKind::Misaligned);
    assert_eq!(fault("ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd0+4];", 1, 8).kind(), FaultKind::Misaligned);
    let mut card = Card::kernel("ld.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L; L: ret;");
    let out = card.memory.alloc(16, 16, "test").unwrap();
    assert_eq!(card.run(32, out).unwrap_err().kind(), FaultKind::Uninitialised);
    card.options.uninitialised = false;
    card.run(32, out).unwrap();
    card.memory.free(out).unwrap();
    assert_eq!(card.run(32, out).unwrap_err().kind(), FaultKind::UseAfterFree);
}

/// `%r3` is read from memory that nothing has written; `used` comes behind.
fn undefined(space: &str, used: &str) -> Result<Vec<bool>, Fault> {
    let load = if space == "shared" { "ld.shared.u32 %r3, [%r1];" } else { "ld.global.u32 %r3, [%rd1+128];" };
    let body = format!("{WORD}st.global.u32 [%rd1], %r0;\n{load}\n{used}\nret;");
    let card = Card::kernel(&body);
    let out = card.memory.alloc(512, 16, "test").unwrap();
    card.run(32, out)?;
    Ok((0..64).map(|word| card.memory.is_written(out + 4 * word, 4)).collect())
}

#[test]
fn what_depends_on_memory_that_nothing_has_written() {
    for space in ["global", "shared"] {
        for (used, what) in [
            ("add.u32 %r4, %r3, 1; setp.eq.u32 %p1, %r4, 0; @%p1 bra L; L:", "whether this is executed"),
            ("cvt.u64.u32 %rd2, %r3; add.u64 %rd2, %rd2, %rd0; ld.global.u32 %r4, [%rd2];", "an address"),
            ("atom.global.add.u32 %r4, [%rd1], %r3;", "an atomic operation"),
            ("setp.eq.u32 %p1, %r3, 0; vote.sync.any.pred %p2, %p1, -1;", "a vote"),
            ("st.shared.u32 [%r1], %r3; ld.shared.u32 %r4, [%r1]; setp.eq.u32 %p1, %r4, 0; @%p1 bra L; L:", "whether"),
        ] {
            let found = undefined(space, used).expect_err(used);
            assert_eq!(found.kind(), FaultKind::Uninitialised, "{found}");
            assert!(found.what().starts_with(what) && found.what().contains("read of 4 bytes"), "{found}");
        }
        // What is thrown away does no harm: here each lane but the first takes another value.
        let chosen = "setp.eq.u32 %p1, %r0, 0; selp.u32 %r3, %r3, 7, %p1; st.global.u32 [%rd1], %r3;";
        let written = undefined(space, chosen).unwrap();
        assert!(written.iter().enumerate().all(|(word, written)| *written == (1..32).contains(&word)), "{written:?}");
        // A comparison whose other half has decided.
        undefined(space, "setp.gt.u32 %p1, %r0, 99; setp.eq.and.u32 %p2, %r3, 0, %p1; @%p2 bra L; L:").unwrap();
        let both = "setp.gt.u32 %p1, %r0, 99; setp.eq.u32 %p2, %r3, 0; and.pred %p3, %p1, %p2; @%p3 bra L; L:";
        undefined(space, both).unwrap();
    }
}

#[test]
fn a_race_between_warps_fires_without_a_barrier_only() {
    // Each thread reads the word of a thread of the other warp.
    let exchange = |barrier: &str| {
        format!(
            "{WORD}st.shared.u32 [%r1], %r0;\n{barrier}\nxor.b32 %r3, %r1, 128;\nld.shared.u32 %r4, [%r3];\nst.global.u32 [%rd1], %r4; ret;"
        )
    };
    let found = fine(&exchange("bar.sync 0;"), 64, 64);
    assert!(found.iter().enumerate().all(|(i, value)| *value == i as u32 ^ 32));
    assert_eq!(fault(&exchange(""), 64, 64).kind(), FaultKind::Race);
    // A write after a read of the other warp.
    let twice = |barrier: &str| {
        format!("{}\n{barrier}\nst.shared.u32 [%r1], %r4; ret;", exchange("bar.sync 0;").replace("ret;", ""))
    };
    fine(&twice("bar.sync 0;"), 64, 64);
    let found = fault(&twice(""), 64, 64);
    assert_eq!(found.kind(), FaultKind::Race, "{found}");
    // Within a warp, and bytes beside each other, there is none.
    fine(&format!("{WORD}st.shared.u32 [%r1], %r0; xor.b32 %r3, %r1, 4; st.shared.u32 [%r3], %r0; ret;"), 32, 32);
    fine(&format!("{WORD}mul.lo.u32 %r3, %r0, 33; and.b32 %r3, %r3, 63; st.shared.u8 [%r3], %r0; ret;"), 64, 1);
}

#[test]
fn barriers_that_not_all_reach() {
    // Warp 1 waits at another barrier.
    let body = "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra L;\nbar.sync 1;\nret;\nL: bar.sync 2;\nret;";
    let found = fault(body, 64, 1);
    assert_eq!(found.kind(), FaultKind::Barrier);
    assert!(found.what().contains("never complete"), "{found}");
    fine(&body.replace("bar.sync 1;", "bar.sync 1, 32;").replace("bar.sync 2;", "bar.sync 2, 32;"), 64, 1);
    // Halves of a warp at two places.
    let body = "setp.lt.u32 %p1, %r0, 16;\n@%p1 bra L;\nbar.sync 0;\nret;\nL: bar.sync 0;\nret;";
    let found = fault(body, 32, 1);
    assert!(found.kind() == FaultKind::Barrier && found.what().contains("a warp reaches barrier 0"), "{found}");
    let mut card = Card::kernel(body);
    card.options.divergent_barriers = false;
    card.run(32, card.buffer(&[0u32])).unwrap();
    // Threads that have exited do not count, unless asked for.
    let body = "setp.lt.u32 %p1, %r0, 32;\n@%p1 bra L;\nret;\nL: bar.sync 0;\nret;";
    let mut card = Card::kernel(body);
    card.run(64, card.buffer(&[0u32])).unwrap();
    card.options.exited_barriers = true;
    assert_eq!(card.run(64, card.buffer(&[0u32])).unwrap_err().kind(), FaultKind::Barrier);
}

#[test]
fn stores_of_tensor_cores_by_a_part_of_a_warp() {
    let store = "wmma.store.d.sync.aligned.row.m16n16k16.global.s32";
    let registers = ["%r0"; 8].join(", ");
    let body = format!("setp.ne.u32 %p1, %r0, 0;\n@%p1 bra L;\n{store} [%rd0], {{{registers}}}, 16;\nL: ret;");
    let mut card = Card::kernel(&body);
    let found = card.run(32, card.buffer(&[7u32; 256])).unwrap_err();
    assert!(found.kind() == FaultKind::Mask && found.what().contains("all 32 lanes"), "{found}");
    card.options.partial_stores = false;
    let out = card.buffer(&[7u32; 256]);
    card.run(32, out).unwrap();
    let stored: Vec<u32> = card.read(out, 256);
    assert_eq!(stored.iter().filter(|&&value| value == 0).count(), 8, "{stored:?}");
    assert!(stored.iter().all(|value| [0, 7].contains(value)), "{stored:?}");
}

/// Dr.Jit reduces 33 to 64 values with 2 words of shared memory, of which 4 threads read theirs.
#[test]
fn shared_memory_ends_where_the_block_ends_it_or_with_its_unit() {
    let body = "shl.b32 %r1, %r0, 2;\nmov.u32 %r2, dynamic;\nadd.s32 %r1, %r1, %r2;\nst.shared.u32 [%r1], %r0;\nret;";
    let mut card = Card::kernel(body);
    let found = card.launch("k", 1, 4, 8, &[0u64.into()]).unwrap_err();
    assert_eq!(found.kind(), FaultKind::OutOfBounds);
    card.options.shared_bounds = false;
    card.launch("k", 1, 4, 8, &[0u64.into()]).unwrap();
    assert_eq!(card.launch("k", 1, 33, 8, &[0u64.into()]).unwrap_err().kind(), FaultKind::OutOfBounds);
}

#[test]
fn masks_that_name_lanes_which_do_not_come() {
    let body = |mask: &str| {
        format!(
            "setp.lt.u32 %p1, %r0, 16;\n@%p1 bra L;\nshfl.sync.idx.b32 %r1, %r0, 17, 31, {mask};\nL: bar.warp.sync -1;\nret;"
        )
    };
    fine(&body("-65536"), 32, 1);
    let found = fault(&body("-1"), 32, 1);
    assert_eq!(found.kind(), FaultKind::Mask);
    assert!(found.what().contains("bar.warp.sync") || found.what().contains("shfl.sync"), "{found}");
    let found = fault("vote.sync.any.pred %p1, %p2, 1; ret;", 32, 1);
    assert!(found.kind() == FaultKind::Mask && found.what().contains("does not name it"), "{found}");
    // Lanes that come later on another way are waited for.
    let late = "setp.lt.u32 %p1, %r0, 16;\nmov.u32 %r2, 0;\n@%p1 bra M;\nL: add.s32 %r2, %r2, 1;\nsetp.lt.s32 %p2, %r2, 9;\n@%p2 bra L;\n\
                M: shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1;\nmul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd0, %rd1;\nst.global.u32 [%rd1], %r3;\nret;";
    assert_eq!(fine(late, 32, 32)[..17], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0]);
}

/// Lanes 0 to 7 wait for lanes that exit, and the others spin until one of the first writes.
#[test]
fn lanes_go_on_when_the_last_lane_that_they_wait_for_exits_although_others_spin() {
    let body = "st.shared.u32 [dynamic], 0; bar.warp.sync -1; setp.lt.u32 %p1, %r0, 8; setp.lt.u32 %p2, %r0, 16;
        @%p1 bra WAIT; @%p2 ret; SPIN: ld.volatile.shared.u32 %r1, [dynamic]; setp.eq.u32 %p3, %r1, 0; @%p3 bra SPIN; ret;
        WAIT: bar.warp.sync 65535; st.volatile.shared.u32 [dynamic], 1; ret;";
    for seed in [None, Some(1), Some(2)] {
        let mut card = Card::kernel(body);
        card.options = Options { seed, limit: 1_000_000, ..card.options };
        card.run(32, 0).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

#[test]
fn a_copy_is_read_after_its_wait_only() {
    let body = |wait: &str| {
        format!(
            "{WORD}cp.async.ca.shared.global [%r1], [%rd1], 4;\ncp.async.commit_group;\n{wait}\nld.shared.u32 %r3, [%r1];\nadd.s32 %r3, %r3, 1;\nst.global.u32 [%rd1], %r3;\nret;"
        )
    };
    assert_eq!(fine(&body("cp.async.wait_group 0;"), 64, 64)[..2], [1, 1]);
    assert_eq!(fine(&body("cp.async.wait_all;"), 64, 64)[..2], [1, 1]);
    assert_eq!(fault(&body("cp.async.wait_group 1;"), 64, 64).kind(), FaultKind::MissingWait);
    // It is no part of the checks that can be off.
    let mut card = Card::kernel(&body(""));
    let checks = Options { uninitialised: false, races: false, global_races: false, ..card.options.clone() };
    card.options = checks;
    assert_eq!(card.run(64, card.buffer(&[0u32; 64])).unwrap_err().kind(), FaultKind::MissingWait);
}

#[test]
fn traps_limits_and_what_is_not_known() {
    assert_eq!(fault("trap;", 1, 1).kind(), FaultKind::Trap);
    let found = fault("setp.eq.u32 %p1, %r0, 99; tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%rd0, {%f1,%f2}];", 1, 1);
    assert_eq!(found.kind(), FaultKind::Unsupported);
    assert!(found.what().contains("tex.2d.v4.f32.f32"), "{found}");
    // A word that might change the result.
    let found = fault("fma.rn.oob.f16 %h1, %h2, %h3, %h4;", 1, 1);
    assert!(found.kind() == FaultKind::Unsupported && found.what().contains("'.oob'"), "{found}");
    // An instruction that is not reached does no harm.
    fine("bra L;\nwild.instruction %r1;\nL: ret;", 1, 1);
    let mut card = Card::kernel("L: bra L;");
    card.options = Options { limit: 100_000, ..Options::default() };
    assert_eq!(card.run(32, card.buffer(&[0u32])).unwrap_err().kind(), FaultKind::Limit);
    let card = Card::kernel("ret;");
    assert_eq!(card.run(1025, 0).unwrap_err().kind(), FaultKind::InvalidLaunch);
}

#[test]
fn an_mbarrier_that_never_completes_ends_the_launch() {
    let body = |count: u32| {
        format!(
            "setp.eq.u32 %p1, %r0, 0;\n@%p1 mbarrier.init.shared::cta.b64 [0], {count};\nbar.sync 0;\n\
             mbarrier.arrive.shared::cta.b64 _, [0];\nL: mbarrier.try_wait.parity.shared::cta.b64 %p2, [0], 0;\n@!%p2 bra L;\nret;"
        )
    };
    fine(&body(64), 64, 1);
    let found = fault(&body(65), 64, 1);
    assert!(found.kind() == FaultKind::Barrier && found.what().contains("never completes"), "{found}");
}

#[test]
fn copies_that_an_mbarrier_completes_are_there_after_its_wait() {
    // Warp 0 copies; warp 1 waits and reads.
    let body = |copy: &str, count: u32, wait: &str| {
        format!(
            "{WORD}setp.eq.u32 %p1, %r0, 0;\n@%p1 mbarrier.init.shared::cta.b64 [512], {count};\nbar.sync 0;\n\
             setp.ge.u32 %p2, %r0, 32;\n@%p2 bra W;\n{copy}\nret;\nW: {wait}\n\
             add.s32 %r3, %r1, -128;\nld.shared.u32 %r4, [%r3];\nadd.s32 %r4, %r4, %r0;\nst.global.u32 [%rd1], %r4;\nret;"
        )
    };
    let wait = "L: mbarrier.try_wait.parity.shared::cta.b64 %p3, [512], 0;\n@!%p3 bra L;";
    let small = "cp.async.ca.shared.global [%r1], [%rd1], 4;\ncp.async.mbarrier.arrive.noinc.shared::cta.b64 [512];";
    let bulk = "@!%p1 ret;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [512], 128;\n\
                cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [dynamic], [%rd0], 128, [512];";
    for (copy, count) in [(small, 32), (bulk, 1)] {
        let found = fine(&body(copy, count, wait), 64, 64);
        assert!((32..64).all(|i| found[i] == i as u32), "{found:?}");
        let found = fault(&body(copy, count, ""), 64, 64);
        assert_eq!(found.kind(), FaultKind::MissingWait, "{found}");
    }
}

#[test]
fn a_barrier_of_the_cluster_orders_the_warps_of_a_block_too() {
    let body = format!(
        "{WORD}st.shared.u32 [%r1], %r0;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n\
         xor.b32 %r3, %r1, 128;\nld.shared.u32 %r4, [%r3];\nst.global.u32 [%rd1], %r4;\n\
         barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nst.shared.u32 [%r1], %r4;\nret;"
    );
    let found = fine(&body, 64, 64);
    assert!((0..64).all(|i| found[i] == i as u32 ^ 32));
}
