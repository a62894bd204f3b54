//! Races in global memory: those that are found, and the ways to synchronise by which there are none.

mod common;

use common::Card;
use ptx::{Counts, Fault, FaultKind, Options};

/// Runs `body` with so many blocks and threads, several times with other orders.
///
/// `%rd0` is a buffer of 4096 zeros, `%r0` the thread, `%r1` the block, `%r2` the number of blocks, `%r3` the thread in
/// the grid, and `%rd1` the address of that thread's word.
fn run(body: &str, blocks: u32, threads: u32) -> Result<Vec<u32>, Fault> {
    let body = format!(
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mov.u32 %r4, %ntid.x; mad.lo.u32 %r3, %r1, %r4, %r0;\n\
         mul.wide.u32 %rd1, %r3, 4; add.s64 %rd1, %rd0, %rd1;\n{body}\nret;"
    );
    let card = Card::kernel(&body);
    let mut last = Vec::new();
    for seed in [None, Some(1), Some(2), Some(3)] {
        let out = card.buffer(&[0u32; 4096]);
        let options = Options { seed, ..card.options.clone() };
        let launched: Result<Counts, Fault> = {
            let kernel = card.module.kernel("k").expect("the kernel");
            let params = out.to_le_bytes();
            let launch = ptx::Launch {
                grid: [blocks, 1, 1],
                block: [threads, 1, 1],
                dynamic_shared: 64,
                params: &params,
                ..Default::default()
            };
            ptx::launch(kernel, launch, &card.memory, &options)
        };
        launched?;
        last = card.read(out, 4096);
    }
    Ok(last)
}

fn fine(body: &str, blocks: u32, threads: u32) -> Vec<u32> {
    run(body, blocks, threads).unwrap_or_else(|fault| panic!("{fault}"))
}

fn race(body: &str, blocks: u32, threads: u32) -> Fault {
    let fault = run(body, blocks, threads).map(|_| ()).expect_err("a race");
    assert_eq!(fault.kind(), FaultKind::Race, "{fault}");
    fault
}

/// `%rd2` is the address of the word whose number differs from the thread's in the grid by `bits`.
fn other(bits: u32) -> String {
    format!("xor.b32 %r5, %r3, {bits}; mul.wide.u32 %rd2, %r5, 4;\nadd.s64 %rd2, %rd0, %rd2;\n")
}

/// Thread 0 of each block counts itself at word 4000; `%p1` says in all threads whether the block is the last.
const LAST_BLOCK: &str = "setp.ne.u32 %p2, %r0, 0; @%p2 bra J;
    membar.gl; atom.global.add.u32 %r6, [%rd0+16000], 1; st.shared.u32 [dynamic], %r6;
    J: bar.sync 0; ld.shared.u32 %r6, [dynamic]; add.u32 %r6, %r6, 1; setp.eq.u32 %p1, %r6, %r2;";

#[test]
fn warps_of_a_block_need_a_barrier() {
    let exchange = |barrier: &str| {
        format!(
            "st.global.u32 [%rd1], %r3;\n{barrier}\n{} ld.global.u32 %r6, [%rd2];\nst.global.u32 [%rd1+8192], %r6;",
            other(32)
        )
    };
    let found = fine(&exchange("bar.sync 0;"), 2, 64);
    assert!((0..128).all(|i| found[2048 + i] == i as u32 ^ 32), "{found:?}");
    let fault = race(&exchange(""), 1, 64);
    let text = fault.to_string();
    assert!(text.contains("warp 1 writes 4 bytes at 0x900000000080, 128 bytes into allocation #1"), "{text}");
    assert!(text.contains("that warp 0 read at line 16 (ld.global.u32 %r6, [%rd2];) without a barrier"), "{text}");
    assert!(text.contains("thread (32, 0, 0)\n  at line 12 of its PTX: st.global.u32 [%rd1], %r3;"), "{text}");
    // A read before a write, and two writes.
    let read_first = |barrier: &str| {
        format!(
            "setp.ge.u32 %p1, %r0, 32; {} @!%p1 ld.global.u32 %r6, [%rd1];\n{barrier}\n@%p1 st.global.u32 [%rd2], 7;",
            other(32)
        )
    };
    fine(&read_first("bar.sync 0;"), 1, 64);
    assert!(race(&read_first(""), 1, 64).what().contains("warp 0 read at line"));
    let both = |barrier: &str| format!("st.global.u32 [%rd1], 7;\n{barrier}\n{} st.global.u32 [%rd2], 8;", other(32));
    fine(&both("bar.sync 0;"), 1, 64);
    assert!(race(&both(""), 1, 64).what().contains("wrote at line"));
    // A barrier for other warps does not help; one of parts of a block does.
    race(&exchange("and.b32 %r7, %r0, 32; shr.u32 %r7, %r7, 5; bar.sync %r7, 32;"), 1, 64);
    fine(&exchange("bar.sync 3, 64;"), 1, 64);
    // Lanes of one warp, and halves of a word, are in nobody's way.
    fine(&format!("st.global.u32 [%rd1], 7;\n{} st.global.u32 [%rd2], 8;", other(8)), 4, 32);
    fine("cvt.u64.u32 %rd3, %r3; add.s64 %rd3, %rd0, %rd3; st.global.u8 [%rd3], %r3; ld.global.u8 %r6, [%rd3];", 2, 33);
    // Nor are the two halves of a word.
    fine(
        "mul.lo.u32 %r5, %r0, 34; and.b32 %r5, %r5, 63; cvt.u64.u32 %rd3, %r5; add.s64 %rd3, %rd0, %rd3; st.global.u8 [%rd3], %r3;",
        1,
        64,
    );
}

#[test]
fn blocks_have_no_order_of_their_own() {
    let text =
        race(&format!("st.global.u32 [%rd1], %r3;\n{} ld.global.u32 %r6, [%rd2];", other(32)), 4, 32).to_string();
    assert!(text.contains("nothing orders the two blocks") && text.contains("of block ("), "{text}");
    race(&format!("{} ld.global.u32 %r6, [%rd2]; st.global.u32 [%rd1], 7;", other(64)), 4, 32);
    // A barrier is for one block.
    race(&format!("st.global.u32 [%rd1], 7; bar.sync 0;\n{} ld.global.u32 %r6, [%rd2];", other(64)), 2, 64);
    race("st.global.u32 [%rd0], %r1;", 8, 1);
    race("st.global.v4.u32 [%rd0], {%r1, %r1, %r1, %r1};", 8, 1);
    // Zero for a sum that other blocks have begun.
    race(
        "setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%rd0], 5; atom.global.add.u32 %r6, [%rd0+128], 1; red.global.add.u32 [%rd0], 1;",
        8,
        1,
    );
    // The same value does no harm, nor does what nobody else touches.
    assert_eq!(fine("st.global.u32 [%rd0], 5;", 8, 64)[0], 5);
    assert_eq!(
        fine("ld.global.u32 %r6, [%rd0+4]; setp.eq.u32 %p1, %r1, 3; @%p1 st.global.u32 [%rd0], 6;", 8, 32)[0],
        6
    );
}

#[test]
fn launches_one_after_another_are_ordered() {
    let card = Card::kernel(
        "ld.global.u32 %r1, [%rd0]; mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 0; @!%p1 ret; add.u32 %r1, %r1, 1; st.global.u32 [%rd0+64], %r1; ret;",
    );
    let out = card.buffer(&[3u32; 64]);
    for _ in 0..3 {
        card.launch("k", 4, 1, 0, &[out.into()]).unwrap();
        let copied: Vec<u32> = card.read(out + 64, 1);
        assert_eq!(copied, [4]);
    }
}

#[test]
fn atomics_order_and_do_not_race() {
    let found = fine(
        "and.b32 %r5, %r0, 3; mul.wide.u32 %rd2, %r5, 4; add.s64 %rd2, %rd0, %rd2; red.global.add.u32 [%rd2], 1;",
        8,
        64,
    );
    assert_eq!(found[..4], [128; 4]);
    // Compilers and people begin such loops with a plain read.
    let add = "ld.global.u32 %r5, [%rd0]; L: add.u32 %r6, %r5, 1; atom.global.cas.b32 %r7, [%rd0], %r5, %r6;
        setp.ne.u32 %p1, %r7, %r5; mov.u32 %r5, %r7; @%p1 bra L;";
    assert_eq!(fine(add, 4, 64)[0], 256);
    // Volatile accesses do not race with each other.
    fine("st.volatile.global.u32 [%rd0], %r1; ld.volatile.global.u32 %r6, [%rd0];", 8, 64);
}

#[test]
fn the_last_block_reads_what_all_have_written() {
    let body = |fence: &str, barrier: &str, count: &str| {
        let counts = count.replace("membar.gl;", fence);
        format!(
            "st.global.u32 [%rd1], 1; {barrier}\n{counts}\n@!%p1 ret;\nmov.u32 %r8, 0; mov.u32 %r9, 0;
             mad.lo.u32 %r10, %r2, %r4, 0;
             L: mul.wide.u32 %rd2, %r9, 4; add.s64 %rd2, %rd0, %rd2; ld.global.u32 %r7, [%rd2]; add.u32 %r8, %r8, %r7;
             add.u32 %r9, %r9, 1; setp.lt.u32 %p3, %r9, %r10; @%p3 bra L;
             bar.sync 0; setp.ne.u32 %p2, %r0, 0; @%p2 ret; st.global.u32 [%rd0+16000], 0; st.global.u32 [%rd0+16004], %r8;"
        )
    };
    for fence in ["membar.gl;", "fence.acq_rel.gpu;", "fence.sc.sys;"] {
        assert_eq!(fine(&body(fence, "bar.sync 0;", LAST_BLOCK), 6, 64)[4000..4002], [0, 384]);
    }
    // Each thread fences for itself before the barrier.
    assert_eq!(fine(&body("", "membar.gl; bar.sync 0;", LAST_BLOCK), 6, 64)[4001], 384);
    let acq_rel = LAST_BLOCK.replace("atom.global", "atom.acq_rel.gpu.global");
    assert_eq!(fine(&body("", "bar.sync 0;", &acq_rel), 6, 64)[4001], 384);
    // Without a fence, with one for the block only, and without the barrier that takes the other warps in.
    race(&body("", "bar.sync 0;", LAST_BLOCK), 6, 64);
    race(&body("membar.cta;", "bar.sync 0;", LAST_BLOCK), 6, 64);
    race(&body("membar.gl;", "", LAST_BLOCK), 6, 64);
}

#[test]
fn a_flag_hands_a_value_from_block_to_block() {
    // Block b waits for block b - 1, as in a chained scan.
    let body = |release: &str, acquire: &str| {
        format!(
            "setp.ne.u32 %p1, %r0, 0; @%p1 bra D; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd0, %rd2; mov.u32 %r8, 0;
             setp.eq.u32 %p2, %r1, 0; @%p2 bra F;
             W: {acquire}; setp.eq.u32 %p3, %r6, 0; @%p3 bra W;
             ld.global.u32 %r8, [%rd2+8188];
             F: add.u32 %r8, %r8, %r1; st.global.u32 [%rd2+8192], %r8; {release}; D: bar.sync 0;
             ld.global.u32 %r9, [%rd0+8192];"
        )
    };
    let pairs = [
        ("st.release.gpu.global.u32 [%rd2], 1", "ld.acquire.gpu.global.u32 %r6, [%rd2-4]"),
        ("membar.gl; st.volatile.global.u32 [%rd2], 1", "ld.volatile.global.u32 %r6, [%rd2-4]"),
        ("membar.gl; st.global.cg.u32 [%rd2], 1", "ld.global.cg.u32 %r6, [%rd2-4]"),
        ("fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd2], 1", "ld.relaxed.gpu.global.u32 %r6, [%rd2-4]"),
        ("membar.gl; atom.global.exch.b32 %r7, [%rd2], 1", "atom.global.or.b32 %r6, [%rd2-4], 0"),
        ("red.release.gpu.global.add.u32 [%rd2], 1", "atom.acquire.gpu.global.add.u32 %r6, [%rd2-4], 0"),
    ];
    for (release, acquire) in pairs {
        // Behind the chain all threads read what block 0 has written.
        assert_eq!(fine(&body(release, acquire), 8, 64)[2048 + 7], 28, "{release}");
    }
    race(&body("st.relaxed.gpu.global.u32 [%rd2], 1", "ld.relaxed.gpu.global.u32 %r6, [%rd2-4]"), 8, 64);
    race(&body("membar.gl; st.global.u32 [%rd2], 1", "ld.volatile.global.u32 %r6, [%rd2-4]"), 8, 64);
}

#[test]
fn a_lock_guards_plain_accesses() {
    let body = |unlock: &str| {
        format!(
            "setp.ne.u32 %p1, %r0, 0; @%p1 ret; L: atom.global.cas.b32 %r6, [%rd0], 0, 1; setp.ne.u32 %p2, %r6, 0; @%p2 bra L;
             membar.gl; ld.global.u32 %r7, [%rd0+64]; add.u32 %r7, %r7, 1; st.global.u32 [%rd0+64], %r7; {unlock}"
        )
    };
    assert_eq!(fine(&body("membar.gl; atom.global.exch.b32 %r8, [%rd0], 0;"), 16, 32)[16], 16);
    assert_eq!(fine(&body("st.release.gpu.global.u32 [%rd0], 0;"), 16, 64)[16], 16);
    race(&body("atom.relaxed.gpu.global.exch.b32 %r8, [%rd0], 0;"), 16, 32);
}

#[test]
fn the_decoupled_look_back_of_a_scan_passes() {
    // A status and a value in one word of 64 bits; blocks take their numbers from a counter.
    let body = "setp.ne.u32 %p1, %r0, 0; @%p1 bra E; atom.global.add.u32 %r5, [%rd0+16000], 1; st.shared.u32 [dynamic], %r5;
         E: bar.sync 0; ld.shared.u32 %r5, [dynamic]; @%p1 ret; add.u32 %r6, %r5, 1; mul.wide.u32 %rd2, %r5, 8;
         add.s64 %rd2, %rd0, %rd2; mov.b64 %rd3, {%r6, 1}; st.relaxed.gpu.global.u64 [%rd2], %rd3; mov.u32 %r8, %r6; mov.u64 %rd4, %rd2;
         B: setp.eq.u64 %p2, %rd4, %rd0; @%p2 bra F; add.s64 %rd4, %rd4, -8;
         W: ld.relaxed.gpu.global.u64 %rd5, [%rd4]; mov.b64 {%r9, %r10}, %rd5; setp.eq.u32 %p3, %r10, 0; @%p3 bra W;
         add.u32 %r8, %r8, %r9; setp.eq.u32 %p4, %r10, 1; @%p4 bra B;
         F: mov.b64 %rd3, {%r8, 2}; st.relaxed.gpu.global.u64 [%rd2], %rd3; mul.wide.u32 %rd6, %r5, 4; add.s64 %rd6, %rd0, %rd6;
         st.global.u32 [%rd6+8192], %r8;";
    let found = fine(body, 32, 64);
    assert!((0..32).all(|i| found[2048 + i] == (i * i + 3 * i + 2) as u32 / 2), "{found:?}");
}

#[test]
fn a_barrier_of_the_grid_orders_all_blocks() {
    let body = |barrier: &str| {
        format!(
            "st.global.u32 [%rd1], %r3;\n{barrier}\n{} ld.global.u32 %r6, [%rd2]; st.global.u32 [%rd1+8192], %r6;",
            other(256)
        )
    };
    let barrier =
        "bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra D; fence.acq_rel.gpu; atom.global.add.u32 %r7, [%rd0+16000], 1;
         W: ld.acquire.gpu.global.u32 %r7, [%rd0+16000]; setp.lt.u32 %p2, %r7, %r2; @%p2 bra W; D: bar.sync 0;";
    let found = fine(&body(barrier), 8, 64);
    assert!((0..512).all(|i| found[2048 + i] == i as u32 ^ 256));
    race(&body(""), 8, 64);
    // Only thread 0 has waited.
    race(&body(&barrier.replace("D: bar.sync 0;", "D:")), 8, 64);
}

#[test]
fn the_check_can_be_turned_off() {
    let mut card = Card::kernel("mov.u32 %r1, %ctaid.x; st.global.u32 [%rd0], %r1; ret;");
    assert!(card.launch("k", 8, 1, 0, &[card.buffer(&[9u32]).into()]).is_err());
    card.options.global_races = false;
    card.launch("k", 8, 1, 0, &[card.buffer(&[9u32]).into()]).unwrap();
}

/// Each block writes, waits for all, and reads what the next one wrote; twice, as the barrier is used again.
#[test]
fn the_grid_waits_for_itself_by_the_device_runtime() {
    let card = Card::new(
        ".version 8.3\n.target sm_80\n.address_size 64
        .extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 p_0);
        .extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 p_0, .param .b32 p_1);
        .visible .entry k(.param .u64 p) {
        .reg .b64 %rd<8>; .reg .b32 %r<20>; .reg .pred %p<2>;
        ld.param.u64 %rd1, [p]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mov.u32 %r10, 0;
        { .param .b32 p0; .param .b64 r0; st.param.b32 [p0], 1; call.uni (r0), cudaCGGetIntrinsicHandle, (p0); ld.param.b64 %rd2, [r0]; }
        AGAIN:
        mad.lo.u32 %r3, %r10, %r2, %r1; mul.wide.u32 %rd3, %r3, 4; add.s64 %rd3, %rd1, %rd3;
        add.u32 %r4, %r3, 100; st.global.u32 [%rd3], %r4;
        { .param .b64 p0; .param .b32 p1; .param .b32 r0; st.param.b64 [p0], %rd2; st.param.b32 [p1], 0;
        call.uni (r0), cudaCGSynchronize, (p0, p1); ld.param.b32 %r5, [r0]; }
        add.u32 %r6, %r1, 1; rem.u32 %r6, %r6, %r2; mad.lo.u32 %r6, %r10, %r2, %r6; mul.wide.u32 %rd4, %r6, 4; add.s64 %rd4, %rd1, %rd4;
        ld.global.u32 %r7, [%rd4]; add.u32 %r7, %r7, %r5; st.global.u32 [%rd3+320], %r7;
        add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, 2; @%p1 bra AGAIN; ret; }",
    );
    let out = card.buffer(&[0u32; 160]);
    card.launch("k", 40, 64, 0, &[out.into()]).unwrap();
    let expected: Vec<u32> = (0..80).map(|i| 100 + i / 40 * 40 + (i + 1) % 40).collect();
    assert_eq!(card.read::<u32>(out + 320, 80), expected);
}

#[test]
fn bulk_copies_write_as_stores_do_and_reductions_as_atomics() {
    let body = |copy: &str, value: &str| {
        format!(
            "mov.u32 %r6, {value}; st.shared.v4.u32 [dynamic], {{%r6, %r6, %r6, %r6}}; {copy}; cp.async.bulk.commit_group;
             cp.async.bulk.wait_group 0;"
        )
    };
    let add = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [dynamic], 16";
    assert_eq!(fine(&body(add, "%r1"), 8, 1)[..5], [28, 28, 28, 28, 0]);
    let copy = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [dynamic], 16";
    assert_eq!(fine(&body(copy, "7"), 8, 1)[3], 7);
    race(&body(copy, "%r1"), 8, 1);
}
