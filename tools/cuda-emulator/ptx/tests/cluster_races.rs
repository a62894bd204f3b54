//! Races between the blocks of a cluster in the shared memory of one of them.

mod common;

use common::Card;
use ptx::{Fault, FaultKind, Launch, Options};

/// Runs `body` in two clusters of two blocks with 64 threads each.
///
/// `%r1` is the block's rank, `%r2` the offset of the thread's word in shared memory, and `%r3` the address of the same
/// word of the other block. Shared memory has 64 words for threads, and a barrier object at 512.
fn run(body: &str, races: bool) -> Result<Vec<u32>, Fault> {
    let card = Card::kernel(&format!(
        "mov.u32 %r1, %cluster_ctarank; shl.b32 %r2, %r0, 2; xor.b32 %r4, %r1, 1; mapa.shared::cluster.u32 %r3, %r2, %r4;
         mov.u32 %r5, %ctaid.x; mad.lo.u32 %r5, %r5, 64, %r0; mul.wide.u32 %rd1, %r5, 4; add.s64 %rd1, %rd0, %rd1;
         {body}\nret;"
    ));
    let kernel = card.module.kernel("k").expect("the kernel");
    let mut last = Vec::new();
    for seed in [None, Some(1), Some(2)] {
        let out = card.buffer(&[0u32; 256]);
        let params = out.to_le_bytes();
        let options = Options { seed, races, ..card.options.clone() };
        let (grid, block, cluster) = ([4, 1, 1], [64, 1, 1], [2, 1, 1]);
        let launch = Launch { grid, block, cluster, dynamic_shared: 1024, params: &params };
        ptx::launch(kernel, launch, &card.memory, &options)?;
        last = card.read(out, 256);
    }
    Ok(last)
}

fn fine(body: &str) -> Vec<u32> {
    run(body, true).unwrap_or_else(|fault| panic!("{fault}"))
}

fn race(body: &str) -> String {
    let fault = run(body, true).map(|_| ()).expect_err("a race");
    assert_eq!(fault.kind(), FaultKind::Race, "{fault}");
    fault.to_string()
}

const WAIT: &str = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;";

/// Each thread writes its word, reads that of the other block, and writes its own again.
fn exchange(first: &str, second: &str) -> String {
    format!(
        "st.shared.u32 [%r2], %r5;\n{first}\nld.shared::cluster.u32 %r6, [%r3];\n{second}\nst.shared.u32 [%r2], 7;
         st.global.u32 [%rd1], %r6;"
    )
}

#[test]
fn a_barrier_of_the_cluster_orders_its_blocks() {
    let found = fine(&exchange(WAIT, WAIT));
    assert!((0..256).all(|i| found[i] == i as u32 ^ 64), "{found:?}");
    for (first, second) in [("bar.sync 0;", WAIT), (WAIT, "bar.sync 0;"), ("barrier.cluster.arrive.aligned;", "")] {
        let text = race(&exchange(first, second));
        assert!(text.contains("of shared memory of block (") && text.contains("barrier of the cluster"), "{text}");
        assert!(text.contains("(st.shared.u32 [%r2]") || text.contains("(ld.shared::cluster.u32 %r6"), "{text}");
        run(&exchange(first, second), false).ok();
    }
    // Both blocks write the same words of one of them.
    let write =
        |barrier: &str| format!("{barrier} st.shared::cluster.u32 [%r3], 1; {barrier} st.shared.u32 [%r2], 2; {WAIT}");
    fine(&write(WAIT));
    race(&write(""));
    // Both warps of one block write a word of the other block.
    let both = |barrier: &str| {
        format!(
            "st.shared::cluster.u32 [%r3], 1; {barrier} xor.b32 %r3, %r3, 128; st.shared::cluster.u32 [%r3], 2; {WAIT}"
        )
    };
    fine(&both("bar.sync 0;"));
    assert!(race(&both("")).contains("without a barrier between"));
}

#[test]
fn barrier_objects_of_other_blocks_order_too() {
    // Block 0 hands its words over, and block 1 reads them behind its own barrier.
    let body = |arrive: &str| {
        format!(
            "setp.ne.u32 %p1, %r0, 0; @!%p1 mbarrier.init.shared::cta.b64 [512], 64; {WAIT}
             setp.ne.u32 %p2, %r1, 0; @%p2 bra TAKE; st.shared::cluster.u32 [%r3], %r5; mov.u32 %r7, 512;
             mapa.shared::cluster.u32 %r8, %r7, 1; {arrive} bra END;
             TAKE: mbarrier.try_wait.parity.shared::cta.b64 %p3, [512], 0; @!%p3 bra TAKE;
             ld.shared.u32 %r6, [%r2]; st.global.u32 [%rd1], %r6; END: {WAIT}"
        )
    };
    let found = fine(&body("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];"));
    assert!((0..64).all(|i| found[64 + i] == i as u32 && found[192 + i] == 128 + i as u32), "{found:?}");
    // Who does not wait has a race, whatever else happens.
    let early = body("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];").replace("@!%p3 bra TAKE;", "");
    race(&early);
}

#[test]
fn atomic_operations_on_another_block_do_not_race() {
    let body = format!(
        "st.shared.u32 [%r2], 0; {WAIT} red.shared::cluster.add.u32 [%r3], 5; atom.shared.add.u32 %r6, [%r2], 2; {WAIT}
         ld.shared.u32 %r6, [%r2]; st.global.u32 [%rd1], %r6;"
    );
    assert_eq!(fine(&body), [7; 256]);
    race(&body.replacen(WAIT, "bar.sync 0;", 1));
}

/// "barrier.cluster": a relaxed arrival orders no memory; a fence before it does.
#[test]
fn relaxed_arrivals_order_the_blocks_only_behind_a_fence() {
    let relaxed = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;";
    let fenced = format!("fence.acq_rel.cluster;\n{relaxed}");
    race(&exchange(relaxed, WAIT));
    fine(&exchange(&fenced, WAIT));
    race(&exchange(&format!("fence.mbarrier_init.release.cluster;\n{relaxed}"), WAIT));
    fine(&exchange(WAIT, &fenced));
    let body = |arrive: &str| {
        format!(
            "setp.ne.u32 %p1, %r0, 0; @!%p1 mbarrier.init.shared::cta.b64 [512], 64; {WAIT}
             setp.ne.u32 %p2, %r1, 0; @%p2 bra TAKE; st.shared::cluster.u32 [%r3], %r5; mov.u32 %r7, 512;
             mapa.shared::cluster.u32 %r8, %r7, 1; {arrive} bra END;
             TAKE: mbarrier.try_wait.parity.shared::cta.b64 %p3, [512], 0; @!%p3 bra TAKE;
             ld.shared.u32 %r6, [%r2]; st.global.u32 [%rd1], %r6; END: {relaxed}"
        )
    };
    let arrive = "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r8];";
    race(&body(arrive));
    fine(&body(&format!("fence.acq_rel.cluster; {arrive}")));
}

#[test]
fn whether_a_launch_has_clusters_is_a_predicate() {
    let body = "mov.pred %p1, %is_explicit_cluster; selp.u32 %r6, 1, 0, %p1; st.global.u32 [%rd1], %r6;";
    assert_eq!(fine(body), [1; 256]);
    let card =
        Card::kernel("mov.pred %p1, %is_explicit_cluster; selp.u32 %r6, 1, 2, %p1; st.global.u32 [%rd0], %r6; ret;");
    let out = card.buffer(&[0u32]);
    card.run(1, out).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(card.read::<u32>(out, 1), [2]);
    for line in ["mov.u32 %r6, %is_explicit_cluster;", "mov.pred %p1, %laneid;", "not.pred %p1, %is_explicit_cluster;"]
    {
        assert_eq!(Card::kernel(line).run(1, 0).expect_err(line).kind(), FaultKind::Unsupported, "{line}");
    }
}
