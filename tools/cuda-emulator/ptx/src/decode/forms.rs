//! The forms of all instructions but those of tensor cores, as the manual's syntax has them. INSTRUCTIONS.md says what each does.

/// Opcodes, types and words of a form.
///
/// Types are separated by spaces, and by commas where a form has several. Of the words, `a/b` stands for one of these, and `a/b?` for
/// one of these or none. Their order does not matter, as to assemblers. An opcode that is not listed is looked at elsewhere.
pub(super) type Form = (&'static str, &'static str, &'static str);

const INTS: &str = "u16 s16 u32 s32 u64 s64";
const WIDE: &str = "u32 s32 u64 s64";
const BITS: &str = "b16 b32 b64";
const MEMORY: &str = "b8 u8 s8 b16 u16 s16 b32 u32 s32 f32 b64 u64 s64 f64";
const SCALARS: &str = "b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64";

macro_rules! shared {
    () => {
        "global/shared/shared::cta/shared::cluster?"
    };
}
macro_rules! loads {
    () => {
        "const/global/local/param/param::entry/param::func/shared/shared::cta/shared::cluster?"
    };
}
macro_rules! stores {
    () => {
        "global/local/param/param::func/shared/shared::cta/shared::cluster?"
    };
}
macro_rules! evict {
    () => {
        "L1::evict_normal/L1::evict_unchanged/L1::evict_first/L1::evict_last/L1::no_allocate? L2::cache_hint?"
    };
}
macro_rules! hints {
    () => {
        concat!(evict!(), " L2::64B/L2::128B/L2::256B?")
    };
}
macro_rules! bytes {
    () => {
        "mbarrier::complete_tx::bytes"
    };
}
macro_rules! atomics {
    () => {
        concat!("relaxed/acquire/release/acq_rel? cta/cluster/gpu/sys? L2::cache_hint? ", shared!())
    };
}
macro_rules! reductions {
    () => {
        concat!("relaxed/release? cta/cluster/gpu/sys? L2::cache_hint? ", shared!())
    };
}
macro_rules! vectors {
    () => {
        "relaxed/acquire/release/acq_rel? cta/cluster/gpu/sys? L2::cache_hint? global?"
    };
}

#[rustfmt::skip]
pub(super) const FORMS: &[Form] = &[
    ("add sub div rem sad min max", INTS, ""),
    ("add sub", WIDE, "cc"),
    ("addc subc", WIDE, "cc?"),
    ("add sub", "s32", "sat"),
    ("add min max", "u16x2 s16x2", ""),
    ("min max", "s32 s16x2", "relu"),
    ("mul mad", "u16 s16 u32 s32", "lo/hi/wide"),
    ("mul mad", "u64 s64", "lo/hi"),
    ("mad", WIDE, "lo/hi cc"),
    ("madc", WIDE, "lo/hi cc?"),
    ("mad mad24", "s32", "hi sat"),
    ("mul24 mad24", "u32 s32", "lo/hi"),
    ("abs neg", "s16 s32 s64 f64 bf16 bf16x2", ""),
    ("abs neg", "f32 f16 f16x2", "ftz?"),
    ("add sub mul", "f32", "rn/rz/rm/rp? ftz? sat?"),
    ("add sub mul", "f64", "rn/rz/rm/rp?"),
    ("add sub mul", "f16 f16x2", "rn? ftz? sat?"),
    ("add sub mul", "bf16 bf16x2", "rn?"),
    ("mad fma", "f32", "rn/rz/rm/rp ftz? sat?"),
    ("mad fma", "f64", "rn/rz/rm/rp"),
    ("fma", "f16 f16x2", "rn ftz? sat/relu?"),
    ("fma", "bf16 bf16x2", "rn relu?"),
    ("div", "f32", "approx/full/rn/rz/rm/rp ftz?"),
    ("div rcp sqrt", "f64", "rn/rz/rm/rp"),
    ("rcp sqrt", "f32", "approx/rn/rz/rm/rp ftz?"),
    ("rcp", "f64", "approx ftz"),
    ("rsqrt", "f32 f64", "approx ftz?"),
    ("ex2 lg2 sin cos", "f32", "approx ftz?"),
    ("ex2", "bf16 bf16x2", "approx ftz"),
    ("ex2 tanh", "f16 f16x2", "approx"),
    ("tanh", "f32 bf16 bf16x2", "approx"),
    ("min max", "f32 f16 f16x2", "ftz? NaN? xorsign? abs?"),
    ("min max", "bf16 bf16x2", "NaN? xorsign? abs?"),
    ("min max", "f64", ""),
    ("testp", "f32 f64", "finite/infinite/number/notanumber/normal/subnormal"),
    ("copysign", "f32 f64", ""),
    ("and or xor not", "pred", ""),
    ("and or xor not cnot shl shr", BITS, ""),
    ("shr", INTS, ""),
    ("shf", "b32", "l/r wrap/clamp"),
    ("lop3", "b32", "and/or?"),
    ("prmt", "b32", "f4e/b4e/rc8/ecl/ecr/rc16?"),
    ("popc clz brev bfi", "b32 b64", ""),
    ("bfind", WIDE, "shiftamt?"),
    ("bfe", WIDE, ""),
    ("fns", "b32", ""),
    ("szext", "u32 s32", "wrap/clamp"),
    ("bmsk", "b32", "wrap/clamp"),
    ("dp4a", "u32 s32, u32 s32", ""),
    ("dp2a", "u32 s32, u32 s32", "lo/hi"),
    ("mov", "pred b16 b32 b64 b128 u16 s16 u32 s32 u64 s64 f32 f64", ""),
    ("selp", SCALARS, ""),
    ("slct", "b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64, s32", ""),
    ("slct", "b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64, f32", "ftz?"),
    ("setp", BITS, "eq/ne and/or/xor?"),
    ("setp", "s16 s32 s64", "eq/ne/lt/le/gt/ge and/or/xor?"),
    ("setp", "u16 u32 u64", "eq/ne/lt/le/gt/ge/lo/ls/hi/hs and/or/xor?"),
    ("setp", "f32 f16 f16x2", "eq/ne/lt/le/gt/ge/equ/neu/ltu/leu/gtu/geu/num/nan and/or/xor? ftz?"),
    ("setp", "f64 bf16 bf16x2", "eq/ne/lt/le/gt/ge/equ/neu/ltu/leu/gtu/geu/num/nan and/or/xor?"),
    ("set", "u32 s32 f32 f16 bf16, b16 b32 b64", "eq/ne and/or/xor?"),
    ("set", "u32 s32 f32 f16 bf16, s16 s32 s64", "eq/ne/lt/le/gt/ge and/or/xor?"),
    ("set", "u32 s32 f32 f16 bf16, u16 u32 u64", "eq/ne/lt/le/gt/ge/lo/ls/hi/hs and/or/xor?"),
    ("set", "u32 s32 f32 f16, f32", "eq/ne/lt/le/gt/ge/equ/neu/ltu/leu/gtu/geu/num/nan and/or/xor? ftz?"),
    ("set", "u16 s16 u32 s32 f16, f16", "eq/ne/lt/le/gt/ge/equ/neu/ltu/leu/gtu/geu/num/nan and/or/xor? ftz?"),
    ("set", "u32 s32 f16x2, f16x2", "eq/ne/lt/le/gt/ge/equ/neu/ltu/leu/gtu/geu/num/nan and/or/xor? ftz?"),
    ("set", "u32 s32 f32 f16 bf16, f64", "eq/ne/lt/le/gt/ge/equ/neu/ltu/leu/gtu/geu/num/nan and/or/xor?"),
    ("set", "bf16, f16 f32", "eq/ne/lt/le/gt/ge/equ/neu/ltu/leu/gtu/geu/num/nan and/or/xor?"),
    ("set", "u16 s16 u32 s32 bf16, bf16", "eq/ne/lt/le/gt/ge/equ/neu/ltu/leu/gtu/geu/num/nan and/or/xor?"),
    ("set", "u32 s32 bf16x2, bf16x2", "eq/ne/lt/le/gt/ge/equ/neu/ltu/leu/gtu/geu/num/nan and/or/xor?"),
    ("cvt", "u8 s8 u16 s16 u32 s32 u64 s64, u8 s8 u16 s16 u32 s32 u64 s64", "sat?"),
    ("cvt", "u8 s8 u16 s16 u32 s32 u64 s64, f16 bf16 f32 f64", "rni/rzi/rmi/rpi ftz? sat?"),
    ("cvt", "f16 bf16 f32 f64, u8 s8 u16 s16 u32 s32 u64 s64", "rn/rz/rm/rp ftz? sat?"),
    ("cvt", "f16 bf16 f32 f64, f16 bf16 f32 f64", "rn/rz/rm/rp/rni/rzi/rmi/rpi? ftz? sat?"),
    ("cvt", "f16 bf16 f16x2 bf16x2, f32", "rn/rz relu? satfinite?"),
    ("cvt", "tf32, f32", "rna satfinite?"),
    ("cvt", "tf32, f32", "rn/rz relu? satfinite?"),
    ("cvt", "e4m3x2 e5m2x2, f32 f16x2", "rn satfinite relu?"),
    ("cvt", "f16x2, e4m3x2 e5m2x2", "rn relu?"),
    ("cvt", "u16 s16, s32", "pack sat"),
    ("cvt", "u8 s8, s32, b32", "pack sat"),
    ("cvt", "s32, b32", "pack sat u2/s2/u4/s4"),
    ("vote", "pred", "sync? all/any/uni"),
    ("vote", "b32", "sync? ballot"),
    ("match", "b32 b64", "sync any/all"),
    ("redux", "u32 s32", "sync add/min/max"),
    ("redux", "b32", "sync and/or/xor"),
    ("shfl", "b32", "sync? up/down/bfly/idx"),
    ("elect", "", "sync"),
    ("activemask", "b32", ""),
    ("ld", MEMORY, concat!("weak? ca/cg/cs/lu/cv? ", loads!(), " v2/v4? ", hints!())),
    ("ld", MEMORY, concat!("volatile ", shared!(), " v2/v4? L2::64B/L2::128B/L2::256B?")),
    ("ld", MEMORY, concat!("relaxed/acquire cta/cluster/gpu/sys ", shared!(), " v2/v4? ", hints!())),
    ("ld", MEMORY, "mmio relaxed sys global?"),
    ("ld", MEMORY, concat!("weak? global nc ca/cg/cs? v2/v4? ", hints!())),
    ("ldu", MEMORY, "global? v2/v4?"),
    ("st", MEMORY, concat!("weak? wb/cg/cs/wt? ", stores!(), " v2/v4? ", evict!())),
    ("st", MEMORY, concat!("volatile ", shared!(), " v2/v4?")),
    ("st", MEMORY, concat!("relaxed/release cta/cluster/gpu/sys ", shared!(), " v2/v4? ", evict!())),
    ("st", MEMORY, "mmio relaxed sys global?"),
    ("ld", "b128", concat!("weak? ca/cg/cs/lu/cv? ", loads!(), " ", hints!())),
    ("ld", "b128", concat!("relaxed/acquire cta/cluster/gpu/sys ", shared!(), " ", hints!())),
    ("ld", "b128", concat!("weak? global nc ca/cg/cs? ", hints!())),
    ("ldu", "b128", "global?"),
    ("st", "b128", concat!("weak? wb/cg/cs/wt? ", stores!(), " ", evict!())),
    ("st", "b128", concat!("relaxed/release cta/cluster/gpu/sys ", shared!(), " ", evict!())),
    ("ld", "b32 u32 s32 f32", concat!("weak? global? v8 nc? ", hints!())),
    ("st", "b32 u32 s32 f32", concat!("weak? global? v8 ", evict!())),
    ("st", "b32 u32 s32 f32", concat!("async weak? shared::cluster ", bytes!(), " v2/v4?")),
    ("st", "b64 u64 s64 f64", concat!("async weak? shared::cluster ", bytes!(), " v2?")),
    ("atom", "u32 s32 u64 f32 f64", concat!("add ", atomics!())),
    ("atom", "u32 s32 u64 s64", concat!("min/max ", atomics!())),
    ("atom", "u32", concat!("inc/dec ", atomics!())),
    ("atom", "b32 b64", concat!("and/or/xor ", atomics!())),
    ("atom", "b32 b64 b128", concat!("exch/cas ", atomics!())),
    ("atom", "b16", concat!("cas ", atomics!())),
    ("atom", "f16 f16x2 bf16 bf16x2", concat!("add noftz ", atomics!())),
    ("atom", "f32", concat!("add v2/v4 ", vectors!())),
    ("atom", "f16x2 bf16x2", concat!("add/min/max noftz v2/v4 ", vectors!())),
    ("atom", "f16 bf16", concat!("add/min/max noftz v2/v4/v8 ", vectors!())),
    ("red", "u32 s32 u64 f32 f64", concat!("add ", reductions!())),
    ("red", "u32 s32 u64 s64", concat!("min/max ", reductions!())),
    ("red", "u32", concat!("inc/dec ", reductions!())),
    ("red", "b32 b64", concat!("and/or/xor ", reductions!())),
    ("red", "f16 f16x2 bf16 bf16x2", concat!("add noftz ", reductions!())),
    ("red", "f32", concat!("add v2/v4 ", vectors!())),
    ("red", "f16x2 bf16x2", concat!("add/min/max noftz v2/v4 ", vectors!())),
    ("red", "f16 bf16", concat!("add/min/max noftz v2/v4/v8 ", vectors!())),
    ("red", "u32 s32 u64 s64", concat!("async relaxed cluster shared::cluster add ", bytes!())),
    ("red", "u32 s32", concat!("async relaxed cluster shared::cluster min/max ", bytes!())),
    ("red", "u32", concat!("async relaxed cluster shared::cluster inc/dec ", bytes!())),
    ("red", "b32", concat!("async relaxed cluster shared::cluster and/or/xor ", bytes!())),
    ("cvta", "u32 u64", "to? const/global/local/param/param::entry/shared/shared::cta/shared::cluster"),
    ("isspacep", "", "const/global/local/param/param::entry/shared/shared::cta/shared::cluster"),
    ("mapa getctarank", "u32 u64", "shared::cluster?"),
    ("prefetch", "", "global/local? L1/L2"),
    ("prefetch", "", "global? L2::evict_last/L2::evict_normal"),
    ("prefetch", "", "const/param? tensormap"),
    ("prefetchu", "", "L1"),
    ("applypriority", "", "global? L2::evict_normal"),
    ("discard", "", "global? L2"),
    ("createpolicy", "b64", "fractional L2::evict_last/L2::evict_normal L2::evict_first/L2::evict_unchanged?"),
    ("createpolicy", "b64", "fractional L2::evict_first L2::evict_unchanged?"),
    ("createpolicy", "b64", "fractional L2::evict_unchanged"),
    ("createpolicy", "b64", "range global? L2::evict_last/L2::evict_normal L2::evict_first/L2::evict_unchanged?"),
    ("createpolicy", "b64", "range global? L2::evict_first L2::evict_unchanged?"),
    ("createpolicy", "b64", "cvt L2"),
    ("alloca stacksave stackrestore", "u32 u64", ""),
    ("cp", "", "async ca/cg shared/shared::cta global L2::64B/L2::128B/L2::256B? L2::cache_hint?"),
    ("cp", "", "async bulk? commit_group"),
    ("cp", "", "async wait_group/wait_all"),
    ("cp", "", "async bulk wait_group read?"),
    ("cp", "b64", "async mbarrier arrive noinc? shared/shared::cta?"),
    ("cp", "", concat!("async bulk shared::cluster global multicast::cluster? L2::cache_hint? ", bytes!())),
    ("cp", "", concat!("async bulk shared::cta global L2::cache_hint? ", bytes!())),
    ("cp", "", concat!("async bulk shared::cluster shared::cta ", bytes!())),
    ("cp", "", "async bulk global shared::cta bulk_group L2::cache_hint?"),
    ("cp", "", "async bulk prefetch L2 global L2::cache_hint?"),
    ("cp", "u32 s32 u64", concat!("reduce async bulk shared::cluster shared::cta add ", bytes!())),
    ("cp", "u32 s32", concat!("reduce async bulk shared::cluster shared::cta min/max ", bytes!())),
    ("cp", "u32", concat!("reduce async bulk shared::cluster shared::cta inc/dec ", bytes!())),
    ("cp", "b32", concat!("reduce async bulk shared::cluster shared::cta and/or/xor ", bytes!())),
    ("cp", "u32 s32 u64 f32 f64", "reduce async bulk global shared::cta bulk_group add L2::cache_hint?"),
    ("cp", "f16 bf16", "reduce async bulk global shared::cta bulk_group add noftz L2::cache_hint?"),
    ("cp", "u32 s32 u64 s64 f16 bf16", "reduce async bulk global shared::cta bulk_group min/max L2::cache_hint?"),
    ("cp", "u32", "reduce async bulk global shared::cta bulk_group inc/dec L2::cache_hint?"),
    ("cp", "b32 b64", "reduce async bulk global shared::cta bulk_group and/or/xor L2::cache_hint?"),
    ("mbarrier", "b64", "init/inval shared/shared::cta?"),
    ("mbarrier", "b64", "arrive/arrive_drop expect_tx? shared/shared::cta/shared::cluster?"),
    ("mbarrier", "b64", "arrive/arrive_drop expect_tx? release/relaxed cta/cluster shared/shared::cta/shared::cluster?"),
    ("mbarrier", "b64", "arrive/arrive_drop noComplete shared/shared::cta?"),
    ("mbarrier", "b64", "arrive/arrive_drop noComplete release cta shared/shared::cta?"),
    ("mbarrier", "b64", "expect_tx/complete_tx shared/shared::cta/shared::cluster?"),
    ("mbarrier", "b64", "expect_tx/complete_tx relaxed cta/cluster shared/shared::cta/shared::cluster?"),
    ("mbarrier", "b64", "test_wait/try_wait parity? shared/shared::cta?"),
    ("mbarrier", "b64", "test_wait/try_wait parity? acquire/relaxed cta/cluster shared/shared::cta?"),
    ("mbarrier", "b64", "pending_count"),
    ("bar", "", "cta? sync/arrive"),
    ("bar", "u32", "cta? red popc"),
    ("bar", "pred", "cta? red and/or"),
    ("bar", "", "warp sync"),
    ("barrier", "", "cta? sync/arrive aligned?"),
    ("barrier", "u32", "cta? red popc aligned?"),
    ("barrier", "pred", "cta? red and/or aligned?"),
    ("barrier", "", "cluster arrive release/relaxed? aligned?"),
    ("barrier", "", "cluster wait acquire? aligned?"),
    ("membar", "", "cta/gl/sys"),
    ("fence", "", "sc/acq_rel/acquire/release? cta/cluster/gpu/sys"),
    ("fence", "", "mbarrier_init release cluster"),
    ("fence", "", "proxy alias"),
    ("fence", "", "proxy async global/shared::cta/shared::cluster?"),
    ("fence", "", "proxy tensormap::generic release/acquire cta/cluster/gpu/sys"),
    ("bra ret", "", "uni?"),
    ("call", "", "uni?"),
    ("brx", "", "idx uni?"),
    ("exit trap brkpt", "", ""),
    ("pmevent", "", "mask?"),
    ("nanosleep", "u32", ""),
    ("griddepcontrol", "", "wait/launch_dependents"),
    ("setmaxnreg", "u32", "inc/dec sync aligned"),
    ("movmatrix", "b16", "sync aligned m8n8 trans"),
];
