//! Tests against NVIDIA's NVRTC:
//!
//! ```sh
//! KILN_NVRTC_CACHE= bash scripts/emulated-cuda.sh cargo test -p nvrtc-cache -- --ignored
//! ```
//!
//! The variable is empty, so that a program is new to each run.

use nvrtc_cache::api;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::process::Command;
use std::{env, fs, ptr};

const SOURCE: &str = "#include <cuda_fp16.h>\nextern \"C\" __global__ void half_of(__half *x) { int unused; x[threadIdx.x] *= __half(0.5f); }";

/// A compiled program.
struct Program(usize);

impl Program {
    fn new(source: &str) -> Self {
        let (source, mut handle) = (CString::new(source).unwrap(), 0);
        // SAFETY: a C string and a place for the handle.
        let code = unsafe {
            api::nvrtcCreateProgram(&raw mut handle, source.as_ptr(), ptr::null(), 0, ptr::null(), ptr::null())
        };
        assert_eq!(code, 0, "nvrtcCreateProgram");
        Self(handle)
    }

    fn compile_with(&self, options: &[String]) -> c_int {
        let options: Vec<CString> = options.iter().map(|option| CString::new(option.as_str()).unwrap()).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: C strings that live through the call.
        unsafe { api::nvrtcCompileProgram(self.0, options.len() as c_int, options.as_ptr()) }
    }

    /// The result of compiling, and the program.
    fn compile(source: &str, options: &[String]) -> (c_int, Self) {
        let program = Self::new(source);
        (program.compile_with(options), program)
    }

    fn read(
        &self,
        size: unsafe extern "C" fn(usize, *mut usize) -> c_int,
        get: unsafe extern "C" fn(usize, *mut u8) -> c_int,
    ) -> String {
        let mut length = 0;
        // SAFETY: a place for a size, and a buffer of that size.
        unsafe {
            assert_eq!(size(self.0, &raw mut length), 0);
            let mut bytes = vec![0; length];
            assert_eq!(get(self.0, bytes.as_mut_ptr()), 0);
            assert_eq!(bytes.pop(), Some(0), "the text ends in zero");
            String::from_utf8(bytes).unwrap()
        }
    }

    fn ptx(&self) -> String {
        self.read(api::nvrtcGetPTXSize, api::nvrtcGetPTX)
    }

    fn log(&self) -> String {
        self.read(api::nvrtcGetProgramLogSize, api::nvrtcGetProgramLog)
    }

    fn cubin_size(&self) -> usize {
        let mut size = 0;
        // SAFETY: a place for a size.
        assert_eq!(unsafe { api::nvrtcGetCUBINSize(self.0, &raw mut size) }, 0);
        size
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the handle is destroyed once.
        unsafe { api::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

fn options(more: &[&str]) -> Vec<String> {
    let toolkit = env::var("CUDA_PATH").expect("CUDA_PATH is not set: run this with scripts/emulated-cuda.sh");
    let mut options = vec!["--gpu-architecture=sm_80".to_owned(), format!("--include-path={toolkit}/include")];
    options.extend(more.iter().map(|&option| option.to_owned()));
    options
}

/// Whether NVIDIA's library has compiled the program, which it says itself.
fn compiled_by_nvidia(program: &Program) -> bool {
    let mut size = 0;
    // SAFETY: the name is a C string, and the function has this type; a place for a size.
    unsafe {
        let library = libc::dlopen(c"libnvrtc.so.12".as_ptr(), libc::RTLD_NOW);
        let function = libc::dlsym(library, c"nvrtcGetPTXSize".as_ptr());
        assert!(!function.is_null());
        let function: unsafe extern "C" fn(usize, *mut usize) -> c_int = std::mem::transmute(function);
        // Without a compilation the PTX is empty.
        function(program.0, &raw mut size) == 0 && size > 1
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn answers_are_those_of_nvrtc() {
    // Programs compiled with `-D` are never kept.
    let (code, foreign) = Program::compile(SOURCE, &options(&["-lineinfo", "-DUNUSED"]));
    assert_eq!(code, 0, "{}", foreign.log());
    for new in [true, false] {
        let (code, program) = Program::compile(SOURCE, &options(&["-lineinfo"]));
        assert_eq!(code, 0, "{}", program.log());
        assert_eq!(compiled_by_nvidia(&program), new);
        assert_eq!(program.ptx(), foreign.ptx());
        assert_eq!(program.log(), foreign.log());
        assert!(program.log().contains("unused"), "NVRTC warns: {}", program.log());
        assert_eq!(program.cubin_size(), foreign.cubin_size(), "machine code is not kept");
        assert!(compiled_by_nvidia(&program));
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn names_of_templates_are_those_of_nvrtc() {
    let source = "template <typename T> __global__ void twice(T *x) { x[threadIdx.x] *= 2; }";
    for _ in 0..2 {
        let program = Program::new(source);
        // SAFETY: C strings, and a place for a name.
        unsafe {
            assert_eq!(api::nvrtcAddNameExpression(program.0, c"twice<float>".as_ptr()), 0);
            assert_eq!(program.compile_with(&options(&[])), 0, "{}", program.log());
            let mut name = ptr::null();
            assert_eq!(api::nvrtcGetLoweredName(program.0, c"twice<float>".as_ptr(), &raw mut name), 0);
            assert!(program.ptx().contains(std::ffi::CStr::from_ptr(name).to_str().unwrap()));
            assert_eq!(api::nvrtcAddNameExpression(program.0, c"twice<int>".as_ptr()), 8, "too late");
        }
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn a_handle_compiled_twice_has_the_last_ptx() {
    let program = Program::new(SOURCE);
    assert_eq!(program.compile_with(&options(&[])), 0);
    assert!(program.ptx().contains(".target sm_80"));
    let mut hopper = options(&[]);
    hopper[0] = "--gpu-architecture=sm_90a".to_owned();
    assert_eq!(program.compile_with(&hopper), 0);
    assert!(program.ptx().contains(".target sm_90a"));
}

/// The library that the script installs, not the crate that this test is linked with.
#[test]
#[ignore = "needs NVRTC"]
fn the_library_has_the_functions_of_nvrtc() {
    // What `nm -D` lists for NVRTC 12.9, but for `__nvrtcCPEx`, which has no documentation.
    let names = "AddNameExpression CompileProgram CreateProgram DestroyProgram GetCUBIN GetCUBINSize GetErrorString GetLTOIR \
        GetLTOIRSize GetLoweredName GetNVVM GetNVVMSize GetNumSupportedArchs GetOptiXIR GetOptiXIRSize GetPCHCreateStatus \
        GetPCHHeapSize GetPCHHeapSizeRequired GetPTX GetPTXSize GetProgramLog GetProgramLogSize GetSupportedArchs \
        SetFlowCallback SetPCHHeapSize Version";
    // SAFETY: the names are C strings.
    unsafe {
        let library = libc::dlopen(c"libnvrtc.so".as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        for name in names.split_whitespace() {
            let symbol = CString::new(format!("nvrtc{name}")).unwrap();
            let function = libc::dlsym(library, symbol.as_ptr());
            assert!(!function.is_null(), "nvrtc{name}");
            let mut found = std::mem::zeroed::<libc::Dl_info>();
            assert!(libc::dladdr(function, &raw mut found) != 0);
            let file = std::ffi::CStr::from_ptr(found.dli_fname).to_str().unwrap();
            assert!(file.ends_with("libnvrtc.so"), "nvrtc{name} is in {file}");
        }
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn an_error_has_its_log_each_time() {
    for _ in 0..2 {
        let (code, program) = Program::compile("this is not C++", &options(&[]));
        assert_eq!(code, 6, "NVRTC_ERROR_COMPILATION");
        assert!(program.log().contains("error:"), "{}", program.log());
    }
}

/// What the test below runs in other processes.
#[test]
#[ignore = "needs NVRTC"]
fn prints_the_ptx() {
    let program = Program::compile(SOURCE, &options(&[])).1;
    println!("compiled by NVIDIA: {}\n{}\nend", compiled_by_nvidia(&program), program.ptx());
}

fn another_process(folder: &Path) -> String {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "prints_the_ptx"])
        .env("KILN_NVRTC_CACHE", folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs NVRTC"]
fn a_second_process_takes_what_the_first_has_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (another_process(folder.path()), another_process(folder.path()));
    assert!(first.contains("compiled by NVIDIA: true") && first.contains("half_of"), "{first}");
    assert!(second.contains("compiled by NVIDIA: false"), "{second}");
    let ptx = |output: &str| output.split_once(".version").unwrap().1.split_once("\nend").unwrap().0.to_owned();
    assert_eq!(ptx(&first), ptx(&second));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "one program, one file");
}
