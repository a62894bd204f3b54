//! Text that is cut, mixed up or out of all measure: it is refused, or its instructions are, and nothing panics.

mod common;

use common::Card;
use ptx::{FaultKind, Memory, Module};
use std::panic::{AssertUnwindSafe, catch_unwind};

const HEAD: &str = ".version 8.3\n.target sm_90a\n.address_size 64\n";

fn memory() -> Memory {
    Memory::new(64 << 20).unwrap()
}

/// Loads a text, and says whether that worked.
fn loads(text: &str) -> bool {
    let memory = memory();
    let loaded = catch_unwind(AssertUnwindSafe(|| Module::load(text, &memory).is_ok()));
    loaded.unwrap_or_else(|_| panic!("a panic, by {}", &text[..text.len().min(400)]))
}

/// A module with one kernel of this body.
fn kernel(body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 p) {{ .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b16 %h<9>; .reg .b32 %r<99>;
         .reg .b64 %rd<99>; .reg .f32 %f<99>; .reg .f64 %fd<9>; .reg .b128 %rq<9>;\n{body}\nret; }}"
    )
}

#[test]
fn instructions_without_their_operands_are_refused() {
    for body in [
        "createpolicy.fractional.L2::evict_last.b64;",
        "stacksave.u64;",
        "stackrestore.u64;",
        "alloca.u64;",
        "add.cc.u32;",
        "madc.lo.u32;",
        "mov.b128 %rq1, {%rd1};",
        "mov.b128 %rq1, {%rd1, %rd2, %rd3};",
        "mov.b64 %rd1, {};",
        "mov.b64 {}, %rd1;",
        "mov.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9}, %r1;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {}];",
        "@%p1;",
    ] {
        loads(&kernel(body));
    }
}

/// The instructions of a text, one of each opcode.
fn instructions<'t>(text: &'t str, found: &mut std::collections::BTreeMap<&'t str, &'t str>) {
    for line in text.lines().map(str::trim) {
        let line = line.rsplit_once('{').map_or(line, |(before, last)| if before.is_empty() { last } else { line });
        if line.ends_with(';') && !line.starts_with(['.', '/']) {
            let opcode = line.split_whitespace().find(|word| !word.starts_with(['@', '{'])).unwrap_or_default();
            found.entry(opcode).or_insert(line);
        }
    }
}

#[test]
fn instructions_whose_words_are_lost_doubled_or_swapped_do_no_harm() {
    let mut all = std::collections::BTreeMap::new();
    for text in [
        include_str!("ptx/basic.ptx"),
        include_str!("ptx/numbers.ptx"),
        include_str!("ptx/atomics.ptx"),
        include_str!("ptx/llvm.ptx"),
        include_str!("data/gemm_mma.ptx"),
        include_str!("data/gemm_wmma.ptx"),
        include_str!("data/gemm_wgmma.ptx"),
    ] {
        instructions(text, &mut all);
    }
    assert!(all.len() > 100, "{}", all.len());
    let memory = memory();
    for line in all.values() {
        // Words, and between them signs and spaces.
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_$%".contains(c);
        let mut parts: Vec<&str> = Vec::new();
        let mut start = 0;
        for (at, c) in line.char_indices().skip(1) {
            if !is_word(c) || !is_word(line[..at].chars().next_back().unwrap_or(' ')) {
                parts.push(&line[start..at]);
                start = at;
            }
        }
        parts.push(&line[start..]);
        let mut bodies = Vec::new();
        for at in 0..parts.len() {
            bodies.push([&parts[..at], &parts[at + 1..]].concat().concat());
            bodies.push([&parts[..at], &parts[at..=at], &parts[at..]].concat().concat());
            bodies.push([&parts[..at], &[";"]].concat().concat());
            let mut swapped = parts.clone();
            swapped.swap(at, (at + 2) % parts.len());
            bodies.push(swapped.concat());
        }
        for body in bodies {
            let text = kernel(&body);
            let loaded = catch_unwind(AssertUnwindSafe(|| {
                Module::load(&text, &memory).map(|module| module.unload(&memory)).is_ok()
            }));
            assert!(loaded.is_ok(), "a panic, by {body}");
        }
    }
}

#[test]
fn a_text_that_ends_anywhere_is_refused() {
    let text = include_str!("ptx/basic.ptx");
    for end in (0..text.len()).step_by(97) {
        loads(&text[..end]);
    }
    assert!(!loads(&format!("{HEAD}.global .f32 x = 1e")));
    assert!(!loads(&format!("{HEAD}.global .f32 x = 1eé;")));
}

#[test]
fn braces_without_end_are_refused() {
    let many = 200_000;
    for (open, close) in [("(", ")"), ("-", ""), ("~", ""), ("{", "}")] {
        assert!(!loads(&format!("{HEAD}.global .u32 x = {}1{};", open.repeat(many), close.repeat(many))), "{open}");
    }
    for open in ["{", "(", "[%r1, "] {
        assert!(!loads(&kernel(&format!("mov.b32 {};", open.repeat(many)))), "{open}");
    }
    assert!(loads(&format!("{HEAD}.global .u32 x = {}1{};", "(".repeat(50), ")".repeat(50))));
}

#[test]
fn managed_variables_are_refused_by_name() {
    let text = format!("{HEAD}.visible .global .attribute(.managed) .align 4 .u32 x;");
    let Err(error) = Module::load(&text, &memory()) else { panic!("it is refused") };
    let error = error.to_string();
    assert!(error.contains("cuMemAllocManaged"), "{error}");
    assert!(loads(&text.replace(".managed", ".unified(0, 1)")));
}

#[test]
fn sizes_that_no_card_has_are_refused() {
    for declaration in [
        ".global .b8 x[4294967296][4294967296];",
        ".global .b64 x[4611686018427387904];",
        ".shared .b8 x[4294967296];",
        ".global .align 3 .b8 x[4];",
        ".global .align 0 .b8 x[4];",
        ".global .align -1 .b8 x[4];",
        ".global .b8 x[-1];",
    ] {
        assert!(!loads(&format!("{HEAD}{declaration}\n.entry k() {{ ret; }}")), "{declaration}");
    }
    for body in [
        ".local .b8 x[4294967296];",
        ".local .b8 x[2000000000];",
        ".shared .b8 x[4294967296];",
        ".param .b8 x[4294967296];",
        ".reg .b32 %many<4294967295>;",
        ".reg .b32 %many<-1>;",
    ] {
        assert!(!loads(&kernel(body)), "{body}");
    }
}

#[test]
fn variables_of_128_bits_have_their_values() {
    let memory = memory();
    let module = Module::load(&format!("{HEAD}.global .align 16 .b128 x[2] = {{7, -1}};"), &memory).unwrap();
    let mut bytes = [0; 32];
    memory.read(module.variable("x").unwrap().address, &mut bytes).unwrap();
    assert_eq!(u128::from_le_bytes(bytes[..16].try_into().unwrap()), 7);
    assert_eq!(u64::from_le_bytes(bytes[16..24].try_into().unwrap()), u64::MAX);
}

#[test]
fn calls_by_another_prototype_than_the_functions_stay_on_the_stack() {
    let call = |bytes: u32, results: u32| {
        let card = Card::new(&format!(
            "{HEAD}.func small(.param .b32 a) {{ ret; }}
             .visible .entry k(.param .u64 p) {{ .reg .b64 %rd<4>; mov.u64 %rd1, small;
             {{ .param .b8 big[{bytes}]; .param .b8 back[{results}];
             P: .callprototype (.param .b8 _[{results}]) _ (.param .b8 _[{bytes}]);
             call (back), %rd1, (big), P; }}
             ret; }}"
        ));
        card.run(32, card.buffer(&[0u32])).map_err(|fault| fault.kind())
    };
    assert!(call(100_000, 100_000).is_ok());
    assert_eq!(call(400_000, 16).unwrap_err(), FaultKind::OutOfBounds);
    assert_eq!(call(16, 400_000).unwrap_err(), FaultKind::OutOfBounds);
    // More than a thread has of local memory is refused at the launch.
    assert_eq!(call(300_000, 300_000).unwrap_err(), FaultKind::InvalidLaunch);
}

#[test]
fn a_stack_that_is_restored_to_anywhere_is_a_fault() {
    let card = Card::kernel("mov.u64 %rd1, 0xffffffe0; stackrestore.u64 %rd1; ret;");
    assert_eq!(card.run(1, card.buffer(&[0u32])).unwrap_err().kind(), FaultKind::OutOfBounds);
    let card = Card::kernel(
        "stacksave.u64 %rd1; alloca.u64 %rd2, 64; st.local.u32 [%rd2], 5; ld.local.u32 %r1, [%rd2]; stackrestore.u64 %rd1;
         st.global.u32 [%rd0], %r1; ret;",
    );
    let out = card.buffer(&[0u32]);
    card.run(1, out).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(card.read::<u32>(out, 1), [5]);
}
