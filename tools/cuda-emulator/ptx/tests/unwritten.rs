//! Instructions that move memory that nothing has written: they pass, and what they move is undefined from then on.

mod common;

use common::Card;
use ptx::{Fault, FaultKind};

const WORD: &str = "shl.b32 %r1, %r0, 2; cvt.u64.u32 %rd1, %r1; add.u64 %rd1, %rd0, %rd1;\n";

/// Runs `body` with `threads` threads, and tells which of the first words of global memory it has written.
fn run(body: &str, threads: u32) -> Result<Vec<bool>, Fault> {
    let card = Card::kernel(&format!("{WORD}{body} ret;"));
    let out = card.memory.alloc(8192, 256, "test").unwrap();
    card.run(threads, out)?;
    Ok((0..32).map(|word| card.memory.is_written(out + 4 * word, 4)).collect())
}

fn lanes(body: &str, threads: u32, written: impl Fn(usize) -> bool) {
    let found = run(body, threads).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
    assert_eq!(found, (0..32).map(written).collect::<Vec<_>>(), "{body}");
}

#[test]
fn asynchronous_copies_carry_what_is_unwritten_along() {
    let small = |size: &str| {
        format!(
            "cp.async.ca.shared.global [%r1], [%rd1+4096], 4{size}; cp.async.wait_all; ld.shared.u32 %r3, [%r1];
             st.global.u32 [%rd1], %r3;"
        )
    };
    // Even words are written.
    let half = "and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0; @%p1 st.global.u32 [%rd1+4096], 7;";
    for size in ["", ", 3"] {
        lanes(&format!("{half}{}", small(size)), 32, |lane| lane % 2 == 0);
    }
    let bulk = "setp.ne.u32 %p2, %r0, 0; @%p2 bra WAIT; mbarrier.init.shared::cta.b64 [512], 1;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [512], 128; add.u64 %rd2, %rd0, 4096;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [dynamic], [%rd2], 128, [512];
        WAIT: bar.warp.sync -1; TRY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [512], 0; @!%p3 bra TRY;";
    let back = "@%p2 bra DONE; cp.async.bulk.global.shared::cta.bulk_group [%rd0], [dynamic], 128;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; DONE:";
    let read = "ld.shared.u32 %r3, [%r1]; st.global.u32 [%rd1], %r3;";
    for way in [back, read] {
        lanes(&format!("{half}bar.warp.sync -1;{bulk}{way}"), 32, |lane| lane % 2 == 0);
    }
    let used = "setp.eq.u32 %p4, %r3, 0; @%p4 bra END; END:";
    for body in [format!("{}{used}", small("")), format!("{bulk}{read}{used}")] {
        assert_eq!(run(&body, 32).expect_err("a fault").kind(), FaultKind::Uninitialised, "{body}");
    }
}

#[test]
fn fragments_of_unwritten_memory_are_undefined() {
    // Rows 0 to 3 of a matrix are written.
    let rows = "setp.lt.u32 %p1, %r0, 16; @%p1 st.shared.u32 [%r1], 7; bar.warp.sync -1; and.b32 %r2, %r0, 7; shl.b32 %r2, %r2, 4;";
    let load = |trans: &str| {
        format!("{rows} ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {{%r3}}, [%r2]; st.global.u32 [%rd1], %r3;")
    };
    lanes(&load(""), 32, |lane| lane < 16);
    lanes(&load(".trans"), 32, |lane| lane % 4 < 2);
    // Back by a store of matrices.
    let store =
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r3}; ld.shared.u32 %r4, [%r1]; st.global.u32 [%rd1], %r4;";
    lanes(&format!("{}{store}", load("")), 32, |_| false);
    let of =
        |used: &str| format!("{{{}}}", (0..8).map(|i| format!("%{used}{}", i + 10)).collect::<Vec<_>>().join(", "));
    let wmma = format!(
        "add.u64 %rd2, %rd0, 4096; wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {0}, [%rd2], 16;
         wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd0], {0}, 16;",
        of("f"),
    );
    lanes(&wmma, 32, |_| false);
    let used = "setp.eq.u32 %p4, %r3, 0; @%p4 bra END; END:";
    assert_eq!(run(&format!("{}{used}", load("")), 32).expect_err("a fault").kind(), FaultKind::Uninitialised);
}

#[test]
fn products_of_a_warpgroup_with_unwritten_operands_are_undefined() {
    let product = |prepare: &str| {
        format!(
            "setp.lt.u32 %p2, %r0, 64; setp.eq.u32 %p1, 0, 0; mov.b64 %rd2, 0x0000000800080000;
             mov.b32 %r4, 0x3c003c00; mov.b32 %r5, %r4; mov.b32 %r6, %r4; mov.b32 %r7, %r4;
             mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
             {prepare} bar.sync 0; fence.proxy.async; wgmma.fence.sync.aligned;
             wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f1, %f2, %f3, %f4}}, {{%r4, %r5, %r6, %r7}}, %rd2, %p1, 1, 1, 0;
             wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
             setp.lt.u32 %p3, %r0, 32; @%p3 st.global.f32 [%rd1], %f1;"
        )
    };
    let fill = "@%p2 st.shared.u32 [%r1], 0x3c003c00;";
    lanes(&product(fill), 128, |_| true);
    lanes(&product(""), 128, |_| false);
    // A register of `a`, and one of the sum.
    lanes(&product(&format!("{fill} ld.global.u32 %r5, [%rd0+4096];")), 128, |_| false);
    lanes(&product(&format!("{fill} ld.global.f32 %f1, [%rd0+4096];")), 128, |_| false);
}

#[test]
fn local_memory_keeps_what_is_undefined() {
    let locals = |between: &str| {
        format!(
            ".local .align 8 .b8 room[16]; ld.global.u32 %r3, [%rd1+4096]; st.local.u32 [room+4], %r3; {between}
             ld.local.u32 %r4, [room+4]; st.global.u32 [%rd1], %r4;"
        )
    };
    lanes(&locals(""), 32, |_| false);
    lanes(&locals("st.local.u32 [room], 7;"), 32, |_| false);
    let half = "setp.lt.u32 %p1, %r0, 16; @%p1 st.local.u32 [room+4], 7;";
    lanes(&locals(half), 32, |lane| lane < 16);
    let generic = "mov.u64 %rd3, room; cvta.local.u64 %rd3, %rd3; @%p1 st.u32 [%rd3+4], 7; ld.u32 %r4, [%rd3+4]; st.u32 [%rd3+4], %r4;";
    lanes(&locals(&format!("setp.lt.u32 %p1, %r0, 16; {generic}")), 32, |lane| lane < 16);
    let used = "setp.eq.u32 %p4, %r4, 0; @%p4 bra END; END:";
    assert_eq!(run(&format!("{}{used}", locals("")), 32).expect_err("a fault").kind(), FaultKind::Uninitialised);
}
