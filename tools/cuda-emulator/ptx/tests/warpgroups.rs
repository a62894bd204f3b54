//! `wgmma` is executed by the four warps of a warpgroup together.

mod common;

use common::Card;
use ptx::{Fault, FaultKind, Options};

const PREPARE: &str = "shl.b32 %r10, %r0, 2; setp.lt.u32 %p3, %r0, 64; setp.eq.u32 %p4, %r0, 0; shr.u32 %r11, %r0, 5;
    mul.wide.u32 %rd2, %r0, 4; add.u64 %rd2, %rd0, %rd2; @%p4 mbarrier.init.shared::cta.b64 [512], 1;
    mov.b64 %rd1, 0x0000000800080000; setp.eq.u32 %p1, 0, 0;
    mov.b32 %r1, 0x3c003c00; mov.b32 %r2, %r1; mov.b32 %r3, %r1; mov.b32 %r4, %r1;
    mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;\n";
/// `b` is all ones, of 16 bits.
const FILL: &str = "@%p3 st.shared.u32 [%r10], 0x3c003c00;\n";
const START: &str = "bar.sync 0; fence.proxy.async;\n";
const PRODUCT: &str = "wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, %rd1, %p1, 1, 1, 0;
    wgmma.commit_group.sync.aligned;\n";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0;\n";

/// The first sum of each thread of a warpgroup, in several orders.
fn run(body: &str, threads: u32) -> Result<Vec<f32>, Fault> {
    let mut card = Card::kernel(body);
    let mut sums = Vec::new();
    for seed in [None, Some(1), Some(2), Some(3), Some(4)] {
        card.options = Options { seed, ..card.options };
        let out = card.buffer(&[0f32; 128]);
        card.run(threads, out)?;
        sums = card.read(out, 128);
        if sums != [16.0; 128] {
            break;
        }
    }
    Ok(sums)
}

#[test]
fn when_one_warp_has_waited_the_operands_of_all_four_may_be_overwritten() {
    let body = format!(
        "{PREPARE}{FILL}{START} setp.ge.u32 %p2, %r0, 128; @%p2 bra REFILL;
         {PRODUCT}{WAIT} @%p4 mbarrier.arrive.shared::cta.b64 _, [512]; st.global.f32 [%rd2], %f1; ret;
         REFILL: mbarrier.try_wait.parity.shared::cta.b64 %p5, [512], 0; @!%p5 bra REFILL;
         sub.u32 %r10, %r10, 512; shl.b32 %r10, %r10, 1; st.shared.v2.u32 [%r10], {{0, 0}}; ret;"
    );
    assert_eq!(run(&body, 160).unwrap_or_else(|fault| panic!("{fault}")), [16.0; 128]);
}

#[test]
fn a_product_that_not_all_four_warps_execute_alike_ends_the_launch() {
    let first = "setp.ne.u32 %p2, %r11, 0; @%p2 bra END;";
    for (body, threads, part) in [
        (format!("{PREPARE}{FILL}{START}{first}{PRODUCT}{WAIT} END: ret;"), 128, "warp 1 of its warpgroup"),
        (format!("{PREPARE}{FILL}{START}{first}{PRODUCT}{WAIT} END: bar.sync 0; ret;"), 128, "warp 1 of its warpgroup"),
        (format!("{PREPARE}{FILL}{START}{PRODUCT}{WAIT} ret;"), 64, "a warpgroup has 4 warps"),
        (
            format!("{PREPARE}{FILL}{START} cvt.u64.u32 %rd3, %r11; add.u64 %rd1, %rd1, %rd3; {PRODUCT}{WAIT} ret;"),
            128,
            "different descriptors",
        ),
    ] {
        let fault = run(&body, threads).expect_err(part);
        assert!(fault.kind() == FaultKind::Mask && fault.what().contains(part), "{fault}");
    }
}
