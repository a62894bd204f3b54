//! Exchanges between lanes, accesses to memory and forms that are refused, as the PTX manual has them, each with the section that does.

mod common;

use common::{Card, table, wide};

/// Runs `code` by 32 lanes; the results are those of `%r1` and 1 where `%p1` is set.
fn by_lanes(code: &str) -> Vec<(u32, bool)> {
    let card = Card::kernel(&format!(
        "setp.ne.u32 %p1, 0, 0; {code} mul.wide.u32 %rd1, %r0, 8; add.s64 %rd1, %rd0, %rd1; selp.u32 %r2, 1, 0, %p1;
         st.global.v2.u32 [%rd1], {{%r1, %r2}}; ret;"
    ));
    let out = card.buffer(&[0u32; 64]);
    card.run(32, out).unwrap_or_else(|fault| panic!("{code}: {fault}"));
    card.read::<u32>(out, 64).chunks(2).map(|pair| (pair[0], pair[1] != 0)).collect()
}

#[test]
fn shuffles_are_those_of_the_manuals_formula() {
    // "shfl.sync": bits 0 to 4 of c clamp, bits 8 to 12 are the mask of segments; b counts by its low five bits.
    for mode in ["up", "down", "bfly", "idx"] {
        for c in [0, 31, 7, 0x1800, 0x181f, 0x1c1f, 0x1007, 0x0f1f] {
            for b in [0u32, 1, 5, 16, 31, 33] {
                let found = by_lanes(&format!("shfl.sync.{mode}.b32 %r1|%p1, %r0, {b}, {c}, -1;"));
                for (lane, found) in found.into_iter().enumerate() {
                    let (lane, b, clamp, mask) = (lane as i32, (b & 31) as i32, c & 31, c >> 8 & 31);
                    let (most, least) = (lane & mask | clamp & !mask, lane & mask);
                    let (from, inside) = match mode {
                        "up" => (lane - b, lane - b >= most),
                        "down" => (lane + b, lane + b <= most),
                        "bfly" => (lane ^ b, lane ^ b <= most),
                        _ => (least | b & !mask, least | b & !mask <= most),
                    };
                    let from = if inside { from } else { lane };
                    assert_eq!(found, (from as u32, inside), "shfl.{mode} by {b} with {c:#x} of lane {lane}");
                }
            }
        }
    }
}

#[test]
fn exchanges_without_a_mask_are_those_of_the_lanes_that_run() {
    // "shfl (deprecated)" and "vote (deprecated)", which targets before sm_70 have. Odd lanes take the other way.
    let text = |target: &str| {
        format!(
            ".version 6.0\n.target {target}\n.address_size 64\n.visible .entry k(.param .u64 out) {{
             .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %rd<3>;
             ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; and.b32 %r3, %r0, 1; setp.eq.u32 %p2, %r3, 1;
             mov.u32 %r1, 0; mov.u32 %r2, 0;
             @!%p2 bra END;
             setp.gt.u32 %p1, %r0, 15; vote.ballot.b32 %r1, %p1; shfl.down.b32 %r2, %r0, 2, 31;
             END: mul.wide.u32 %rd1, %r0, 8; add.s64 %rd1, %rd0, %rd1; st.global.v2.u32 [%rd1], {{%r1, %r2}}; ret;\n}}"
        )
    };
    let card = Card::new(&text("sm_60"));
    let out = card.buffer(&[0u32; 64]);
    card.launch("k", 1, 32, 0, &[out.into()]).unwrap();
    for (lane, found) in card.read::<u32>(out, 64).chunks(2).enumerate() {
        let down = if lane < 30 { lane as u32 + 2 } else { lane as u32 };
        assert_eq!(found, if lane % 2 == 1 { [0xaaaa_0000, down] } else { [0, 0] }, "lane {lane}");
    }
    assert_eq!(Card::new(&text("sm_70")).module.unsupported().len(), 2, "they need a mask from sm_70 on");
}

#[test]
fn exchanges_of_some_lanes() {
    // "vote", "match", "redux", "elect": over the lanes of the mask. Odd lanes take the other way.
    let odd = "and.b32 %r3, %r0, 1; setp.eq.u32 %p2, %r3, 1; shr.u32 %r4, %r0, 3; mov.u32 %r1, 0;";
    let found = |code: &str| by_lanes(&format!("{odd} {code}"));
    type Expected = fn(u32) -> (u32, bool);
    let cases: [(&str, Expected); 13] = [
        ("setp.gt.u32 %p3, %r0, 15; @%p2 vote.sync.ballot.b32 %r1, %p3, 0xaaaaaaaa;", |_| (0xaaaa_0000, false)),
        ("@%p2 vote.sync.all.pred %p1, %p2, 0xaaaaaaaa;", |_| (0, true)),
        ("@%p2 vote.sync.uni.pred %p1, !%p2, 0xaaaaaaaa;", |_| (0, true)),
        ("@%p2 vote.sync.any.pred %p1, !%p2, 0xaaaaaaaa;", |_| (0, false)),
        ("@%p2 match.any.sync.b32 %r1, %r4, 0xaaaaaaaa;", |lane| (0xaa << (lane / 8 * 8), false)),
        ("@%p2 match.all.sync.b32 %r1|%p1, %r3, 0xaaaaaaaa;", |_| (0xaaaa_aaaa, true)),
        ("@%p2 match.all.sync.b32 %r1|%p1, %r4, 0xaaaaaaaa;", |_| (0, false)),
        ("@%p2 redux.sync.add.s32 %r1, %r0, 0xaaaaaaaa;", |_| (256, false)),
        ("not.b32 %r5, %r0; @%p2 redux.sync.min.s32 %r1, %r5, 0xaaaaaaaa;", |_| (!31, false)),
        ("not.b32 %r5, %r0; @%p2 redux.sync.max.u32 %r1, %r5, 0xaaaaaaaa;", |_| (!1, false)),
        ("@%p2 redux.sync.and.b32 %r1, %r0, 0xaaaaaaaa;", |_| (1, false)),
        ("@%p2 redux.sync.xor.b32 %r1, %r0, 0xaaaaaaaa;", |_| (0, false)),
        ("@%p2 elect.sync %r1|%p1, 0xaaaaaaaa;", |lane| (1, lane == 1)),
    ];
    for (code, each) in cases {
        for (lane, found) in found(code).into_iter().enumerate().filter(|(lane, _)| lane % 2 == 1) {
            assert_eq!(found, each(lane as u32), "{code} of lane {lane}");
        }
    }
}

#[test]
fn atomic_operations_return_what_was_there() {
    // "atom": `inc` wraps at b, `dec` starts again from b, `cas` stores where the values are equal.
    let old = |code: &str, before: u64| {
        let card = Card::kernel(&format!("{code} st.global.b64 [%rd0+8], %rd1; ret;"));
        let out = card.buffer(&[before, 0]);
        card.run(1, out).unwrap_or_else(|fault| panic!("{code}: {fault}"));
        let found = card.read::<u64>(out, 2);
        (found[1], found[0])
    };
    let word = |code: &str, before: u32| {
        let (old, new) = old(&format!("{code} cvt.u64.u32 %rd1, %r1;"), before.into());
        (old as u32, new as u32)
    };
    for (code, before, after) in [
        ("atom.global.inc.u32 %r1, [%rd0], 5;", 4, 5),
        ("atom.global.inc.u32 %r1, [%rd0], 5;", 5, 0),
        ("atom.global.inc.u32 %r1, [%rd0], 5;", 9, 0),
        ("atom.global.dec.u32 %r1, [%rd0], 5;", 5, 4),
        ("atom.global.dec.u32 %r1, [%rd0], 5;", 0, 5),
        ("atom.global.dec.u32 %r1, [%rd0], 5;", 9, 5),
        ("atom.global.cas.b32 %r1, [%rd0], 3, 9;", 4, 4),
        ("atom.global.cas.b32 %r1, [%rd0], 4, 9;", 4, 9),
        ("atom.global.min.s32 %r1, [%rd0], -1;", 4, u32::MAX),
        ("atom.global.max.u32 %r1, [%rd0], 7;", u32::MAX, u32::MAX),
        ("atom.global.add.noftz.f16x2 %r1, [%rd0], 0x3c000001;", 0x4000_0001, 0x4200_0002),
        ("atom.global.add.noftz.bf16x2 %r1, [%rd0], 0x3f800001;", 0x4000_0001, 0x4040_0002),
        (
            "mov.b16 %h1, 0x3c00; atom.global.add.noftz.f16 %h2, [%rd0+2], %h1; mov.b32 %r1, {%h1, %h2};",
            0x4000_1234,
            0x4200_1234,
        ),
    ] {
        let (old, new) = word(code, before);
        assert_eq!(new, after, "{code}");
        assert!(old == before || code.contains("{%h1"), "{code} returns {old:#x}");
    }
    // A NaN of `.f64` is the one of all other instructions.
    let (_, nan) =
        old("atom.global.add.f64 %d1, [%rd0], 0dfff0000000000000; mov.b64 %rd1, %d1;", 0x7ff0_0000_0000_0000);
    assert_eq!(nan, 0x7fff_ffff_ffff_ffff);
}

#[test]
fn loads_extend_and_stores_cut() {
    // "ld", "st": a destination that is wider than the type gets signs or zeros; of a wider source the low bytes are stored.
    table(&[
        ("st.shared.u32 [0], 0xfedcba98; ld.shared.u16 %r1, [2];", 0xfedc),
        ("st.shared.u32 [0], 0xfedcba98; ld.shared.b8 %r1, [3];", 0xfe),
        ("st.shared.u32 [0], 0; mov.b32 %r2, 0x12345678; st.shared.u8 [1], %r2; ld.shared.u32 %r1, [0];", 0x7800),
        ("mov.b64 %rd1, 0x1122334455667788; st.shared.u16 [0], %rd1; ld.shared.u16 %r1, [0];", 0x7788),
        (
            "st.shared.v4.u16 [0], {1, 2, 3, 4}; ld.shared.v2.u32 {%r1, %r2}, [0]; xor.b32 %r1, %r1, %r2;",
            0x0002_0001 ^ 0x0004_0003,
        ),
        ("st.shared.v2.u32 [0], {5, 6}; ld.shared.v2.u32 {_, %r1}, [0];", 6),
    ]);
    wide(&[
        ("st.shared.u32 [0], 0xfedcba98; ld.shared.s8 %rd1, [3];", -2i64 as u64),
        ("st.shared.u32 [0], 0xfedcba98; ld.shared.s32 %rd1, [0];", 0xffff_ffff_fedc_ba98),
        ("st.shared.u32 [0], 0xfedcba98; ld.shared.u32 %rd1, [0];", 0xfedc_ba98),
    ]);
}

#[test]
fn addresses_lie_in_the_windows_of_their_spaces() {
    // "isspacep": a kernel's parameters are within the window of global memory, too; `.shared` is `.shared::cta`.
    let cases: Vec<(String, u32)> = [
        ("mov.b64 %rd1, p; cvta.param.u64 %rd1, %rd1;", [1, 0, 0, 1]),
        ("mov.b64 %rd1, %rd0;", [1, 0, 0, 0]),
        ("mov.b64 %rd1, 16; cvta.shared.u64 %rd1, %rd1;", [0, 1, 0, 0]),
        (".local .b32 l; mov.b64 %rd1, l; cvta.local.u64 %rd1, %rd1;", [0, 0, 1, 0]),
    ]
    .into_iter()
    .flat_map(|(code, inside)| {
        ["global", "shared", "local", "param"].into_iter().zip(inside).map(move |(space, inside)| {
            (format!("{code} isspacep.{space} %p1, %rd1; selp.u32 %r1, 1, 0, %p1;"), inside)
        })
    })
    .collect();
    table(&cases.iter().map(|(code, value)| (code.as_str(), *value)).collect::<Vec<_>>());
}

#[test]
fn forms_that_no_assembler_takes_are_refused() {
    for code in [
        // A rounding, mode or scope is missing, or there are two.
        "fma.f32 %f1, %f2, %f3, %f4;",
        "div.f32 %f1, %f2, %f3;",
        "ex2.f32 %f1, %f2;",
        "ex2.approx.bf16 %h1, %h2;",
        "mul.u32 %r1, %r2, %r3;",
        "shf.l.b32 %r1, %r2, %r3, %r4;",
        "cvt.f16x2.f32 %r1, %f1, %f2;",
        "cvt.rn.e4m3x2.f32 %h1, %f1, %f2;",
        "add.rn.rz.f32 %f1, %f2, %f3;",
        "ld.relaxed.global.u32 %r1, [%rd0];",
        "mbarrier.arrive.expect_tx.b64 %rd1, [%rd0];",
        "bar.sync;",
        // Types, spaces and caches that do not go with the instruction.
        "sub.u16x2 %r1, %r2, %r3;",
        "mov.f16 %h1, %h2;",
        "set.eq.u16.s32 %h1, %r2, %r3;",
        "slct.b32.u32 %r1, %r2, %r3, %r4;",
        "prmt.u32 %r1, %r2, %r3, %r4;",
        "cvt.u32.b32 %r1, %r2;",
        "cvt.rm.relu.f16.f32 %h1, %f1;",
        "ld.global.f16 %h1, [%rd0];",
        "ld.nc.u32 %r1, [%rd0];",
        "ld.shared.L1::evict_last.u32 %r1, [%r1];",
        "st.global.ca.u32 [%rd0], %r1;",
        "ldu.shared.u32 %r1, [%r1];",
        "shfl.sync.idx.u32 %r1, %r2, 0, 31, -1;",
        "fence.proxy.sync;",
        "wgmma.fence;",
        // Copies the other way round.
        "cp.async.ca.global.shared [%rd0], [%r1], 16;",
        "cp.async.bulk.shared::cta.shared::cluster.mbarrier::complete_tx::bytes [%r1], [%r2], 16, [%r3];",
        // Registers of another size, and results that there are not.
        "add.u32 %r1, %rd1, %r2;",
        "add.u64 %rd1, %rd2, %r1;",
        "mov.b32 %r1, %rd1;",
        "st.global.u32 [%rd0], %h1;",
        "atom.global.add.u64 %rd1, [%rd0], %r1;",
        "cvt.u32.u64 %r1, %r2;",
        "setp.eq.f16 %p1|%p2, %h1, %h2;",
        "match.any.sync.b32 %r1|%p1, %r2, -1;",
        "elect.sync %r1, -1;",
        "setmaxnreg.inc.sync.aligned.u32 63;",
    ] {
        let card = Card::kernel(&format!("{code} ret;"));
        assert_eq!(card.module.unsupported().len(), 1, "{code}");
    }
}
