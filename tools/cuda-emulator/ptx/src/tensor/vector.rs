//! Functions that are compiled twice: for any processor, and for one with AVX2 and fused multiply-adds.

/// Defines functions whose bodies use AVX2 if the processor has it. The results are the same bits: the compiler changes the order of no
/// sum and fuses no product with a sum unless it is told to.
macro_rules! vectorised {
    ($($(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        $(#[$about])*
        pub(super) fn $name($($argument: $type),*) {
            #[inline(always)]
            fn plain($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) {
                    plain($($argument),*);
                }
                if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has been asked.
                    return unsafe { avx2($($argument),*) };
                }
            }
            plain($($argument),*);
        }
    )* };
}

pub(super) use vectorised;
