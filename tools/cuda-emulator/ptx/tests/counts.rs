//! What a launch counts.

mod common;

use common::Card;
use ptx::{Class, Counts};

fn counts(body: &str) -> Counts {
    let card = Card::kernel(body);
    let out = card.buffer(&vec![0u32; 1 << 18]);
    card.run(32, out).unwrap_or_else(|fault| panic!("{fault}"))
}

#[test]
fn an_instruction_counts_once_however_many_steps_it_takes() {
    // The kernel's own lines are a load of a parameter, a `mov` and this.
    for (line, class) in [
        ("bfi.b32 %r1, %r2, %r3, 4, 8;", Class::Integer),
        ("mov.u32 %r1, %tid.y;", Class::Integer),
        ("mad.hi.u32 %r1, %r2, %r3, %r4;", Class::Integer),
        ("add.u32 %r1, %r1, dynamic;", Class::Integer),
        ("st.shared.u32 [dynamic], %r1;", Class::Shared),
        ("mov.b64 {%r1, %r2}, %rd1;", Class::Integer),
    ] {
        let (before, found) = (counts("ret;"), counts(&format!("{line} ret;")));
        assert_eq!(found.total(), before.total() + 1, "{line}");
        let at = class as usize;
        assert_eq!(found.instructions[at], before.instructions[at] + 1, "{line}");
    }
    // The rare side of a branch at the end of the text, from which a jump leads back, is put before the join.
    let body = "setp.eq.u32 %p1, %r0, 7; @%p1 bra RARE; bra JOIN; JOIN: st.global.u32 [%rd0], 1; ret; RARE: mov.u32 %r1, 1; bra JOIN;";
    assert_eq!(counts(body).instructions[Class::Control as usize], 4);
}

#[test]
fn sectors_far_from_each_other_count_once_in_any_order() {
    // Even lanes ask for the first sector, odd lanes for one a megabyte behind it, or in another allocation.
    let body = "and.b32 %r1, %r0, 1; mul.wide.u32 %rd1, %r1, 1044480; add.u64 %rd1, %rd0, %rd1; ld.global.u32 %r2, [%rd1]; ret;";
    assert_eq!(counts(body).sectors, 2);
    let card = Card::kernel(
        "and.b32 %r1, %r0, 1; mul.wide.u32 %rd1, %r1, 4096; add.u64 %rd1, %rd0, %rd1; ld.global.u32 %r2, [%rd1]; ret;",
    );
    let (first, second) = (card.buffer(&[0u32; 64]), card.buffer(&[0u32; 2048]));
    assert!(second < first + 4096 && first + 4096 < second + 8192, "the allocations lie otherwise");
    assert_eq!(card.run(32, first).unwrap().sectors, 2);
}

#[test]
fn bulk_stores_count_once() {
    let body = "setp.ne.u32 %p1, %r0, 0; @%p1 ret;
        st.shared.v4.u32 [dynamic], {1, 1, 1, 1}; st.shared.v4.u32 [dynamic+16], {1, 1, 1, 1};
        cp.async.bulk.global.shared::cta.bulk_group [%rd0], [dynamic], 32; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        ret;";
    let found = counts(body);
    assert_eq!((found.global_read, found.global_written, found.sectors), (0, 32, 1));
    let reduced = counts(
        &body
            .replace("cp.async.bulk.global", "cp.reduce.async.bulk.global")
            .replace("bulk_group [", "bulk_group.add.u32 ["),
    );
    assert_eq!((reduced.global_read, reduced.global_written, reduced.sectors), (32, 32, 1));
}
