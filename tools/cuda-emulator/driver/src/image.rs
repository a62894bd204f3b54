//! What a program loads as a module: PTX text, or something that has to be refused.

use crate::call::refuse;
use crate::errors::{Answer, Code};
use crate::spec::spec;
use std::ffi::{CStr, c_uint, c_void};

/// Newest PTX that is read: CUDA 12.9's.
const PTX_VERSION: (u32, u32) = (8, 8);

/// Where the client wants messages of the compiler.
#[derive(Clone, Copy, Default)]
pub struct Log {
    error: usize,
    room: usize,
}

impl Log {
    /// Reads the options of a load: numbers, and values of a pointer's width.
    ///
    /// # Safety
    /// Both have `count` entries.
    pub unsafe fn read(count: c_uint, options: *const c_uint, values: *const usize) -> Answer<Self> {
        // SAFETY: the caller's.
        let pairs = unsafe {
            let options = crate::call::values(options, count as usize)?;
            options.into_iter().zip(crate::call::values(values, count as usize)?)
        };
        let mut log = Self::default();
        for (option, value) in pairs {
            match option {
                5 => log.error = value,
                6 => log.room = value,
                _ => {}
            }
        }
        Ok(log)
    }

    /// Hands a message to the client, and prints it.
    pub fn fail<T>(self, code: Code, message: &str) -> Answer<T> {
        if self.error != 0 && self.room > 0 {
            // SAFETY: the client gave a buffer of this size.
            unsafe { crate::abi::copy_text(message, self.error as *mut _, self.room) };
        }
        refuse(code, message)
    }
}

/// The PTX text at `image`, whose form its first bytes tell.
///
/// # Errors
/// It is machine code of a card, or not text.
///
/// # Safety
/// `image` is null, or what the API lets a client load.
pub unsafe fn text(image: *const c_void, log: Log) -> Answer<String> {
    if image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: every form has 4 bytes, and a text may end before.
    let first: Vec<u8> =
        (0..4).map(|index| unsafe { *image.cast::<u8>().add(index) }).take_while(|&byte| byte != 0).collect();
    match first[..] {
        [0x7f, b'E', b'L', b'F'] => log.fail(
            Code::NO_BINARY_FOR_GPU,
            "the module is a cubin, machine code of a card, and the emulated card executes PTX: compile to PTX \
             (NVRTC: nvrtcGetPTX, or --gpu-architecture=compute_80; nvcc -ptx; CuPy: CUPY_COMPILE_WITH_PTX=1; \
             Numba and cuda.core: without the package nvidia-nvjitlink, so that the driver links)",
        ),
        [0x50, 0xed, 0x55, 0xba] | [0xb1, 0x43, 0x62, 0x46] => log.fail(
            Code::NO_BINARY_FOR_GPU,
            "the module is a fat binary, and the emulated card executes PTX text: compile with nvcc -ptx and load that file",
        ),
        _ => {
            // SAFETY: PTX ends in a zero byte.
            let text = unsafe { CStr::from_ptr(image.cast()) };
            check(text.to_string_lossy().into_owned(), log)
        }
    }
}

/// Bytes of the comment that a text begins with, if it does. `# 1 "name"` is from a preprocessor.
fn comment(text: &str) -> Option<usize> {
    let end = if text.starts_with("//") || text.starts_with('#') {
        text.find('\n')
    } else {
        text.strip_prefix("/*")?.find("*/").map(|end| end + 4)
    };
    Some(end.unwrap_or(text.len()))
}

/// The words and commas of PTX text, without comments.
struct Words<'t>(&'t str);

impl<'t> Iterator for Words<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        self.0 = self.0.trim_start();
        while let Some(end) = comment(self.0) {
            self.0 = self.0[end..].trim_start();
        }
        let first = self.0.chars().next()?;
        let rest = &self.0[first.len_utf8()..];
        let more = if first == ',' {
            0
        } else {
            rest.find(|c: char| c.is_whitespace() || ",/".contains(c)).unwrap_or(rest.len())
        };
        let (word, rest) = self.0.split_at(first.len_utf8() + more);
        self.0 = rest;
        Some(word)
    }
}

/// The version and the target of PTX text: `8.3` and `sm_80` of `.version 8.3 .target debug, sm_80`.
fn header(text: &str) -> (Option<&str>, Option<&str>) {
    let mut words = Words(text);
    let version = words.find(|&word| word == ".version").and_then(|_| words.next());
    let mut target = words.find(|&word| word == ".target").and_then(|_| words.next());
    while target.is_some_and(|target| !target.starts_with("sm_")) && words.next() == Some(",") {
        target = words.next();
    }
    (version, target)
}

/// Refuses text that is no PTX, or that is not for this card.
pub fn check(text: String, log: Log) -> Answer<String> {
    let (version, target) = header(&text);
    let Some(version) = version else {
        return log.fail(Code::INVALID_IMAGE, "the module is no PTX: it has no .version");
    };
    let number = |text: &str| text.parse::<u32>().ok();
    let parsed = version.split_once('.').and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
    if parsed.is_none_or(|parsed| parsed > PTX_VERSION) {
        let (major, minor) = PTX_VERSION;
        return log.fail(
            Code::UNSUPPORTED_PTX_VERSION,
            &format!("the module is PTX {version}; the emulated driver reads up to {major}.{minor}"),
        );
    }
    let Some(target) = target else {
        return log.fail(Code::INVALID_PTX, "the module has no .target");
    };
    let digits = target.trim_start_matches("sm_").trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (capability, special) = (spec().capability, target.ends_with(['a', 'f']));
    let card = capability.0 as u32 * 10 + capability.1 as u32;
    match number(digits) {
        Some(found) if found > card || (special && found != card) => log.fail(
            Code::INVALID_PTX,
            &format!(
                "the module is for {target}, and the emulated card is sm_{card}: KILN_EMULATED_ARCH=sm_90a makes it an H100"
            ),
        ),
        None => log.fail(Code::INVALID_PTX, &format!("the module's .target \"{target}\" is not known")),
        _ => Ok(text),
    }
}

/// Prints what is wrong with a text, with the line, and hands it to the client.
pub fn wrong<T>(text: &str, error: &ptx::PtxError, log: Log) -> Answer<T> {
    let line = text.lines().nth((error.line as usize).saturating_sub(1)).unwrap_or("").trim();
    log.fail(Code::INVALID_PTX, &format!("PTX that cannot be loaded: {error}\n  {line}"))
}
