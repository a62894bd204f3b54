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
}

impl Simd {
    const ALL: [Self; 3] = [Self::Default, Self::Avx2, Self::Avx512];

    /// The value of `KILN_SIMD` that selects this set; PyTorch's `ATEN_CPU_CAPABILITY` uses the same names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Returns the widest set of this processor.
    pub fn of_processor() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
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
    /// If the variable does not name a set, or if this processor does not have that set.
    pub fn asked_for() -> Result<Option<Self>, String> {
        let Some(asked) = std::env::var_os(VARIABLE).filter(|asked| !asked.is_empty()) else { return Ok(None) };
        let widest = Self::of_processor();
        match Self::ALL.into_iter().find(|simd| asked == simd.name()) {
            Some(simd) if simd <= widest => Ok(Some(simd)),
            Some(simd) => Err(format!("{VARIABLE} is {}, but this processor has {}", simd.name(), widest.name())),
            None => {
                let names = Self::ALL.map(Self::name).join(", ");
                Err(format!("{VARIABLE} is {}: give one of {names}, or leave it out", asked.display()))
            }
        }
    }
}

/// Returns the set in use: the one that `KILN_SIMD` asks for, otherwise (also if the request is invalid) that of the
/// processor.
#[inline]
pub fn simd() -> Simd {
    static SIMD: LazyLock<Simd> = LazyLock::new(|| Simd::asked_for().ok().flatten().unwrap_or_else(Simd::of_processor));
    *SIMD
}

/// Whether bf16 products use the native instructions of AVX512-BF16; other 16-bit products are computed in f32.
pub fn multiplies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return simd() == Simd::Avx512 && is_x86_feature_detected!("avx512bf16");
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
                    $crate::simd::Simd::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::simd::Simd::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::simd::Simd::Default => {}
                }
            }
            body($($arg),*)
        }
    };
}
