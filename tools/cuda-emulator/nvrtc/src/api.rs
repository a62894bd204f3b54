//! The functions of NVRTC's C interface. Those that concern what is kept are written out; the others pass the call on.

use crate::key::{Source, key, stamp};
use crate::real::{self, real, symbol};
use crate::store::{Compiled, Store};
use std::collections::HashMap;
use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{self, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Handle of a program, NVIDIA's own.
type Handle = usize;

/// What is known of a program besides its handle.
#[derive(Default)]
struct Program {
    source: Source,
    options: Vec<CString>,
    /// The store's answer.
    kept: Option<Arc<Compiled>>,
    /// Whether NVIDIA's library has compiled the program under this handle.
    compiled: bool,
}

fn programs() -> MutexGuard<'static, HashMap<Handle, Program>> {
    static PROGRAMS: OnceLock<Mutex<HashMap<Handle, Program>>> = OnceLock::new();
    PROGRAMS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn store() -> &'static Store {
    static STORE: OnceLock<Store> = OnceLock::new();
    STORE.get_or_init(|| {
        let folder = env::var_os("KILN_NVRTC_CACHE").filter(|folder| !folder.is_empty());
        // The program may change its working directory.
        Store::new(folder.and_then(|folder| path::absolute(folder).ok()))
    })
}

mod nvidia {
    use super::{Handle, c_char, c_int, real};

    real! {
        nvrtcVersion(major: *mut c_int, minor: *mut c_int);
        nvrtcCreateProgram(
            program: *mut Handle,
            text: *const c_char,
            name: *const c_char,
            headers: c_int,
            contents: *const *const c_char,
            names: *const *const c_char
        );
        nvrtcDestroyProgram(program: *mut Handle);
        nvrtcCompileProgram(program: Handle, count: c_int, options: *const *const c_char);
        nvrtcGetPTXSize(program: Handle, size: *mut usize);
        nvrtcGetPTX(program: Handle, ptx: *mut u8);
        nvrtcGetProgramLogSize(program: Handle, size: *mut usize);
        nvrtcGetProgramLog(program: Handle, log: *mut u8);
    }
}

/// The bytes of a C string, or none.
unsafe fn bytes(text: *const c_char) -> Vec<u8> {
    // SAFETY: the program passes a C string or null.
    if text.is_null() { Vec::new() } else { unsafe { CStr::from_ptr(text) }.to_bytes().to_vec() }
}

/// Creates a program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut Handle,
    text: *const c_char,
    name: *const c_char,
    headers: c_int,
    contents: *const *const c_char,
    names: *const *const c_char,
) -> c_int {
    // SAFETY: the program's own arguments.
    let code = unsafe { nvidia::nvrtcCreateProgram(program, text, name, headers, contents, names) };
    if code == 0 {
        // SAFETY: the call has succeeded, so the handle is written and the text is a C string.
        let (handle, source) =
            unsafe { (*program, Source { text: bytes(text), name: bytes(name), uncacheable: headers != 0 }) };
        programs().insert(handle, Program { source, ..Program::default() });
    }
    code
}

/// Destroys a program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut Handle) -> c_int {
    if !program.is_null() {
        // Before NVIDIA can reuse the handle.
        // SAFETY: not null.
        programs().remove(unsafe { &*program });
    }
    // SAFETY: the program's own argument.
    unsafe { nvidia::nvrtcDestroyProgram(program) }
}

/// Compiles a program, unless it is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(program: Handle, count: c_int, options: *const *const c_char) -> c_int {
    // SAFETY: the program's own arguments.
    let Some(key) = unsafe { texts(count, options) }.and_then(|texts| key_of(program, texts)) else {
        // SAFETY: the program's own arguments.
        return unsafe { nvidia::nvrtcCompileProgram(program, count, options) };
    };
    let mut code = None;
    let kept = store().get(&key, || {
        // SAFETY: the program's own arguments.
        let answer = *code.insert(unsafe { nvidia::nvrtcCompileProgram(program, count, options) });
        if answer == 0 { answers(program) } else { None }
    });
    if let Some(known) = programs().get_mut(&program) {
        (known.compiled, known.kept) = (code.is_some(), kept.clone());
    }
    match (code, kept) {
        (Some(code), _) => code,
        (None, Some(_)) => 0,
        // Another caller's compilation has failed. This caller needs its own log.
        // SAFETY: the program's own arguments.
        (None, None) => unsafe { nvidia::nvrtcCompileProgram(program, count, options) },
    }
}

/// The options of a compilation. `None` if a pointer is missing or their number is negative, which NVIDIA's library refuses.
unsafe fn texts(count: c_int, options: *const *const c_char) -> Option<Vec<CString>> {
    let count = usize::try_from(count).ok()?;
    if count > 0 && options.is_null() {
        return None;
    }
    // SAFETY: the program passes `count` C strings, or null.
    let text = |option: *const c_char| (!option.is_null()).then(|| unsafe { CStr::from_ptr(option) }.to_owned());
    // SAFETY: `options` has `count` elements.
    (0..count).map(|i| text(unsafe { *options.add(i) })).collect()
}

/// The key of a program with these options, if it is one to keep.
fn key_of(program: Handle, options: Vec<CString>) -> Option<Vec<u8>> {
    let mut programs = programs();
    let known = programs.get_mut(&program)?;
    let key = toolkit().and_then(|toolkit| {
        let options: Vec<&[u8]> = options.iter().map(|option| option.as_bytes()).collect();
        key(&known.source, &options, compiler(), &toolkit)
    });
    // The key has the text now. CubeCL destroys no program, so a second copy would stay. A second compilation under this
    // handle goes to NVIDIA's library.
    *known = Program {
        source: Source { uncacheable: true, ..Source::default() },
        options,
        kept: None,
        compiled: key.is_none(),
    };
    key
}

fn toolkit() -> Option<PathBuf> {
    env::var_os("CUDA_PATH").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// NVIDIA's library: its version, and its file, because builds of one version can differ.
fn compiler() -> &'static str {
    static COMPILER: OnceLock<String> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are places for a number.
        unsafe { nvidia::nvrtcVersion(&raw mut major, &raw mut minor) };
        format!("NVRTC {major}.{minor}, {}", real::file().map_or("unknown".into(), |file| stamp(&file)))
    })
}

/// What NVIDIA's library answers for a program that it has compiled.
fn answers(program: Handle) -> Option<Compiled> {
    let read = |size: unsafe fn(Handle, *mut usize) -> c_int, get: unsafe fn(Handle, *mut u8) -> c_int| {
        let mut length = 0;
        // SAFETY: `length` is a place for a size, and the buffer has that size.
        unsafe {
            (size(program, &raw mut length) == 0).then_some(())?;
            let mut bytes = vec![0; length];
            (get(program, bytes.as_mut_ptr()) == 0).then_some(bytes)
        }
    };
    Some(Compiled {
        ptx: read(nvidia::nvrtcGetPTXSize, nvidia::nvrtcGetPTX)?,
        log: read(nvidia::nvrtcGetProgramLogSize, nvidia::nvrtcGetProgramLog)?,
    })
}

/// The answer that is kept for a program, if there is one and a place for it, which NVIDIA's library refuses otherwise.
fn kept<T>(program: Handle, to: *mut T) -> Option<Arc<Compiled>> {
    programs().get(&program)?.kept.clone().filter(|_| !to.is_null())
}

/// Compiles a program that was answered from the store, for a question that the store cannot answer.
fn compile_now(program: Handle) {
    let options = match programs().get_mut(&program) {
        Some(known) if known.kept.is_some() && !known.compiled => {
            known.compiled = true;
            known.options.clone()
        }
        _ => return,
    };
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: the options are C strings, as many as `options` has. They have compiled the same source before.
    unsafe { nvidia::nvrtcCompileProgram(program, c_int::try_from(options.len()).unwrap_or(0), options.as_ptr()) };
}

/// The length of the PTX, with its NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetPTXSize(program: Handle, size: *mut usize) -> c_int {
    let Some(compiled) = kept(program, size) else {
        // SAFETY: the program's own arguments.
        return unsafe { nvidia::nvrtcGetPTXSize(program, size) };
    };
    // SAFETY: the program passes a place for the size.
    unsafe { *size = compiled.ptx.len() };
    0
}

/// The PTX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetPTX(program: Handle, to: *mut u8) -> c_int {
    let Some(compiled) = kept(program, to) else {
        // SAFETY: the program's own arguments.
        return unsafe { nvidia::nvrtcGetPTX(program, to) };
    };
    // SAFETY: the program passes a buffer of the size that it was told.
    unsafe { compiled.ptx.as_ptr().copy_to(to, compiled.ptx.len()) };
    0
}

/// The length of the log, with its NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(program: Handle, size: *mut usize) -> c_int {
    let Some(compiled) = kept(program, size) else {
        // SAFETY: the program's own arguments.
        return unsafe { nvidia::nvrtcGetProgramLogSize(program, size) };
    };
    // SAFETY: the program passes a place for the size.
    unsafe { *size = compiled.log.len() };
    0
}

/// The log of the compilation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLog(program: Handle, to: *mut u8) -> c_int {
    let Some(compiled) = kept(program, to) else {
        // SAFETY: the program's own arguments.
        return unsafe { nvidia::nvrtcGetProgramLog(program, to) };
    };
    // SAFETY: the program passes a buffer of the size that it was told.
    unsafe { compiled.log.as_ptr().copy_to(to, compiled.log.len()) };
    0
}

/// Excludes a program from the store.
fn leave(program: Handle) {
    compile_now(program);
    if let Some(known) = programs().get_mut(&program) {
        known.source.uncacheable = true;
    }
}

/// Does nothing.
fn nothing<T>(_: T) {}

/// Exports functions that pass the call on, after `$first` of their first argument.
macro_rules! pass_on {
    (after $first:ident: $($name:ident($arg:ident: $type:ty $(, $more:ident: $types:ty)*);)*) => {$(
        #[doc = concat!("Passes `", stringify!($name), "` on.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($arg: $type $(, $more: $types)*) -> c_int {
            mod nvidia {
                use super::*;
                real! { $name($arg: $type $(, $more: $types)*); }
            }
            $first($arg);
            // SAFETY: the program's own arguments.
            unsafe { nvidia::$name($arg $(, $more)*) }
        }
    )*};
}

pass_on! { after nothing:
    nvrtcVersion(major: *mut c_int, minor: *mut c_int);
    nvrtcGetNumSupportedArchs(count: *mut c_int);
    nvrtcGetSupportedArchs(archs: *mut c_int);
    nvrtcGetPCHHeapSize(size: *mut usize);
    nvrtcSetPCHHeapSize(size: usize);
}

pass_on! { after leave:
    nvrtcAddNameExpression(program: Handle, expression: *const c_char);
    nvrtcSetFlowCallback(program: Handle, callback: *mut c_void, payload: *mut c_void);
}

pass_on! { after compile_now:
    nvrtcGetCUBINSize(program: Handle, size: *mut usize);
    nvrtcGetCUBIN(program: Handle, to: *mut c_char);
    nvrtcGetLTOIRSize(program: Handle, size: *mut usize);
    nvrtcGetLTOIR(program: Handle, to: *mut c_char);
    nvrtcGetOptiXIRSize(program: Handle, size: *mut usize);
    nvrtcGetOptiXIR(program: Handle, to: *mut c_char);
    nvrtcGetNVVMSize(program: Handle, size: *mut usize);
    nvrtcGetNVVM(program: Handle, to: *mut c_char);
    nvrtcGetLoweredName(program: Handle, expression: *const c_char, name: *mut *const c_char);
    nvrtcGetPCHCreateStatus(program: Handle);
    nvrtcGetPCHHeapSizeRequired(program: Handle, size: *mut usize);
}

/// The name of a result.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(result: c_int) -> *const c_char {
    let found = symbol("nvrtcGetErrorString\0");
    if found.is_null() {
        return c"NVRTC_ERROR_INTERNAL_ERROR".as_ptr();
    }
    // SAFETY: the function has this type in NVRTC's documentation.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> *const c_char>(found)(result) }
}
