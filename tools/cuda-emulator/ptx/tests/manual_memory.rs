//! Corners of memory instructions that the PTX manual spells out, each with the section that does.

mod common;

use common::Card;

#[test]
fn sums_of_f32_flush_subnormal_numbers_in_global_memory_only() {
    // "atom", "red": on global memory add.f32 flushes subnormal inputs and results, on shared memory it does not.
    let card = Card::kernel(
        "mov.f32 %f1, 0f00000001; mov.b32 %r1, 0x80000001;
         red.global.add.f32 [%rd0], %f1; atom.add.f32 %f2, [%rd0+4], 0f00000000;
         st.shared.b32 [0], %r1; red.shared.add.f32 [0], %f1; ld.shared.b32 %r2, [0]; st.global.b32 [%rd0+8], %r2;
         st.shared.b32 [0], 1; cvta.shared.u64 %rd1, 0; atom.add.f32 %f2, [%rd1], %f1; ld.shared.b32 %r2, [0];
         st.global.b32 [%rd0+12], %r2; atom.global.add.f32 %f3, [%rd0+16], 0f80800000; ret;",
    );
    let out = card.buffer(&[1u32, 0x8000_0001, 9, 9, 0x0080_0001]);
    card.run(1, out).unwrap();
    assert_eq!(card.read::<u32>(out, 5), [0, 0, 0, 2, 0]);
}

#[test]
fn bulk_reductions_of_shared_memory_add_up() {
    // "cp.reduce.async.bulk": each is a read-modify-write of the destination when it happens, not when it is asked for.
    let card = Card::kernel(
        "mov.u32 %r1, 0; st.shared.v4.u32 [16], {1, 2, 3, 4}; st.shared.v4.u32 [32], {10, 20, 30, 40};
         mbarrier.init.shared::cta.b64 [0], 1; fence.proxy.async;
         mov.u32 %r2, 16; mov.u32 %r3, 32;
         cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r2], [%r3], 16, [%r1];
         cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r2], [%r3], 16, [%r1];
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [0], 32;
         L: mbarrier.try_wait.parity.shared::cta.b64 %p1, [0], 0; @!%p1 bra L;
         ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [16]; st.global.v4.u32 [%rd0], {%r4, %r5, %r6, %r7}; ret;",
    );
    let out = card.buffer(&[0u32; 4]);
    card.run(1, out).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(card.read::<u32>(out, 4), [21, 42, 63, 84]);
}

#[test]
fn what_the_assembler_refuses_ends_the_launch() {
    for code in [
        // "cp.async": .cg moves 16 bytes.
        "cp.async.cg.shared.global [%r1], [%rd0], 8;",
        // "cp.async.bulk": .cp_mask is for newer cards, and would leave bytes out.
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd0], [%r1], 16, %h1;",
        // "barrier": a thread count is required for .arrive.
        "bar.arrive 1;",
        "mbarrier.arrive.unknown.b64 %rd1, [%rd0];",
    ] {
        let card = Card::kernel(&format!("{code} ret;"));
        assert_eq!(card.module.unsupported().len(), 1, "{code}");
    }
}

#[test]
fn asynchronous_stores_reach_the_other_block_of_a_cluster() {
    // "st.async", "red.async": they complete as many bytes of the mbarrier, which lies in the block of the destination.
    let text = "
        .version 8.3
        .target sm_90a
        .address_size 64
        .visible .entry k(.param .u64 p)
        {
            .reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %rd<4>;
            .shared .align 16 .b8 s[64];
            ld.param.u64 %rd0, [p];
            mov.u32 %r0, %cluster_ctarank;
            mov.u32 %r1, s;
            setp.ne.u32 %p1, %r0, 0;
            mbarrier.init.shared::cta.b64 [%r1], 1;
            st.shared.u32 [s+32], 5;
            barrier.cluster.arrive.aligned;
            barrier.cluster.wait.aligned;
            @!%p1 bra there;
            mapa.shared::cluster.u32 %r2, %r1, 0;
            st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r2+16], {1, 2, %r0, 4}, [%r2];
            red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r2+32], 7, [%r2];
            red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.s32 [%r2+32], -9, [%r2];
            bra done;
        there:
            mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 24;
        wait:
            mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
            @!%p2 bra wait;
            ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [s+16];
            ld.shared.b32 %r8, [s+32];
            st.global.v4.b32 [%rd0], {%r4, %r5, %r6, %r7};
            st.global.b32 [%rd0+16], %r8;
        done:
            barrier.cluster.arrive.aligned;
            barrier.cluster.wait.aligned;
            ret;
        }";
    let card = Card::new(text);
    let out = card.buffer(&[0u32; 5]);
    let kernel = card.module.kernel("k").unwrap();
    let params = out.to_le_bytes();
    let launch = ptx::Launch {
        grid: [2, 1, 1],
        block: [1, 1, 1],
        cluster: [2, 1, 1],
        params: &params,
        ..ptx::Launch::default()
    };
    ptx::launch(kernel, launch, &card.memory, &card.options).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(card.read::<u32>(out, 5), [1, 2, 1, 4, 12]);
}

#[test]
fn parameters_lie_where_their_own_alignment_puts_them() {
    // "Kernel Function Parameter Attribute: .ptr": `.align` behind `.ptr` is the alignment of what is pointed to.
    let card = Card::new(
        ".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u32 a, .param .align 16 .b64 b[2],
         .param .u64 .ptr .global .align 128 c, .param .u32 .ptr .shared .align 32 d, .param .u32 e) { ret; }",
    );
    let offsets: Vec<u32> = card.module.kernels()[0].params.iter().map(|param| param.offset).collect();
    assert_eq!(offsets, [0, 16, 32, 40, 44]);
}

#[test]
fn an_mbarrier_of_a_bulk_copy_is_aligned() {
    // "mbarrier": an object lies at a multiple of 8 bytes.
    let card = Card::kernel(
        "mov.u32 %r1, 4; mov.u32 %r2, 32; mbarrier.init.shared::cta.b64 [0], 1;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 16, [%r1]; ret;",
    );
    let fault = card.run(1, card.buffer(&[0u32; 4])).unwrap_err();
    assert_eq!(fault.kind(), ptx::FaultKind::Misaligned, "{fault}");
}

#[test]
fn a_barrier_of_all_threads_may_name_their_number() {
    // "barrier": without a thread count all threads of the block take part, so that count names the same.
    let card = Card::kernel(
        "setp.lt.u32 %p1, %r0, 32; st.shared.u32 [0], 0; @%p1 bra FIRST; bar.sync 1, 64; bra END;
         FIRST: bar.sync 1;
         END: st.global.u32 [%rd0], 5; ret;",
    );
    let mut card = card;
    card.options.races = false;
    let out = card.buffer(&[0u32]);
    card.run(64, out).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(card.read::<u32>(out, 1), [5]);
}

#[test]
fn results_of_wgmma_that_nobody_reads_leave_other_registers_alone() {
    // "wgmma.mma_async": registers of `d` are written until the wait, read or not.
    let card = Card::kernel(
        "shl.b32 %r10, %r0, 2; st.shared.u32 [%r10], 0; bar.sync 0; fence.proxy.async;
         mov.b64 %rd1, 0x0000000800080000; setp.eq.u32 %p1, 0, 0;
         mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r3, 0; mov.b32 %r4, 0;
         mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f00000000; mov.f32 %f3, 0f00000000; mov.f32 %f4, 0f00000000;
         wgmma.fence.sync.aligned;
         wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, %rd1, %p1, 1, 1, 0;
         wgmma.commit_group.sync.aligned;
         mov.f32 %f5, 0f3f800000; mov.f32 %f6, 0f40000000; mov.f32 %f7, 0f40400000; mov.f32 %f8, 0f40800000;
         wgmma.wait_group.sync.aligned 0;
         add.f32 %f5, %f5, %f6; add.f32 %f7, %f7, %f8; add.f32 %f5, %f5, %f7;
         setp.eq.u32 %p1, %r0, 0; @%p1 st.global.f32 [%rd0], %f5; ret;",
    );
    let out = card.buffer(&[0f32]);
    card.run(128, out).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(card.read::<f32>(out, 1), [10.0]);
}

#[test]
fn a_copy_of_fewer_bytes_than_its_size_is_aligned_to_the_size() {
    // "cp.async": source and destination are aligned to cp-size, whatever src-size is.
    let kernel = |offset: u32| {
        let card = Card::kernel(&format!(
            "mov.u32 %r1, 0; cp.async.ca.shared.global [%r1], [%rd0+{offset}], 16, 4; cp.async.wait_all;
             ld.shared.v2.u32 {{%r2, %r3}}, [0]; st.global.v2.u32 [%rd0+48], {{%r2, %r3}}; ret;"
        ));
        let out = card.buffer(&[7u32; 16]);
        card.run(1, out).map(|_| card.read::<u32>(out + 48, 2))
    };
    assert_eq!(kernel(16).unwrap(), [7, 0]);
    assert_eq!(kernel(4).unwrap_err().kind(), ptx::FaultKind::Misaligned);
}

#[test]
fn parameters_of_a_kernel_are_read_only() {
    // "Parameter State Space": kernel parameters are shared by all threads and read with ld.param.
    for code in [
        "cvta.param.u64 %rd1, p; st.u64 [%rd1], %rd0;",
        "cvta.param.u64 %rd1, p; red.add.u32 [%rd1], 1;",
        "st.param.u64 [p], %rd0;",
    ] {
        let card = Card::kernel(&format!("{code} ret;"));
        let fault = card.run(1, card.buffer(&[0u32])).unwrap_err();
        assert_eq!(fault.kind(), ptx::FaultKind::OutOfBounds, "{code}: {fault}");
    }
    let card = Card::kernel("cvta.param.u64 %rd1, p; ld.u64 %rd2, [%rd1]; st.global.u64 [%rd0], %rd2; ret;");
    let out = card.buffer(&[0u64]);
    card.run(1, out).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(card.read::<u64>(out, 1), [out]);
}
