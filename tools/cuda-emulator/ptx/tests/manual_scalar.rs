//! Corners of scalar instructions that the PTX manual spells out, each with the section that does.

mod common;

use common::{Card, table, wide};

#[test]
fn registers_of_16_bits_have_nothing_above_them() {
    // "Constant Expressions": a literal takes the size of its operand, so -1 of 16 bits is 0xffff.
    table(&[
        (
            "mov.b16 %h1, 5; xor.b16 %h2, %h1, -1; not.b16 %h2, %h2; xor.b16 %h2, %h2, 5; cnot.b16 %h3, %h2; cvt.u32.u16 %r1, %h3;",
            1,
        ),
        ("mov.b16 %h1, 0; or.b16 %h2, %h1, -1; xor.b16 %h2, %h2, 0xffff; cnot.b16 %h3, %h2; cvt.u32.u16 %r1, %h3;", 1),
        ("mov.b16 %h1, -1; xor.b16 %h2, %h1, 0xffff; cnot.b16 %h3, %h2; cvt.u32.u16 %r1, %h3;", 1),
    ]);
}

#[test]
fn products_of_bf16_are_rounded_once_and_keep_their_range() {
    // "fma" of half precision: "with no loss of precision in the intermediate product and addition".
    table(&[
        // 2^64 * 2^64 - (2^128 - 2^120) = 2^120.
        ("mov.b16 %h1, 0x5f80; mov.b16 %h2, 0xff7f; fma.rn.bf16 %h3, %h1, %h1, %h2; cvt.u32.u16 %r1, %h3;", 0x7b80),
        // (1 + 2^-7) 2^-67 * 2^-67 is a half more than 2^-134, half of the least subnormal: it rounds up.
        ("mov.b16 %h1, 0x1e01; mov.b16 %h2, 0x1e00; mul.bf16 %h3, %h1, %h2; cvt.u32.u16 %r1, %h3;", 1),
        // The product of 2^-67 and 2^-67 lies between 0 and the least subnormal, and c breaks the tie upwards.
        ("mov.b16 %h1, 0x1e00; mov.b16 %h2, 0x0001; fma.rn.bf16 %h3, %h1, %h1, %h2; cvt.u32.u16 %r1, %h3;", 2),
        // (1 + 2^-7)^2 2^-134 = (1 + 2^-6 + 2^-14) 2^-134: above half of the least subnormal.
        ("mov.b32 %r2, 0x1e011e01; mul.bf16x2 %r1, %r2, %r2;", 0x0001_0001),
    ]);
}

#[test]
fn flushing_reaches_signs_and_powers() {
    // "neg", "abs" of half precision: `.ftz` flushes subnormal inputs to sign-preserving zero.
    table(&[
        ("mov.b16 %h1, 0x0001; neg.ftz.f16 %h2, %h1; cvt.u32.u16 %r1, %h2;", 0x8000),
        ("mov.b16 %h1, 0x8001; abs.ftz.f16 %h2, %h1; cvt.u32.u16 %r1, %h2;", 0),
        ("mov.b16 %h1, 0x8001; abs.f16 %h2, %h1; cvt.u32.u16 %r1, %h2;", 1),
        ("mov.b32 %r2, 0x00010c00; neg.ftz.f16x2 %r1, %r2;", 0x8000_8c00),
        ("mov.b32 %r2, 0x80010c00; neg.f16x2 %r1, %r2;", 0x0001_8c00),
        // "ex2" of half precision: 2^-130 is subnormal in bf16.
        ("mov.b16 %h1, 0xc302; ex2.approx.ftz.bf16 %h2, %h1; cvt.u32.u16 %r1, %h2;", 0),
    ]);
}

#[test]
fn approximate_division_by_large_numbers_is_zero() {
    // "div" of floating point: for 2^126 < |b| < 2^128 div.approx.f32 returns 0, and NaN if a is infinity.
    table(&[
        ("mov.f32 %f1, 0f7f7fffff; mov.f32 %f2, 0f7f000000; div.approx.f32 %f3, %f1, %f2; mov.b32 %r1, %f3;", 0),
        (
            "mov.f32 %f1, 0f7f800000; mov.f32 %f2, 0f7f000000; div.approx.f32 %f3, %f1, %f2; mov.b32 %r1, %f3;",
            0x7fff_ffff,
        ),
        (
            "mov.f32 %f1, 0f7f000000; mov.f32 %f2, 0f7e800000; div.approx.f32 %f3, %f1, %f2; mov.b32 %r1, %f3;",
            0x4000_0000,
        ),
        (
            "mov.f32 %f1, 0f7f000000; mov.f32 %f2, 0f7f000000; div.full.f32 %f3, %f1, %f2; mov.b32 %r1, %f3;",
            0x3f80_0000,
        ),
    ]);
}

#[test]
fn finite_conversions_and_those_that_drop_negative_values() {
    // "cvt": `.satfinite` gives the largest finite value instead of infinity, `.relu` zero for negative ones.
    table(&[
        ("mov.f32 %f1, 0f7f7fffff; cvt.rna.satfinite.tf32.f32 %r1, %f1;", 0x7f7f_e000),
        ("mov.f32 %f1, 0fff7fffff; cvt.rna.satfinite.tf32.f32 %r1, %f1;", 0xff7f_e000),
        ("mov.f32 %f1, 0f7f7fffff; cvt.rna.tf32.f32 %r1, %f1;", 0x7f80_0000),
        ("mov.f32 %f1, 0f7fc00001; cvt.rna.satfinite.tf32.f32 %r1, %f1;", 0x7fff_e000),
        ("mov.f32 %f1, 0f477fffff; cvt.rn.satfinite.f16.f32 %h1, %f1; cvt.u32.u16 %r1, %h1;", 0x7bff),
        ("mov.f32 %f1, 0fff7fffff; cvt.rn.satfinite.bf16.f32 %h1, %f1; cvt.u32.u16 %r1, %h1;", 0xff7f),
        ("mov.f32 %f1, 0fff7fffff; cvt.rn.relu.satfinite.bf16.f32 %h1, %f1; cvt.u32.u16 %r1, %h1;", 0),
        ("mov.b16 %h1, 0xbc3c; cvt.rn.relu.f16x2.e5m2x2 %r1, %h1;", 0x0000_3c00),
        ("mov.b16 %h1, 0xfd7c; cvt.rn.f16x2.e5m2x2 %r1, %h1;", 0x7fff_7c00),
        ("cvt.pack.sat.s4.s32.b32 %r1, 100, -100, 0x1234;", 0x0012_3478),
        ("cvt.pack.sat.u2.s32.b32 %r1, 9, 1, 0xabc;", 0x0000_abcd),
    ]);
    // "cvt": `.sat` limits to the range from 0.0 to 1.0, of `.f64` too.
    wide(&[("cvt.rn.sat.f64.s32 %d1, 7; mov.b64 %rd1, %d1;", 1f64.to_bits())]);
}

#[test]
fn results_of_f64_are_rounded_in_their_direction_everywhere() {
    // "Rounding Modifiers": .rz towards zero, .rm towards negative infinity; no result overflows against its direction.
    wide(&[
        ("mul.rz.f64 %d1, 0d7fefffffffffffff, 0d4000000000000000; mov.b64 %rd1, %d1;", 0x7fef_ffff_ffff_ffff),
        ("add.rm.f64 %d1, 0d3ff0000000000000, 0dbff0000000000000; mov.b64 %rd1, %d1;", 1 << 63),
        ("fma.rp.f64 %d1, 0d0000000000000001, 0d0000000000000001, 0d0000000000000000; mov.b64 %rd1, %d1;", 1),
    ]);
    // "cvt": `.ftz` flushes subnormal results of type .f32.
    table(&[("mov.b16 %h1, 0x8001; cvt.ftz.f32.bf16 %f1, %h1; mov.b32 %r1, %f1;", 0x8000_0000)]);
}

#[test]
fn approximations_of_f64_look_at_upper_halves_and_flush() {
    // "rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64": the least significant 32 bits of the operand are ignored, and
    // subnormal operands and results are zeros of their sign.
    wide(&[
        ("rcp.approx.ftz.f64 %d1, 0d7feffffffff00000; mov.b64 %rd1, %d1;", 0),
        ("rcp.approx.ftz.f64 %d1, 0dffe8000000000000; mov.b64 %rd1, %d1;", 1 << 63),
        ("rcp.approx.ftz.f64 %d1, 0d7fd0000000000000; mov.b64 %rd1, %d1;", 1 << 52),
        ("rcp.approx.ftz.f64 %d1, 0d3ff00000ffffffff; mov.b64 %rd1, %d1;", 1f64.to_bits()),
        ("rcp.approx.ftz.f64 %d1, 0d800fffffffffffff; mov.b64 %rd1, %d1;", f64::NEG_INFINITY.to_bits()),
        ("rsqrt.approx.ftz.f64 %d1, 0d0000000000000001; mov.b64 %rd1, %d1;", f64::INFINITY.to_bits()),
        ("rsqrt.approx.f64 %d1, 0d0000000000000001; mov.b64 %rd1, %d1;", 0x6180_0000_0000_0000),
        ("rsqrt.approx.f64 %d1, 0d4008000000000000; mov.b64 %rd1, %d1;", (1.0 / 3f64.sqrt()).to_bits()),
    ]);
}

#[test]
fn integers_that_stop_at_zero_or_at_their_ends() {
    // "min", "max", "mad24".
    table(&[
        ("min.relu.s32 %r1, -5, 3;", 0),
        ("max.relu.s32 %r1, -5, 3;", 3),
        ("max.relu.s16x2 %r1, 0xfffffff0, 0xfffe0007;", 0x0000_0007),
        ("min.relu.s16x2 %r1, 0x00050009, 0xfffe0007;", 0x0000_0007),
        ("mad24.hi.sat.s32 %r1, 0x7fffff, 0x7fffff, 0x7fffffff;", 0x7fff_ffff),
        ("mad24.hi.sat.s32 %r1, 0x800000, 0x7fffff, 0;", 0xc000_0080),
    ]);
}

#[test]
fn a_subtraction_sets_the_carry_unless_it_borrows() {
    // The manual's text would set it if it borrows. What ptxas 12.9 makes of these is a + !b + 1, and NVRTC's division of
    // 128-bit integers counts on it.
    table(&[
        ("mov.u32 %r2, 5; sub.cc.u32 %r3, %r2, 3; addc.u32 %r1, 0, 0;", 1),
        ("mov.u32 %r2, 3; sub.cc.u32 %r3, %r2, 5; addc.u32 %r1, 0, 0;", 0),
        ("mov.u32 %r2, 5; add.cc.u32 %r3, %r2, 3; subc.u32 %r1, 10, 0;", 9),
        ("mov.u32 %r2, -1; add.cc.u32 %r3, %r2, 5; subc.u32 %r1, 10, 0;", 10),
        ("mov.u32 %r2, 3; sub.cc.u32 %r3, %r2, 5; subc.u32 %r1, 10, 0;", 9),
        ("mov.u32 %r2, 3; sub.cc.u32 %r3, %r2, 5; madc.lo.u32 %r1, 2, 3, 0;", 6),
    ]);
    wide(&[
        ("mov.u64 %rd2, 3; sub.cc.u64 %rd3, %rd2, 5; addc.u64 %rd1, 0, 0;", 0),
        ("mov.u64 %rd2, 5; sub.cc.u64 %rd3, %rd2, 5; subc.u64 %rd1, 10, 0;", 10),
    ]);
}

#[test]
fn differences_of_halves() {
    // "vabsdiff2": |a - b| of each half, and with `.add` their sum with c.
    table(&[
        ("vabsdiff2.u32.u32.u32 %r1, 0x00050009, 0x00070002, 0;", 0x0002_0007),
        ("vabsdiff2.u32.u32.u32.add %r1, 0x00050009, 0x00070002, 100;", 109),
        ("vabsdiff2.s32.s32.s32.add %r1, 0xffff0009, 0x00010002, 0;", 9),
        ("vabsdiff2.u32.s32.s32 %r1, 0x80000000, 0x7fff0000, 0;", 0xffff_0000),
    ]);
}

#[test]
fn lookups_have_a_predicate_beside_their_result() {
    // "lop3": p = (d != 0) BoolOp q.
    table(&[
        ("setp.eq.u32 %p1, 1, 2; lop3.or.b32 %r1|%p2, 12, 10, 0, 0xc0, %p1; selp.u32 %r1, %r1, 99, %p2;", 8),
        ("setp.eq.u32 %p1, 1, 2; lop3.and.b32 %r1|%p2, 12, 10, 0, 0xc0, %p1; selp.u32 %r1, %r1, 99, %p2;", 99),
        ("setp.eq.u32 %p1, 1, 2; lop3.or.b32 _|%p1, 12, 3, 0, 0xc0, !%p1; selp.u32 %r1, 4, 5, %p1;", 4),
        ("mov.u32 %r1, 6; setp.eq.u32 %p1, 1, 1; lop3.and.b32 %r1|%p1, %r1, 1, 0, 0xc0, %p1; @%p1 mov.u32 %r1, 5;", 0),
    ]);
}

#[test]
fn a_packed_comparison_writes_both_predicates_at_once() {
    // "setp": the third operand and the guard are read before p and q are written.
    table(&[
        (
            "setp.eq.u32 %p1, 1, 1; mov.b32 %r2, 0x3c003c00; mov.b32 %r3, 0x3c000000;
             setp.eq.and.f16x2 %p1|%p2, %r2, %r3, %p1; selp.u32 %r1, 1, 0, %p1; @%p2 add.u32 %r1, %r1, 2;",
            2,
        ),
        (
            "setp.eq.u32 %p1, 1, 1; mov.b32 %r2, 0x3c003c00; mov.b32 %r3, 0x3c000000; setp.ne.u32 %p2, 1, 1;
             @%p1 setp.eq.f16x2 %p1|%p2, %r2, %r3; selp.u32 %r1, 1, 0, %p1; @%p2 add.u32 %r1, %r1, 2;",
            2,
        ),
    ]);
}

#[test]
fn upper_halves_of_clocks_are_small() {
    // "%clock_hi", "%globaltimer_hi": the upper 32 bits.
    table(&[("mov.u32 %r1, %clock_hi;", 0), ("mov.u32 %r1, %globaltimer_hi;", 0)]);
}

#[test]
fn what_the_assembler_refuses_ends_the_launch_or_is_no_module() {
    for code in [
        "add.sat.u32 %r1, %r2, %r3;",
        "min.abs.f32 %f1, %f2, %f3;",
        "isspacep.const %p1, %rd0;",
        "fma.rz.bf16 %h1, %h2, %h3, %h4;",
        "ld.global.v2.u32 {%r1, %r2, %r3}, [%rd0];",
        "ld.global.v8.b64 {%rd1, %rd2, %rd3, %rd4, %rd5, %rd6, %rd7, %rd8}, [%rd0];",
        "ld.global.u32 {%r1, %r2}, [%rd0];",
    ] {
        let card = Card::kernel(&format!("{code} ret;"));
        assert_eq!(card.module.unsupported().len(), 1, "{code}");
    }
}

#[test]
fn a_module_has_the_instructions_of_its_target() {
    // "Target ISA Notes" of each section; ptxas 12.9 agrees.
    let card = |target: &str, code: &str| {
        Card::new(&format!(
            ".version 8.7\n.target {target}\n.address_size 64\n.visible .entry k() {{
             .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<4>; .reg .f64 %fd<4>;\n{code}\nret;\n}}"
        ))
    };
    for (least, code) in [
        ("sm_50", "add.s32 %r1, %r2, %r3; mov.u64 %rd1, %rd2; bar.sync 0; shfl.sync.idx.b32 %r1, %r2, %r3, 31, -1;"),
        (
            "sm_50",
            "lop3.b32 %r1, %r2, %r3, %r4, 3; ld.global.nc.f32 %f1, [%rd1]; atom.global.add.f32 %f1, [%rd1], %f2;",
        ),
        ("sm_52", "stacksave.u64 %rd1;"),
        ("sm_53", "fma.rn.f16x2 %r1, %r2, %r3, %r4;"),
        ("sm_53", "setp.lt.f16 %p1, %h2, %h3;"),
        ("sm_60", "atom.shared.add.f64 %fd1, [%rd1], %fd2;"),
        ("sm_60", "red.sys.global.add.u32 [%rd1], %r2;"),
        ("sm_61", "dp4a.u32.u32 %r1, %r2, %r3, %r4;"),
        ("sm_70", "atom.global.cas.b16 %h1, [%rd1], %h2, %h3;"),
        ("sm_70", "ld.acquire.gpu.global.f32 %f1, [%rd1];"),
        ("sm_70", "ld.global.nc.L1::no_allocate.f32 %f1, [%rd1];"),
        ("sm_70", "fence.acq_rel.cta; fence.acquire.gpu; fence.release.cta;"),
        ("sm_70", "lop3.and.b32 %r1|%p1, %r2, %r3, %r4, 3, %p2;"),
        ("sm_70", "wmma.load.c.sync.aligned.row.m16n16k16.f16 {%r1, %r2, %r3, %r4}, [%rd1];"),
        ("sm_72", "cvt.pack.sat.s16.s32 %r1, %r2, %r3;"),
        ("sm_72", "wmma.load.a.sync.aligned.row.m16n16k16.u8 {%r1, %r2}, [%rd1];"),
        ("sm_75", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];"),
        ("sm_75", "tanh.approx.f32 %f1, %f2;"),
        ("sm_75", "ld.global.L2::128B.f32 %f1, [%rd1];"),
        ("sm_75", "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r3, %r4}, {%r1}, {%r1, %r2};"),
        ("sm_80", "min.NaN.f32 %f1, %f2, %f3;"),
        ("sm_80", "cvt.rn.bf16x2.f32 %r1, %f1, %f2; fma.rn.bf16x2 %r1, %r2, %r3, %r4;"),
        ("sm_80", "cp.async.wait_all;"),
        ("sm_80", "mbarrier.init.shared.b64 [%r1], 1;"),
        ("sm_80", "redux.sync.add.s32 %r1, %r2, -1;"),
        ("sm_80", "wmma.load.a.sync.aligned.row.m8n8k4.f64 {%fd1}, [%rd1];"),
        ("sm_86", "min.xorsign.abs.f32 %f1, %f2, %f3;"),
        ("sm_89", "cvt.rn.satfinite.e4m3x2.f32 %h1, %f2, %f3;"),
        ("sm_90", "add.bf16x2 %r1, %r2, %r3;"),
        ("sm_90", "cvt.rn.bf16.s32 %h1, %r1;"),
        ("sm_90", "atom.global.add.noftz.bf16x2 %r1, [%rd1], %r2;"),
        ("sm_90", "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;"),
        ("sm_90", "mov.u32 %r1, %cluster_ctarank;"),
        ("sm_90", "cvta.shared::cluster.u64 %rd1, %rd2;"),
        ("sm_90", "cp.async.bulk.commit_group;"),
        ("sm_90a", "setmaxnreg.inc.sync.aligned.u32 232;"),
    ] {
        let older = ["sm_50", "sm_52", "sm_53", "sm_60", "sm_61", "sm_70", "sm_72", "sm_75"];
        for target in older.into_iter().chain(["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"]) {
            let has = target >= least;
            assert_eq!(card(target, code).module.unsupported().is_empty(), has, "{code} for {target}");
        }
    }
}
