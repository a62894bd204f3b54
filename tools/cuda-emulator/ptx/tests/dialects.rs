//! PTX as generators other than NVIDIA's and LLVM's write it.

mod common;

use common::Card;

/// Dr.Jit calls functions by number: a table of them that is declared after its use, indexed by a register. One parameter
/// comes in a register.
#[test]
fn a_function_is_called_by_its_number_in_a_table() {
    let card = Card::new(
        "
.version 8.0
.target sm_80
.address_size 64
.extern .global .u64 table[2];
.global .u32 two = 2;
.visible .func (.param .align 4 .b8 r[4]) twice(.reg .u64 data, .param .align 4 .b8 p[4]) {
    .reg .b32 %r<3>; .reg .b64 %rd<2>;
    ld.param.b32 %r0, [p+0]; ld.global.u32 %r2, [data]; mul.lo.u32 %r1, %r0, %r2; st.param.b32 [r+0], %r1; ret;
}
.visible .func (.param .align 4 .b8 r[4]) next(.reg .u64 data, .param .align 4 .b8 p[4]) {
    .reg .b32 %r<3>;
    ld.param.b32 %r0, [p+0]; add.u32 %r1, %r0, 1; st.param.b32 [r+0], %r1; ret;
}
.entry k(.param .u64 out) {
    .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<2>;
    mov.u32 %r0, %tid.x;
    and.b32 %r3, %r0, ~0xfffffffe;
    mov.u64 %rd3, two;
    ld.global.u64 %rd2, table[%r3];
    {
        proto: .callprototype (.param .align 4 .b8 r[4]) _(.reg .u64 data, .param .align 4 .b8 p[4]);
        .param .align 4 .b8 to[4];
        .param .align 4 .b8 from[4];
        st.param.b32 [from+0], %r0;
        call (to), %rd2, (%rd3, from), proto;
        ld.param.b32 %r4, [to+0];
    }
    ld.param.u64 %rd0, [out];
    mad.wide.u32 %rd0, %r0, 4, %rd0;
    st.global.u32 [%rd0], %r4;
    ret;
}
.visible .global .align 8 .u64 table[2] = {
    twice, next
};
",
    );
    let out = card.buffer(&[0u32; 32]);
    card.launch("k", 1, 32, 0, &[out.into()]).unwrap();
    let expected: Vec<u32> = (0..32).map(|i| if i % 2 == 0 { 2 * i } else { i + 1 }).collect();
    assert_eq!(card.read::<u32>(out, 32), expected);
}

/// This is how clang and rustc give a function a second name. The header is on one line.
#[test]
fn an_alias_is_the_function_that_it_names() {
    let card = Card::new(
        ".version 6.3 .target sm_50, debug .address_size 64
.visible .func (.param .b32 r) same(.param .b32 p);
.visible .func (.param .b32 r) twice(.param .b32 p) {
    .reg .b32 %r<2>;
    ld.param.b32 %r0, [p]; shl.b32 %r1, %r0, 1; st.param.b32 [r], %r1; ret;
}
.alias same, twice;
.entry k(.param .u64 out) {
    .reg .b32 %r<3>; .reg .b64 %rd<2>;
    mov.u32 %r0, %tid.x;
    {
        .param .b32 to; .param .b32 from;
        st.param.b32 [from], %r0;
        call (to), same, (from);
        ld.param.b32 %r1, [to];
    }
    ld.param.u64 %rd0, [out]; mad.wide.u32 %rd0, %r0, 4, %rd0; st.global.u32 [%rd0], %r1;
    ret;
}",
    );
    let out = card.buffer(&[0u32; 32]);
    card.launch("k", 1, 32, 0, &[out.into()]).unwrap();
    assert_eq!(card.read::<u32>(out, 32), (0..32).map(|i| 2 * i).collect::<Vec<u32>>());
}

/// The shared memory of a function that a kernel calls by an alias lies beside the kernel's own, and counts for it.
#[test]
fn shared_memory_behind_an_alias_belongs_to_the_kernel() {
    let card = Card::new(
        ".version 6.3 .target sm_50 .address_size 64
.visible .func same(.param .b32 p);
.visible .func store(.param .b32 p) {
    .shared .b32 b[32];
    .reg .b32 %r<4>;
    ld.param.b32 %r0, [p]; mov.u32 %r1, %tid.x; shl.b32 %r1, %r1, 2;
    mov.u32 %r2, b; add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], %r0; ret;
}
.alias same, store;
.entry k(.param .u64 out) {
    .shared .b32 a[32];
    .reg .b32 %r<4>; .reg .b64 %rd<2>;
    mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, a; add.u32 %r1, %r1, %r2;
    st.shared.u32 [%r1], %r0;
    {
        .param .b32 from;
        st.param.b32 [from], 7;
        call same, (from);
    }
    ld.shared.u32 %r3, [%r1];
    ld.param.u64 %rd0, [out]; mad.wide.u32 %rd0, %r0, 4, %rd0; st.global.u32 [%rd0], %r3;
    ret;
}",
    );
    let out = card.buffer(&[0u32; 32]);
    card.launch("k", 1, 32, 0, &[out.into()]).unwrap();
    assert_eq!(card.read::<u32>(out, 32), (0..32).collect::<Vec<u32>>());
}

#[test]
fn elements_are_counted_by_their_size() {
    let card = Card::new(
        "
.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 values[4] = {10, 11, 12, 13};
.entry k(.param .u64 out) {
    .reg .b32 %r<9>; .reg .b64 %rd<9>;
    .shared .align 8 .b64 own[32];
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u64 %rd1, 7;
    st.shared.u64 own[%r0], %rd1;
    ld.shared.u32 %r4, [own+24];
    ld.global.u32 %r1, values[3];
    and.b32 %r2, %r0, 1;
    ld.global.u32 %r3, values[%r2+1];
    add.u32 %r3, %r3, %r1;
    add.u32 %r3, %r3, %r4;
    mad.wide.u32 %rd0, %r0, 4, %rd0;
    st.global.u32 [%rd0], %r3;
    ret;
}
",
    );
    let out = card.buffer(&[0u32; 32]);
    card.launch("k", 1, 32, 0, &[out.into()]).unwrap();
    assert_eq!(card.read::<u32>(out, 4), [31, 32, 31, 32]);
}
