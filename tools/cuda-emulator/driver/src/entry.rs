//! What clients look up: functions by name, version and kind of default stream, and the names and texts of codes.

use crate::abi::{CUresult, CUuuid};
use crate::call::{api, out, out_opt, text, values};
use crate::device::VERSION;
use crate::errors::{self, Answer, Code};
use crate::say::{say, say_once};
use crate::settings::settings;
use std::ffi::{CStr, CString, c_char, c_int, c_ulonglong, c_void};
use std::sync::OnceLock;

/// Functions whose newer forms a client gets only if it asks for the version that brought them; other `_v2` are older than
/// any client. The rest: name, suffix, first version.
const SINCE: &[(&str, &str, c_int)] = &[
    ("cuCtxCreate", "_v3", 11040),
    ("cuCtxCreate", "_v4", 12050),
    ("cuCtxGetDevice", "_v2", 13000),
    ("cuCtxSynchronize", "_v2", 13000),
    ("cuDeviceGetUuid", "_v2", 11040),
    ("cuEventElapsedTime", "_v2", 12080),
    ("cuGetProcAddress", "_v2", 12000),
    ("cuGraphAddDependencies", "_v2", 12030),
    ("cuGraphAddKernelNode", "_v2", 12000),
    ("cuGraphAddNode", "_v2", 12030),
    ("cuGraphExecKernelNodeSetParams", "_v2", 12000),
    ("cuGraphExecUpdate", "_v2", 12000),
    ("cuGraphGetEdges", "_v2", 12030),
    ("cuGraphKernelNodeGetParams", "_v2", 12000),
    ("cuGraphKernelNodeSetParams", "_v2", 12000),
    ("cuGraphNodeGetDependencies", "_v2", 12030),
    ("cuGraphNodeGetDependentNodes", "_v2", 12030),
    ("cuGraphRemoveDependencies", "_v2", 12030),
    ("cuMemAdvise", "_v2", 12020),
    ("cuMemPrefetchAsync", "_v2", 12020),
    ("cuMemcpy3DBatchAsync", "_v2", 13000),
    ("cuMemcpyBatchAsync", "_v2", 13000),
    ("cuMulticastBindAddr", "_v2", 13010),
    ("cuMulticastBindMem", "_v2", 13010),
    ("cuStreamGetCaptureInfo", "_v2", 11030),
    ("cuStreamGetCaptureInfo", "_v3", 12030),
    ("cuStreamGetCtx", "_v2", 12050),
    ("cuStreamUpdateCaptureDependencies", "_v2", 12030),
];

/// The table of undocumented functions that the runtime library asks for first. Other libraries do without theirs.
const RUNTIME: [u8; 16] = 0x6bd5_fb6c_5bf4_e74a_8987_d939_12fd_9df9_u128.to_be_bytes();

/// Handle of this library, so that only its own symbols are found.
fn own() -> *mut c_void {
    static OWN: OnceLock<usize> = OnceLock::new();
    let find = || {
        // SAFETY: the address is of this library; the name that is found lives as long as the library.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(cuGetProcAddress as *const c_void, &mut info) == 0 || info.dli_fname.is_null() {
                return 0;
            }
            libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) as usize
        }
    };
    *OWN.get_or_init(find) as *mut c_void
}

fn symbol(name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: a null handle is the program itself, which has the symbols if it is linked with them.
    let found = unsafe { libc::dlsym(own(), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The function of a name for a client of `version`: its newest form that the version has.
fn find(name: &str, version: c_int, of_thread: bool) -> Option<*mut c_void> {
    let version = if version == 0 { VERSION } else { version };
    let base = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    let plain = ["_v2", "_v3", "_v4"].iter().find_map(|suffix| base.strip_suffix(suffix)).unwrap_or(base);
    if plain == "cuGraphInstantiate" && version >= 12000 {
        return symbol("cuGraphInstantiateWithFlags");
    }
    let allowed = |suffix: &&str| {
        let since = SINCE.iter().find(|row| row.0 == plain && row.1 == *suffix);
        since.is_none_or(|row| version >= row.2)
    };
    let forms: Vec<_> =
        ["_v4", "_v3", "_v2", ""].into_iter().filter(allowed).map(|suffix| format!("{plain}{suffix}")).collect();
    let threads: &[&str] = if of_thread { &["_ptsz", "_ptds", ""] } else { &[""] };
    forms.iter().find_map(|form| threads.iter().find_map(|suffix| symbol(&format!("{form}{suffix}"))))
}

/// Writes the function to `to` and whether it was found to `status`: 0 found, 1 unknown.
unsafe fn lookup(
    name: *const c_char,
    to: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_int,
) -> Answer {
    // SAFETY: the caller's.
    unsafe {
        let name = text(name)?;
        let found = find(&name, version, flags & 2 != 0);
        out_opt(status, c_int::from(found.is_none()));
        out(to, found.unwrap_or(std::ptr::null_mut()))?;
        if found.is_none() {
            if settings().trace {
                say_once(&format!("cuGetProcAddress: there is no {name}"));
            }
            return Err(Code::NOT_FOUND);
        }
    }
    Ok(())
}

/// Writes `pick(row)` to `out`; an unknown code makes it null.
unsafe fn text_of(
    code: CUresult,
    out: *mut *const c_char,
    pick: fn(&(CUresult, &CStr, &CStr)) -> *const c_char,
) -> Answer {
    if out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let row = errors::find(code);
    // SAFETY: the client vouches for a pointer that is not null.
    unsafe { *out = row.map_or(std::ptr::null(), pick) };
    row.map(|_| ()).ok_or(Code::INVALID_VALUE)
}

api! {
    early fn cuGetProcAddress(name: *const c_char, to: *mut *mut c_void, version: c_int, flags: c_ulonglong) {
        lookup(name, to, version, flags, std::ptr::null_mut())
    }
    early fn cuGetProcAddress_v2(
        name: *const c_char, to: *mut *mut c_void, version: c_int, flags: c_ulonglong, status: *mut c_int,
    ) {
        lookup(name, to, version, flags, status)
    }
    early fn cuGetExportTable(to: *mut *const c_void, id: *const CUuuid) {
        out_opt(to, std::ptr::null());
        if values(id, 1)?[0].0 == RUNTIME {
            say_once(
                "the program uses NVIDIA's runtime library (cudart), which checks that the driver is NVIDIA's own: \
                 only programs that call the driver API themselves run on an emulated card",
            );
        } else if settings().trace {
            say("cuGetExportTable: a table that is not emulated");
        }
        Err(Code::NOT_FOUND)
    }
    early fn cuGetErrorName(code: CUresult, name: *mut *const c_char) {
        text_of(code, name, |row| row.1.as_ptr())
    }
    early fn cuGetErrorString(code: CUresult, string: *mut *const c_char) {
        text_of(code, string, |row| row.2.as_ptr())
    }
}
