//! The vector instructions of CPU loops and products: the widest set that the processor has and `KILN_SIMD` allows.

use std::sync::LazyLock;

/// The environment variable that selects a narrower set than the processor has: a [name](Simd::name) of [`Simd`].
pub const VARIABLE: &str = "KILN_SIMD";

/// Sets of vector instructions; each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Simd {
    /// What the program is compiled for: SSE2 on x86-64.
    Default,
    /// AVX2 with FMA: 8 floats.
    Avx2,
    /// AVX-512 F, DQ and VL: 16 floats; also BF16, if the processor has it.
    Avx512,
    /// AMX: products of bf16 in tiles. All else is done with AVX-512.
    Amx,
}

impl Simd {
    const ALL: [Self; 4] = [Self::Default, Self::Avx2, Self::Avx512, Self::Amx];

    /// The value of `KILN_SIMD` that selects this set; PyTorch's `ATEN_CPU_CAPABILITY` has the same names, except
    /// `amx`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    /// Returns the widest set of this processor that the process may use. Where that is AMX, the process may use it
    /// from then on, and Linux refuses signal stacks that are too small for the tile registers.
    pub fn of_processor() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 && is_x86_feature_detected!("avx512bf16") && may_use_amx() {
                return Self::Amx;
            }
            if avx2 && avx512 {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Default
    }

    /// Returns the set that `KILN_SIMD` asks for, or `None` if the variable is not set or empty.
    ///
    /// # Errors
    /// If the variable does not name a set, or if this process cannot use that set.
    pub fn asked_for() -> Result<Option<Self>, String> {
        let Some(asked) = std::env::var_os(VARIABLE).filter(|asked| !asked.is_empty()) else { return Ok(None) };
        let widest = Self::of_processor();
        match Self::ALL.into_iter().find(|simd| asked == simd.name()) {
            Some(simd) if simd <= widest => Ok(Some(simd)),
            Some(simd) => Err(format!(
                "{VARIABLE} is {}, but the widest set that can be used here is {}",
                simd.name(),
                widest.name()
            )),
            None => {
                let names = Self::ALL.map(Self::name).join(", ");
                Err(format!("{VARIABLE} is {}: give one of {names}, or leave it out", asked.display()))
            }
        }
    }
}

/// Whether the processor has AMX with bf16, and the system lets this process use it.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
fn may_use_amx() -> bool {
    use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};

    const AMX_BF16_AND_TILE: u32 = 1 << 22 | 1 << 24; // of EDX
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;

    if __get_cpuid_max(0).0 < 7 || __cpuid_count(7, 0).edx & AMX_BF16_AND_TILE != AMX_BF16_AND_TILE {
        return false;
    }
    // Linux saves the tile registers of a process, 8 KiB for each thread, only if it has asked for that.
    let mut result = SYS_ARCH_PRCTL;
    // SAFETY: this system call touches no memory of the process.
    unsafe {
        std::arch::asm!(
            "syscall",
            inout("rax") result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// AMX is used on Linux only, where a process can ask for it.
#[cfg(all(target_arch = "x86_64", not(all(target_os = "linux", not(miri)))))]
fn may_use_amx() -> bool {
    false
}

/// Returns the set in use: the one that `KILN_SIMD` asks for, otherwise (also if the request is invalid) that of the
/// processor.
#[inline]
pub fn simd() -> Simd {
    static SIMD: LazyLock<Simd> = LazyLock::new(|| Simd::asked_for().ok().flatten().unwrap_or_else(Simd::of_processor));
    *SIMD
}

/// Whether bf16 products use the native instructions of AVX512-BF16 or AMX; other 16-bit products are computed in f32.
pub fn multiplies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return simd() >= Simd::Avx512 && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Compiles a loop for each [`Simd`]; a call runs the version that [`simd`] selects. Functions that the loop calls must
/// be inlined to be compiled for that set as well.
#[macro_export]
macro_rules! vectorised {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<$t:ident: $bound:path>)? ($($arg:ident: $of:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$doc])*
        $vis fn $name $(<$t: $bound>)? ($($arg: $of),*) $(-> $result)? {
            #[inline(always)]
            fn body $(<$t: $bound>)? ($($arg: $of),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512vl,fma")]
                fn avx512 $(<$t: $bound>)? ($($arg: $of),*) $(-> $result)? {
                    body($($arg),*)
                }

                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<$t: $bound>)? ($($arg: $of),*) $(-> $result)? {
                    body($($arg),*)
                }

                match $crate::simd::simd() {
                    // SAFETY: `simd` has checked the processor.
                    $crate::simd::Simd::Avx512 | $crate::simd::Simd::Amx => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::Simd::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::simd::Simd::Default => {}
                }
            }
            body($($arg),*)
        }
    };
}
