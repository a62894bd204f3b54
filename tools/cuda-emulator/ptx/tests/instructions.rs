//! Tables of instructions: operands in, results out, as the PTX manual has them.

mod common;

use common::{Card, table, wide};

#[test]
fn integers() {
    table(&[
        ("mov.u32 %r2, 7; sub.s32 %r1, 3, %r2;", -4i32 as u32),
        ("mul.hi.s32 %r1, -5, 0x40000000;", -2i32 as u32),
        ("mul.hi.u32 %r1, 0xffffffff, 0xffffffff;", 0xffff_fffe),
        ("mul.wide.u16 %r1, 0xffff, 0xffff;", 0xfffe_0001),
        ("mul.wide.s16 %r1, 0xffff, 3;", -3i32 as u32),
        ("mad.hi.u32 %r1, 0x80000000, 6, 5;", 8),
        ("add.sat.s32 %r1, 0x7fffffff, 1;", 0x7fff_ffff),
        ("sub.sat.s32 %r1, 0x80000000, 1;", 0x8000_0000),
        ("div.s32 %r1, -7, 2;", -3i32 as u32),
        ("rem.s32 %r1, -7, 2;", -1i32 as u32),
        ("div.u32 %r1, 7, 0;", u32::MAX),
        ("sad.u32 %r1, 3, 9, 100;", 106),
        ("mul24.lo.s32 %r1, 0x00ffffff, 5;", -5i32 as u32),
        ("mad24.lo.u32 %r1, 0x01000003, 5, 2;", 17),
        ("min.s32 %r1, -1, 1;", u32::MAX),
        ("max.u32 %r1, -1, 1;", u32::MAX),
        ("abs.s32 %r1, -9;", 9),
        ("neg.s32 %r1, 9;", -9i32 as u32),
        ("dp4a.s32.s32 %r1, 0xff020304, 0x02010101, 10;", 17),
        ("dp4a.u32.u32 %r1, 0xff020304, 0x02010101, 10;", 10 + 510 + 9),
        ("dp2a.lo.u32.u32 %r1, 0x00030002, 0x00000504, 1;", 1 + 8 + 15),
        ("mov.b16 %h1, 0xfff0; cvt.u32.u16 %r1, %h1;", 0xfff0),
        ("mov.b16 %h1, 0xfff0; cvt.s32.s16 %r1, %h1;", 0xffff_fff0),
        ("mov.b16 %h1, 7; mov.b16 %h2, 9; mul.lo.u16 %h3, %h1, %h2; cvt.u32.u16 %r1, %h3;", 63),
        ("mov.b16 %h1, 0x8000; shr.s16 %h3, %h1, 4; cvt.u32.u16 %r1, %h3;", 0xf800),
        ("vabsdiff4.u32.u32.u32.add %r1, 0x10203040, 0x20103050, 1;", 1 + 16 + 16 + 16),
        ("vabsdiff4.u32.u32.u32 %r1, 0x10203040, 0x20103050, 0;", 0x1010_0010),
        ("add.u16x2 %r1, 0x0001ffff, 0x00010001;", 0x0002_0000),
        ("add.cc.u32 %r2, 0xffffffff, 2; addc.u32 %r1, 5, 6;", 12),
        ("sub.cc.u32 %r2, 1, 2; subc.u32 %r1, 10, 3;", 6),
        ("mad.lo.cc.u32 %r2, 0x80000000, 2, 1; madc.hi.u32 %r1, 0x80000000, 2, 7;", 8),
        ("vote.sync.ballot.b32 %r1, 1, 1;", 1),
    ]);
    wide(&[
        ("mul.wide.s32 %rd1, -3, 5;", -15i64 as u64),
        ("mad.wide.u32 %rd1, 0xffffffff, 2, 3;", 0x2_0000_0001),
        ("mul.hi.u64 %rd1, 0xffffffffffffffff, 16;", 15),
        ("add.cc.u64 %rd2, 0xffffffffffffffff, 1; addc.u64 %rd1, 0, 0;", 1),
        ("mov.b64 %rd1, {1, 2};", 0x2_0000_0001),
        ("mov.b16 %h1, 3; mov.b64 %rd1, {%h1, %h1, %h1, %h1};", 0x3_0003_0003_0003),
        ("rem.u64 %rd1, 1000000000000, 7777777;", 1_000_000_000_000 % 7_777_777),
        ("cvt.s64.s32 %rd1, -2;", -2i64 as u64),
        ("cvt.sat.u32.s64 %r2, -5; cvt.u64.u32 %rd1, %r2;", 0),
    ]);
}

#[test]
fn bits() {
    table(&[
        ("lop3.b32 %r1, 0xff00ff00, 0xf0f0f0f0, 0xcccccccc, 0x96;", 0xff00_ff00 ^ 0xf0f0_f0f0 ^ 0xcccc_cccc),
        ("lop3.b32 %r1, 0xff00ff00, 0xf0f0f0f0, 0xcccccccc, 0xe8;", 0xfcc0_fcc0),
        ("shf.l.wrap.b32 %r1, 0x12345678, 0x9abcdef0, 8;", 0xbcde_f012),
        ("shf.r.clamp.b32 %r1, 0x12345678, 0x9abcdef0, 40;", 0x9abc_def0),
        ("shl.b32 %r1, 1, 32;", 0),
        ("shr.s32 %r1, -8, 40;", u32::MAX),
        ("prmt.b32 %r1, 0x33221100, 0x77665544, 0x7250;", 0x7722_5500),
        ("prmt.b32 %r1, 0x80, 0, 0x8888;", 0xffff_ffff),
        ("prmt.b32.f4e %r1, 0x33221100, 0x77665544, 1;", 0x4433_2211),
        ("bfe.u32 %r1, 0x12345678, 8, 12;", 0x456),
        ("bfe.s32 %r1, 0x00000f00, 8, 4;", u32::MAX),
        ("bfi.b32 %r1, 0xab, 0x11111111, 8, 8;", 0x1111_ab11),
        ("bfind.u32 %r1, 0x00010000;", 16),
        ("bfind.shiftamt.s32 %r1, -2;", 31),
        ("bfind.u32 %r1, 0;", u32::MAX),
        ("popc.b32 %r1, 0xf0f0;", 8),
        ("clz.b32 %r1, 0;", 32),
        ("brev.b32 %r1, 1;", 0x8000_0000),
        ("cnot.b32 %r1, 0;", 1),
        ("not.b32 %r1, 0;", u32::MAX),
        ("fns.b32 %r1, 0xaaaa, 0, 3;", 5),
        ("bmsk.clamp.b32 %r1, 4, 8;", 0xff0),
        ("szext.clamp.s32 %r1, 0x1ff, 8;", u32::MAX),
        ("setp.lt.s32 %p1|%p2, -1, 1; selp.u32 %r1, 1, 0, %p1; @%p2 mov.u32 %r1, 9;", 1),
        ("setp.lt.and.u32 %p1, 1, 2, !%p0; selp.u32 %r1, 5, 6, %p1;", 5),
        ("set.lt.u32.u32 %r1, 1, 2;", u32::MAX),
        ("slct.u32.s32 %r1, 5, 6, -1;", 6),
        ("slct.u32.f32 %r1, 5, 6, 0f80000000;", 5),
        (
            "setp.eq.u32 %p1, 1, 1; setp.eq.u32 %p2, 1, 2; xor.pred %p3, %p1, %p2; and.pred %p3, %p3, %p1; not.pred %p4, %p3; selp.u32 %r1, 3, 4, %p4;",
            4,
        ),
    ]);
    wide(&[
        ("bfe.u64 %rd1, 0x123456789abcdef0, 20, 40;", 0x1234_5678_9abc_def0 >> 20 & 0xff_ffff_ffff),
        ("bfi.b64 %rd1, 0xff, 0, 60, 8;", 0xf << 60),
        ("brev.b64 %rd1, 2;", 1 << 62),
        ("shr.u64 %rd1, 0x8000000000000000, 63;", 1),
        ("clz.b64 %r2, 1; cvt.u64.u32 %rd1, %r2;", 63),
    ]);
}

#[test]
fn floats_at_their_edges() {
    let f = f32::to_bits;
    let case = |code: &str| format!("{code} mov.b32 %r1, %f1;");
    let cases: Vec<(String, u32)> = [
        ("add.rn.f32 %f1, 0f7F800000, 0fFF800000;", 0x7fff_ffff),
        ("add.ftz.f32 %f1, 0f00000001, 0f80000000;", 0),
        ("fma.rn.sat.f32 %f1, 0f40000000, 0f40000000, 0f3F800000;", f(1.0)),
        ("add.rz.f32 %f1, 0f3F800000, 0f33000001;", f(1.0)),
        ("add.rp.f32 %f1, 0f3F800000, 0f00000001;", 0x3f80_0001),
        ("add.rm.f32 %f1, 0f3F800000, 0fBF800000;", 0x8000_0000),
        ("min.f32 %f1, 0f7FC00000, 0f3F800000;", f(1.0)),
        ("min.NaN.f32 %f1, 0f7FC00000, 0f3F800000;", 0x7fff_ffff),
        ("max.f32 %f1, 0f80000000, 0f00000000;", 0),
        ("min.xorsign.abs.f32 %f1, 0fC0000000, 0f40400000;", f(-2.0)),
        ("abs.f32 %f1, 0fC0000000;", f(2.0)),
        ("copysign.f32 %f1, 0fC0000000, 0f40400000;", f(-3.0)),
        ("rcp.rn.f32 %f1, 0f40400000;", f(1.0 / 3.0)),
        ("rcp.approx.ftz.f32 %f1, 0f00000001;", f(f32::INFINITY)),
        ("sqrt.rn.f32 %f1, 0fBF800000;", 0x7fff_ffff),
        ("rsqrt.approx.f32 %f1, 0f40800000;", f(0.5)),
        ("ex2.approx.f32 %f1, 0f40400000;", f(8.0)),
        ("lg2.approx.f32 %f1, 0f41000000;", f(3.0)),
        ("tanh.approx.f32 %f1, 0f00000000;", 0),
        ("div.full.f32 %f1, 0f3F800000, 0f40800000;", f(0.25)),
        ("cvt.rn.f32.s32 %f1, 0x7fffffff;", f(2_147_483_648.0)),
        ("cvt.rz.f32.u32 %f1, 0xffffffff;", 0x4f7f_ffff),
        ("cvt.rpi.f32.f32 %f1, 0f3F800001;", f(2.0)),
        ("mov.b16 %h1, 0x0001; cvt.f32.f16 %f1, %h1;", f(5.960_464_5e-8)),
        ("mov.b16 %h1, 0x3f80; cvt.f32.bf16 %f1, %h1;", f(1.0)),
        ("mov.f64 %d1, 0d3FF0000010000000; cvt.rp.f32.f64 %f1, %d1;", 0x3f80_0001),
    ]
    .into_iter()
    .map(|(code, value)| (case(code), value))
    .collect();
    let cases: Vec<(&str, u32)> = cases.iter().map(|(code, value)| (code.as_str(), *value)).collect();
    table(&cases);
    table(&[
        ("cvt.rzi.s32.f32 %r1, 0f7FC00000;", 0),
        ("cvt.rzi.s32.f32 %r1, 0f4F800000;", 0x7fff_ffff),
        ("cvt.rni.u32.f32 %r1, 0f40200000;", 2),
        ("cvt.rmi.s32.f32 %r1, 0fBF000000;", -1i32 as u32),
        ("cvt.rn.f16x2.f32 %r1, 0f3F800000, 0f40000000;", 0x3c00_4000),
        ("cvt.rn.relu.bf16x2.f32 %r1, 0fBF800000, 0f40000000;", 0x4000),
        ("cvt.rna.tf32.f32 %r1, 0f3F801000;", 0x3f80_2000),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, 0f43E00000, 0f7F800000; cvt.u32.u16 %r1, %h1;", 0x7e7e),
        ("mov.b16 %h1, 0x3c7e; cvt.rn.f16x2.e4m3x2 %r1, %h1;", 0x3e00_5f00),
        ("fma.rn.f16x2 %r1, 0x3c004000, 0x40004000, 0x3c003c00;", 0x4200_4500),
        ("fma.rn.bf16x2 %r1, 0x3f804000, 0x40004000, 0x3f803f80;", 0x4040_40a0),
        ("max.bf16x2 %r1, 0x3f80bf80, 0x00000000;", 0x3f80_0000),
        ("set.eq.u32.f16x2 %r1, 0x3c000000, 0x3c003c00;", 0xffff_0000),
        ("mov.b16 %h1, 0x7e00; setp.nan.f16 %p1, %h1, %h1; selp.u32 %r1, 1, 0, %p1;", 1),
        ("setp.ltu.f32 %p1, 0f7FC00000, 0f00000000; selp.u32 %r1, 1, 0, %p1;", 1),
        ("setp.ne.f32 %p1, 0f7FC00000, 0f00000000; selp.u32 %r1, 1, 0, %p1;", 0),
        ("testp.subnormal.f32 %p1, 0f00000001; selp.u32 %r1, 1, 0, %p1;", 1),
        ("mov.f64 %d1, 0dFFF8000000000000; cvt.rzi.s32.f64 %r1, %d1;", 0x8000_0000),
    ]);
}

#[test]
fn memory_of_all_widths_and_spaces() {
    table(&[
        ("st.shared.v4.u32 [dynamic+16], {1, 2, 3, 4}; ld.shared.u8 %r1, [dynamic+24];", 3),
        ("st.shared.u32 [dynamic], 0xfedcba98; ld.shared.s8 %r1, [dynamic+3];", 0xffff_fffe),
        ("st.shared.u32 [dynamic], 0xfedcba98; ld.shared.s16 %r1, [dynamic];", 0xffff_ba98),
        ("st.shared.u64 [dynamic], 0x123456789; ld.shared.u32 %r1, [dynamic+4];", 1),
        (
            ".local .align 8 .b8 l[32]; .reg .b64 %a; mov.b64 %a, l; st.local.u16 [%a+6], 0xabcd; ld.local.u32 %r1, [%a+4];",
            0xabcd_0000,
        ),
        (
            ".local .align 8 .b8 m[32]; .reg .b64 %a; mov.b64 %a, m; cvta.local.u64 %a, %a; st.u32 [%a], 77; ld.u32 %r1, [%a];",
            77,
        ),
        (
            ".reg .b64 %a; cvta.shared.u64 %a, 64; st.u32 [%a], 5; isspacep.shared %p1, %a; @%p1 ld.shared.u32 %r1, [64];",
            5,
        ),
        (
            ".reg .b64 %a; mov.b64 %a, p; cvta.param.u64 %a, %a; ld.u32 %r2, [%a]; ld.param.u32 %r3, [p]; sub.s32 %r1, %r2, %r3;",
            0,
        ),
        (
            "st.shared.u32 [8], 3; atom.shared.add.u32 %r2, [8], 4; red.shared.max.s32 [8], 5; ld.shared.u32 %r3, [8]; mad.lo.s32 %r1, %r2, 100, %r3;",
            307,
        ),
        ("st.shared.u32 [8], 3; atom.shared.cas.b32 %r2, [8], 3, 9; ld.volatile.shared.u32 %r1, [8];", 9),
        ("st.shared.u64 [8], 3; atom.shared.exch.b64 %rd1, [8], 1; cvt.u32.u64 %r1, %rd1;", 3),
    ]);
}

#[test]
fn calls_copy_parameters_and_recursion_keeps_frames_apart() {
    let text = "
.version 8.3
.target sm_80
.address_size 64
.func (.param .b32 out) factorial(.param .b32 n)
{
.reg .pred %p<2>; .reg .b32 %r<6>;
ld.param.u32 %r1, [n];
setp.lt.u32 %p1, %r1, 2;
@%p1 bra ONE;
sub.s32 %r2, %r1, 1;
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), factorial, (a); ld.param.b32 %r3, [b]; }
mul.lo.s32 %r4, %r3, %r1;
st.param.b32 [out], %r4;
ret;
ONE:
st.param.b32 [out], 1;
ret;
}
.global .u64 table[1] = {factorial};
.visible .entry k(.param .u64 p)
{
.reg .b32 %r<6>; .reg .b64 %rd<6>;
ld.param.u64 %rd1, [p];
mov.u32 %r1, %tid.x;
rem.u32 %r2, %r1, 11;
ld.global.u64 %rd3, [table];
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; P: .callprototype (.param .b32 _) _ (.param .b32 _); call (b), %rd3, (a), P; ld.param.b32 %r3, [b]; }
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd1, %rd1, %rd2;
st.global.u32 [%rd1], %r3;
ret;
}";
    for seed in [None, Some(1), Some(2)] {
        let mut card = Card::new(text);
        card.options.seed = seed;
        let out = card.buffer(&[0u32; 64]);
        card.run(64, out).unwrap();
        let expected: Vec<u32> = (0..64).map(|i| (1..=i % 11).product()).collect();
        assert_eq!(card.read::<u32>(out, 64), expected);
    }
}

#[test]
fn loops_of_unequal_length_and_switches_meet_again() {
    // Lane i counts to i; then all lanes vote.
    let body = "
mov.u32 %r1, 0;
L: setp.ge.u32 %p1, %r1, %r0;
@%p1 bra M;
add.s32 %r1, %r1, 1;
bra L;
M: T: .branchtargets A, B, C;
rem.u32 %r2, %r0, 3;
brx.idx %r2, T;
A: mul.lo.s32 %r1, %r1, 10; bra.uni E;
B: mul.lo.s32 %r1, %r1, 100; bra.uni E;
C: mul.lo.s32 %r1, %r1, 1000;
E: activemask.b32 %r3;
vote.sync.ballot.b32 %r4, -1, -1;
mul.wide.u32 %rd1, %r0, 12; add.s64 %rd1, %rd0, %rd1;
st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r3; st.global.u32 [%rd1+8], %r4;
ret;";
    let card = Card::kernel(&body.replace("ballot.b32 %r4, -1, -1", "ballot.b32 %r4, 1, -1"));
    let out = card.buffer(&[0u32; 96]);
    let counts = card.run(32, out).unwrap();
    assert!(counts.diverged > 100);
    for (i, found) in card.read::<u32>(out, 96).chunks(3).enumerate() {
        assert_eq!(found, [i as u32 * 10u32.pow(1 + i as u32 % 3), u32::MAX, u32::MAX]);
    }
}

#[test]
fn blocks_that_wait_for_each_other_make_progress() {
    // Block i waits until block i + 1 has written.
    let body = "
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; add.s32 %r3, %r1, 1;
mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;
setp.eq.u32 %p1, %r3, %r2;
@%p1 bra D;
L: ld.acquire.gpu.global.u32 %r4, [%rd1+4];
setp.eq.u32 %p2, %r4, 0;
@%p2 bra L;
D: st.release.gpu.global.u32 [%rd1], %r3;
ret;";
    let card = Card::kernel(body);
    let out = card.buffer(&[0u32; 40]);
    card.launch("k", 40, 1, 0, &[out.into()]).unwrap();
    assert_eq!(card.read::<u32>(out, 40), (1..=40).collect::<Vec<_>>());
}

#[test]
fn words_of_128_bits_are_exchanged_and_compared() {
    let card = Card::kernel(
        ".reg .b128 %q<5>; .reg .b64 %x<9>;
         mov.b64 %x1, 5; mov.b64 %x2, 6; mov.b128 %q1, {%x1, %x2};
         atom.global.exch.b128 %q2, [%rd0], %q1; mov.b128 {%x3, %x4}, %q2;
         mov.b64 %x5, 7; mov.b128 %q3, {%x5, %x2};
         atom.relaxed.gpu.global.cas.b128 %q4, [%rd0], %q3, %q2;
         atom.relaxed.gpu.global.cas.b128 %q4, [%rd0], %q1, %q3; mov.b128 {%x6, %x7}, %q4;
         st.global.v2.b64 [%rd0+16], {%x3, %x4}; st.global.v2.b64 [%rd0+32], {%x6, %x7}; ret;",
    );
    let out = card.buffer(&[1u64, 2, 0, 0, 0, 0]);
    card.run(1, out).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(card.read::<u64>(out, 6), [7, 6, 1, 2, 5, 6]);
}

/// A loop whose block for one lane lies behind the end of the loop, as LLVM lays out what it takes for rare: the lanes that skip it wait
/// for that lane where both sides join.
#[test]
fn lanes_meet_again_at_a_join_that_the_text_has_before_one_of_its_sides() {
    let card = Card::kernel(
        "mov.u32 %r1, 0; mov.u32 %r2, 0; setp.eq.u32 %p1, %r0, 0; bra.uni HEAD;
         JOIN: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 4; @!%p2 bra DONE;
         HEAD: activemask.b32 %r3; popc.b32 %r3, %r3; add.u32 %r2, %r2, %r3; @!%p1 bra JOIN;
         add.u32 %r2, %r2, 1000; bra.uni JOIN;
         DONE: mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r2; ret;",
    );
    let out = card.buffer(&[0u32; 32]);
    card.run(32, out).unwrap_or_else(|fault| panic!("{fault}"));
    let expected: Vec<u32> = (0..32).map(|lane| if lane == 0 { 4 * 32 + 4000 } else { 4 * 32 }).collect();
    assert_eq!(card.read::<u32>(out, 32), expected);
}

/// Unlike C's, the function returns how many arguments it has taken.
#[test]
fn printf_returns_the_number_of_its_arguments() {
    let text = |text: &str| text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    let call = |format: &str, at: u32| {
        format!(
            "{{ .param .b64 format; .param .b64 values; .param .b32 count; {format} st.param.b64 [format], %rd1;
             st.param.b64 [values], %rd2; call.uni (count), vprintf, (format, values); ld.param.b32 %r1, [count]; }}
             st.global.u32 [%rd0+{at}], %r1;\n"
        )
    };
    let card = Card::new(&format!(
        ".version 8.3\n.target sm_80\n.address_size 64\n.extern .func (.param .b32 n) vprintf (.param .b64 a, .param .b64 b);
         .global .b8 none[] = {{{}, 0}}; .global .b8 three[] = {{{}, 0}};
         .visible .entry k(.param .u64 p) {{ .reg .b64 %rd<3>; .reg .b32 %r<2>; .local .align 8 .b8 room[16];
         ld.param.u64 %rd0, [p]; st.local.u32 [room], 4; st.local.u32 [room+4], 7; st.local.u32 [room+8], 9;
         mov.u64 %rd2, room; cvta.local.u64 %rd2, %rd2; {}{}{} ret; }}",
        text("100%% plain\n"),
        text("%*d %u\n"),
        call("mov.u64 %rd1, none;", 0),
        call("mov.u64 %rd1, three;", 4),
        call("mov.u64 %rd1, 0;", 8),
    ));
    let out = card.buffer(&[7i32; 3]);
    card.launch("k", 1, 1, 0, &[out.into()]).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(card.read::<i32>(out, 3), [0, 3, -1]);
}
