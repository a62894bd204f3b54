//! Values that the PTX manual's tables and formulas give at the edges of types, each with the section that does.

mod common;

use common::{table, wide};

/// `code` that leaves an `f32` in `%f1`, as a case of `table`.
fn f32_cases(cases: &[(&str, u32)]) {
    let cases: Vec<(String, u32)> =
        cases.iter().map(|(code, value)| (format!("{code} mov.b32 %r1, %f1;"), *value)).collect();
    table(&cases.iter().map(|(code, value)| (code.as_str(), *value)).collect::<Vec<_>>());
}

/// `code` that leaves 16 bits in `%h1`.
fn b16_cases(cases: &[(&str, u32)]) {
    let cases: Vec<(String, u32)> =
        cases.iter().map(|(code, value)| (format!("{code} cvt.u32.u16 %r1, %h1;"), *value)).collect();
    table(&cases.iter().map(|(code, value)| (code.as_str(), *value)).collect::<Vec<_>>());
}

#[test]
fn nans_become_integers_as_the_table_says() {
    // "cvt": zero if neither side has 64 bits, otherwise the bit of the sign.
    table(&[
        ("cvt.rzi.u32.f32 %r1, 0f7fc00000;", 0),
        ("mov.b16 %h1, 0x7e00; cvt.rni.s32.f16 %r1, %h1;", 0),
        ("cvt.rzi.u32.f64 %r1, 0d7ff8000000000000;", 0x8000_0000),
        // A destination that is wider than the type gets the sign.
        ("cvt.rzi.s8.f64 %r1, 0d7ff8000000000000;", 0xffff_ff80),
        ("cvt.rzi.u8.f64 %r1, 0d7ff8000000000000;", 0x80),
        ("cvt.rzi.s16.f64 %r1, 0d7ff8000000000000;", 0xffff_8000),
    ]);
    b16_cases(&[
        ("cvt.rzi.s8.f64 %h1, 0d7ff8000000000000;", 0xff80),
        ("cvt.rzi.s8.f32 %h1, 0fc3000000;", 0xff80),
        ("cvt.rzi.s8.f32 %h1, 0fc3800000;", 0xff80),
        ("cvt.rzi.u8.f32 %h1, 0f43c80000;", 0xff),
        ("cvt.rzi.u8.f32 %h1, 0fbf800000;", 0),
    ]);
    wide(&[
        ("cvt.rzi.s64.f32 %rd1, 0f7fc00000;", 1 << 63),
        ("cvt.rzi.u64.f32 %rd1, 0fff800000;", 0),
        ("cvt.rzi.s64.f32 %rd1, 0f7f800000;", i64::MAX as u64),
    ]);
}

#[test]
fn integers_are_cut_extended_and_saturated() {
    // "cvt": the source's type says how it is extended, the destination's how it is cut.
    table(&[
        ("mov.b32 %r2, 0x1ff; cvt.s32.s8 %r1, %r2;", u32::MAX),
        ("mov.b32 %r2, 0x1ff; cvt.u32.u8 %r1, %r2;", 0xff),
        ("mov.b32 %r2, 0x180; cvt.s8.s32 %r1, %r2;", 0xffff_ff80),
        ("mov.b32 %r2, 0x180; cvt.u8.s32 %r1, %r2;", 0x80),
        ("mov.b32 %r2, 0x180; cvt.sat.s8.s32 %r1, %r2;", 0x7f),
        ("mov.b32 %r2, -5; cvt.sat.u8.s32 %r1, %r2;", 0),
        ("mov.b32 %r2, -5; cvt.sat.s16.u32 %r1, %r2;", 0x7fff),
        ("mov.b64 %rd1, 0x80000000; cvt.sat.s32.s64 %r1, %rd1;", 0x7fff_ffff),
    ]);
    wide(&[
        ("mov.b32 %r2, -5; cvt.u64.s32 %rd1, %r2;", -5i64 as u64),
        ("mov.b32 %r2, -5; cvt.u64.u32 %rd1, %r2;", 0xffff_fffb),
        ("mov.b32 %r2, -5; cvt.sat.u64.s32 %rd1, %r2;", 0),
    ]);
}

#[test]
fn conversions_round_to_even_towards_zero_and_at_the_end_of_the_range() {
    b16_cases(&[
        // 2049 is a tie between 2048 and 2050.
        ("cvt.rn.f16.f32 %h1, 0f45001000;", 0x6800),
        ("cvt.rz.f16.f32 %h1, 0f477fffff;", 0x7bff),
        ("cvt.rn.f16.f32 %h1, 0f477ff000;", 0x7c00),
        ("cvt.rp.f16.f32 %h1, 0f00000001;", 0x0001),
        // Half of the least subnormal is a tie with zero.
        ("cvt.rn.f16.f32 %h1, 0f33000000;", 0x0000),
        ("cvt.rn.f16.f32 %h1, 0f33000001;", 0x0001),
        ("cvt.rn.bf16.f32 %h1, 0f3f808000;", 0x3f80),
        ("cvt.rn.bf16.f32 %h1, 0f3f818000;", 0x3f82),
        ("cvt.rz.bf16.f32 %h1, 0f3f81ffff;", 0x3f81),
        ("cvt.rn.bf16.f32 %h1, 0f7f7fffff;", 0x7f80),
        ("cvt.rn.f16.f32 %h1, 0f7fc00001;", 0x7fff),
        ("cvt.rn.bf16.f32 %h1, 0fffc00001;", 0x7fff),
        // `.relu` makes -0 and negative values 0, and a NaN canonical.
        ("cvt.rn.relu.f16.f32 %h1, 0f80000000;", 0),
        ("cvt.rn.relu.f16.f32 %h1, 0fffc00001;", 0x7fff),
        ("cvt.rn.relu.bf16.f32 %h1, 0fff800000;", 0),
        ("mov.b16 %h2, 0xc100; cvt.rni.f16.f16 %h1, %h2;", 0xc000),
        ("mov.b16 %h2, 0x4100; cvt.rpi.f16.f16 %h1, %h2;", 0x4200),
        ("mov.b16 %h2, 0xc020; cvt.rmi.bf16.bf16 %h1, %h2;", 0xc040),
        ("cvt.rn.f16.u32 %h1, 65520;", 0x7c00),
        ("cvt.rz.f16.u32 %h1, 65535;", 0x7bff),
        ("cvt.rm.bf16.s32 %h1, -257;", 0xc381),
        // e4m3 ends at 448 and has steps of 32 there; the first operand becomes the upper byte.
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, 0f43e80000, 0f43d80000;", 0x7e7e),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, 0f43780000, 0f43700000;", 0x7877),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, 0f3a800000, 0f3ac00000;", 0x0001),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, 0fff800000, 0f7fc00000;", 0xfe7f),
        ("cvt.rn.satfinite.relu.e4m3x2.f32 %h1, 0fff800000, 0f7fc00000;", 0x007f),
        ("cvt.rn.satfinite.e5m2x2.f32 %h1, 0f7f800000, 0fc7800000;", 0x7bfb),
    ]);
    f32_cases(&[
        ("cvt.sat.f32.f32 %f1, 0f7fc00000;", 0),
        ("cvt.sat.f32.f32 %f1, 0f40000000;", 0x3f80_0000),
        ("cvt.rni.f32.f32 %f1, 0fbe99999a;", 0x8000_0000),
        ("cvt.rni.f32.f32 %f1, 0f40200000;", 0x4000_0000),
        ("cvt.rn.ftz.f32.f64 %f1, 0d3800000000000000;", 0),
        ("cvt.rn.f32.f64 %f1, 0d3800000000000000;", 0x0040_0000),
        ("cvt.rp.f32.s64 %f1, 0x1000001;", 0x4b80_0001),
    ]);
}

#[test]
fn the_smaller_and_the_larger_of_zeros_and_nans() {
    // "min", "max" of floating point: -0.0 is below +0.0; a NaN loses, unless `.NaN` or both are NaN.
    f32_cases(&[
        ("min.f32 %f1, 0f00000000, 0f80000000;", 0x8000_0000),
        ("max.f32 %f1, 0f80000000, 0f00000000;", 0),
        ("max.f32 %f1, 0f7fc00001, 0fff800000;", 0xff80_0000),
        ("max.f32 %f1, 0f7fc00001, 0f7fc00002;", 0x7fff_ffff),
        ("max.NaN.f32 %f1, 0f3f800000, 0f7fc00002;", 0x7fff_ffff),
        ("min.ftz.f32 %f1, 0f00000001, 0f00800000;", 0),
        ("max.xorsign.abs.f32 %f1, 0fc0000000, 0fbf800000;", 0x4000_0000),
    ]);
    b16_cases(&[
        ("mov.b16 %h2, 0x7e01; mov.b16 %h3, 0xbc00; max.f16 %h1, %h2, %h3;", 0xbc00),
        ("mov.b16 %h2, 0x7e01; mov.b16 %h3, 0xbc00; max.NaN.f16 %h1, %h2, %h3;", 0x7fff),
        ("mov.b16 %h2, 0x8000; mov.b16 %h3, 0x0000; min.bf16 %h1, %h3, %h2;", 0x8000),
        ("mov.b16 %h2, 0x7fc1; mov.b16 %h3, 0x7fc2; min.bf16 %h1, %h3, %h2;", 0x7fff),
    ]);
    wide(&[
        ("min.f64 %d1, 0d0000000000000000, 0d8000000000000000; mov.b64 %rd1, %d1;", 1 << 63),
        ("max.f64 %d1, 0d7ff8000000000000, 0dbff0000000000000; mov.b64 %rd1, %d1;", 0xbff0_0000_0000_0000),
    ]);
}

#[test]
fn saturation_and_flushing_of_results() {
    // "Floating Point Instructions": `.sat` makes a NaN +0.0, `.ftz` flushes inputs and results, `.relu` keeps NaN.
    f32_cases(&[
        ("add.sat.f32 %f1, 0f7fc00000, 0f3f800000;", 0),
        ("mul.sat.f32 %f1, 0fbf800000, 0f3f800000;", 0),
        ("mul.ftz.f32 %f1, 0f1f800000, 0f1f800000;", 0),
        ("mul.f32 %f1, 0f1f800000, 0f1f800000;", 0x0020_0000),
        ("fma.rn.ftz.f32 %f1, 0f80000001, 0f3f800000, 0f80000000;", 0x8000_0000),
        ("fma.rm.f32 %f1, 0f3f800000, 0f3f800000, 0fbf800000;", 0x8000_0000),
        ("fma.rz.f32 %f1, 0f7f7fffff, 0f40000000, 0f00000000;", 0x7f7f_ffff),
        ("fma.rn.f32 %f1, 0f7f800000, 0f00000000, 0f3f800000;", 0x7fff_ffff),
        ("sqrt.rn.f32 %f1, 0f80000000;", 0x8000_0000),
        ("div.rn.f32 %f1, 0f3f800000, 0f80000000;", 0xff80_0000),
        ("div.rn.f32 %f1, 0f00000000, 0f00000000;", 0x7fff_ffff),
        ("div.rn.ftz.f32 %f1, 0f3f800000, 0f00000001;", 0x7f80_0000),
    ]);
    b16_cases(&[
        ("mov.b16 %h2, 0x7e00; fma.rn.sat.f16 %h1, %h2, %h2, %h2;", 0),
        ("mov.b16 %h2, 0x7e00; fma.rn.relu.f16 %h1, %h2, %h2, %h2;", 0x7fff),
        ("mov.b16 %h2, 0x3c00; mov.b16 %h3, 0xc000; fma.rn.relu.f16 %h1, %h2, %h2, %h3;", 0),
        ("mov.b16 %h2, 0x0001; add.ftz.f16 %h1, %h2, %h2;", 0),
        ("mov.b16 %h2, 0x0001; add.f16 %h1, %h2, %h2;", 2),
        ("mov.b16 %h2, 0x7bff; add.f16 %h1, %h2, %h2;", 0x7c00),
        ("mov.b16 %h2, 0x7f7f; add.bf16 %h1, %h2, %h2;", 0x7f80),
    ]);
}

#[test]
fn approximations_at_the_entries_of_the_tables() {
    // "ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh": the tables of inputs and results.
    f32_cases(&[
        ("ex2.approx.ftz.f32 %f1, 0fff800000;", 0),
        ("ex2.approx.ftz.f32 %f1, 0f80000001;", 0x3f80_0000),
        ("ex2.approx.f32 %f1, 0f00000000;", 0x3f80_0000),
        ("ex2.approx.f32 %f1, 0f7f800000;", 0x7f80_0000),
        ("ex2.approx.f32 %f1, 0f7fc00001;", 0x7fff_ffff),
        ("ex2.approx.ftz.f32 %f1, 0fc2fe0000;", 0),
        ("ex2.approx.f32 %f1, 0fc2fe0000;", 0x0040_0000),
        ("lg2.approx.f32 %f1, 0f80000000;", 0xff80_0000),
        ("lg2.approx.f32 %f1, 0fbf800000;", 0x7fff_ffff),
        ("lg2.approx.ftz.f32 %f1, 0f80000001;", 0xff80_0000),
        ("lg2.approx.f32 %f1, 0f7f800000;", 0x7f80_0000),
        ("rcp.approx.f32 %f1, 0fff800000;", 0x8000_0000),
        ("rcp.approx.f32 %f1, 0f80000000;", 0xff80_0000),
        ("rsqrt.approx.f32 %f1, 0f80000000;", 0xff80_0000),
        ("rsqrt.approx.f32 %f1, 0f7f800000;", 0),
        ("rsqrt.approx.f32 %f1, 0fbf800000;", 0x7fff_ffff),
        ("sqrt.approx.f32 %f1, 0f80000000;", 0x8000_0000),
        ("sin.approx.f32 %f1, 0f7f800000;", 0x7fff_ffff),
        ("sin.approx.ftz.f32 %f1, 0f80000001;", 0x8000_0000),
        ("cos.approx.f32 %f1, 0f80000000;", 0x3f80_0000),
        ("tanh.approx.f32 %f1, 0f80000000;", 0x8000_0000),
        ("tanh.approx.f32 %f1, 0fff800000;", 0xbf80_0000),
    ]);
}

#[test]
fn comparisons_combine_with_a_predicate_and_its_complement() {
    // "setp": p = (a op b) BoolOp c, q = !(a op b) BoolOp c. Ordered comparisons of a NaN are false, unordered ones true.
    let both = "selp.u32 %r1, 1, 0, %p1; @%p2 add.u32 %r1, %r1, 2;";
    let (yes, no) = ("setp.eq.u32 %p3, 0, 0;", "setp.ne.u32 %p3, 0, 0;");
    let mut cases = Vec::new();
    for (op, nan, less) in [("lt", 2, 1), ("ltu", 1, 1), ("ge", 2, 2), ("geu", 1, 2), ("equ", 1, 2), ("neu", 1, 1)] {
        cases.push((format!("setp.{op}.f32 %p1|%p2, 0f7fc00000, 0f00000000; {both}"), nan));
        cases.push((format!("setp.{op}.f32 %p1|%p2, 0f00000000, 0f3f800000; {both}"), less));
        cases.push((format!("{yes} setp.{op}.and.f32 %p1|%p2, 0f7fc00000, 0f00000000, %p3; {both}"), nan));
        cases.push((format!("{yes} setp.{op}.xor.f32 %p1|%p2, 0f7fc00000, 0f00000000, %p3; {both}"), 3 - nan));
        cases.push((format!("{no} setp.{op}.or.f32 %p1|%p2, 0f7fc00000, 0f00000000, %p3; {both}"), nan));
        cases.push((format!("{no} setp.{op}.and.f32 %p1|%p2, 0f7fc00000, 0f00000000, %p3; {both}"), 0));
        cases.push((format!("{no} setp.{op}.and.f32 %p1|%p2, 0f7fc00000, 0f00000000, !%p3; {both}"), nan));
    }
    for (code, value) in [
        ("setp.eq.ftz.f32 %p1|%p2, 0f00000001, 0f80000000;", 1),
        ("setp.eq.f32 %p1|%p2, 0f00000001, 0f80000000;", 2),
        ("setp.eq.f32 %p1|%p2, 0f80000000, 0f00000000;", 1),
        ("setp.lo.u32 %p1|%p2, -1, 1;", 2),
        ("setp.lt.s32 %p1|%p2, -1, 1;", 1),
        ("setp.hs.u32 %p1|%p2, -1, 1;", 1),
        ("setp.num.f32 %p1|%p2, 0f7fc00000, 0f00000000;", 2),
        ("setp.nan.f32 %p1|%p2, 0f7fc00000, 0f00000000;", 1),
        // The order of the words is free, as to assemblers.
        ("setp.s32.lt %p1|%p2, -1, 1;", 1),
    ] {
        cases.push((format!("{code} {both}"), value));
    }
    table(&cases.iter().map(|(code, value)| (code.as_str(), *value)).collect::<Vec<_>>());
    f32_cases(&[
        ("set.gtu.f32.f32 %f1, 0f7fc00000, 0f00000000;", 0x3f80_0000),
        ("slct.f32.f32 %f1, 0f3f800000, 0f40000000, 0f7fc00000;", 0x4000_0000),
        ("slct.ftz.f32.f32 %f1, 0f3f800000, 0f40000000, 0f80000001;", 0x3f80_0000),
    ]);
}

#[test]
fn bits_by_the_formulas_of_the_manual() {
    table(&[
        // "prmt": the forms with a mode.
        ("prmt.b32.b4e %r1, 0x33221100, 0x77665544, 2;", 0x7700_1122),
        ("prmt.b32.rc8 %r1, 0x33221100, 0x77665544, 2;", 0x2222_2222),
        ("prmt.b32.ecl %r1, 0x33221100, 0x77665544, 1;", 0x3322_1111),
        ("prmt.b32.ecr %r1, 0x33221100, 0x77665544, 1;", 0x1111_1100),
        ("prmt.b32.rc16 %r1, 0x33221100, 0x77665544, 3;", 0x3322_3322),
        ("prmt.b32 %r1, 0x00800000, 0x7f, 0xa4c2;", 0xff7f_0080),
        // "bfe": positions and lengths have 8 bits; a field over the top is filled with the sign.
        ("bfe.s32 %r1, 0x80000000, 28, 16;", 0xffff_fff8),
        ("bfe.u32 %r1, 0x80000000, 28, 16;", 8),
        ("bfe.u32 %r1, 0x12345678, 0x104, 0x108;", 0x67),
        ("bfe.s32 %r1, 0x80000000, 40, 4;", u32::MAX),
        ("bfe.s32 %r1, 0xffffffff, 4, 0;", 0),
        ("bfi.b32 %r1, 0xff, 0, 30, 8;", 0xc000_0000),
        ("bfi.b32 %r1, 0xff, 0x55, 32, 8;", 0x55),
        ("bfi.b32 %r1, 0xff, 0x55, 4, 0;", 0x55),
        // "shf", "shl", "shr": amounts above the width.
        ("shf.l.clamp.b32 %r1, 0x12345678, 0x9abcdef0, 32;", 0x1234_5678),
        ("shf.l.wrap.b32 %r1, 0x12345678, 0x9abcdef0, 32;", 0x9abc_def0),
        ("shf.r.wrap.b32 %r1, 0x12345678, 0x9abcdef0, 36;", 0x0123_4567),
        ("shr.u32 %r1, 0x80000000, 0xffffffff;", 0),
        ("shr.s32 %r1, 0x80000000, 0xffffffff;", u32::MAX),
        ("shr.b32 %r1, 0x80000000, 31;", 1),
        // "bmsk", "szext", "fns", "bfind".
        ("bmsk.wrap.b32 %r1, 36, 40;", 0xff0),
        ("bmsk.clamp.b32 %r1, 4, 40;", 0xffff_fff0),
        ("bmsk.clamp.b32 %r1, 32, 4;", 0),
        ("szext.wrap.u32 %r1, 0x1ff, 40;", 0xff),
        ("szext.clamp.s32 %r1, 0x180, 40;", 0x180),
        ("fns.b32 %r1, 0xaaaa, 8, -2;", 5),
        ("fns.b32 %r1, 0xaaaa, 3, 0;", 3),
        ("fns.b32 %r1, 0xaaaa, 2, 0;", u32::MAX),
        ("bfind.s32 %r1, -1;", u32::MAX),
        ("bfind.shiftamt.u32 %r1, 1;", 31),
        // "mul24", "mad", "sad", "dp4a", "dp2a".
        ("mul24.hi.u32 %r1, 0xffffff, 0xffffff;", 0xffff_fe00),
        ("mul24.hi.s32 %r1, 0x800000, 0x7fffff;", 0xc000_0080),
        ("mad.hi.sat.s32 %r1, 0x7fffffff, 0x7fffffff, 0x7fffffff;", 0x7fff_ffff),
        ("mad.hi.s32 %r1, -5, 0x40000000, 1;", u32::MAX),
        ("mul.hi.u16 %h1, 0xffff, 0xffff; cvt.u32.u16 %r1, %h1;", 0xfffe),
        ("sad.s32 %r1, -3, 4, 100;", 107),
        ("dp4a.s32.u32 %r1, 0xff, 0xff, 0;", -255i32 as u32),
        ("dp2a.hi.s32.s32 %r1, 0x0002ffff, 0xff030000, 0;", (-3i32 - 2) as u32),
        ("rem.s32 %r1, -7, -2;", -1i32 as u32),
        ("div.s32 %r1, 0x80000000, -1;", 0x8000_0000),
        ("min.s16x2 %r1, 0x7fff8000, 0x80007fff;", 0x8000_8000),
    ]);
    wide(&[
        ("bfe.s64 %rd1, 0x8000000000000000, 60, 16;", -8i64 as u64),
        ("bfi.b64 %rd1, -1, 0, 62, 200;", 3 << 62),
        ("mul.hi.s64 %rd1, -2, 0x4000000000000000;", u64::MAX),
        ("mad.wide.s32 %rd1, -3, 5, 20;", 5),
        ("shr.s64 %rd1, 0x8000000000000000, 100;", u64::MAX),
        ("abs.s64 %rd1, 0x8000000000000000;", 1 << 63),
    ]);
}
