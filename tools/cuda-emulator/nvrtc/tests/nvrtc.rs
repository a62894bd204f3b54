//! With NVIDIA's NVRTC:
//!
//! ```sh
//! bash scripts/emulated-cuda.sh cargo test -p nvrtc-cache -- --ignored
//! ```

use nvrtc_cache::api;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::process::Command;
use std::{env, fs, ptr};

const SOURCE: &str = "#include <cuda_fp16.h>\nextern \"C\" __global__ void half_of(__half *x) { int unused; x[threadIdx.x] *= __half(0.5f); }";

/// A compiled program.
struct Program(usize);

impl Program {
    /// The result of compiling, and the program.
    fn compile(source: &str, options: &[String]) -> (c_int, Self) {
        let source = CString::new(source).unwrap();
        let options: Vec<CString> = options.iter().map(|option| CString::new(option.as_str()).unwrap()).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut handle = 0;
        // SAFETY: C strings and places that live through the calls.
        unsafe {
            let code =
                api::nvrtcCreateProgram(&raw mut handle, source.as_ptr(), ptr::null(), 0, ptr::null(), ptr::null());
            assert_eq!(code, 0, "nvrtcCreateProgram");
            (api::nvrtcCompileProgram(handle, options.len() as c_int, options.as_ptr()), Self(handle))
        }
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

#[test]
#[ignore = "needs NVRTC"]
fn answers_are_those_of_nvrtc() {
    // A macro is an option of programs that are not kept.
    let (code, foreign) = Program::compile(SOURCE, &options(&["-lineinfo", "-DUNUSED"]));
    assert_eq!(code, 0, "{}", foreign.log());
    for time in ["first", "second"] {
        let (code, program) = Program::compile(SOURCE, &options(&["-lineinfo"]));
        assert_eq!(code, 0, "{time}: {}", program.log());
        assert_eq!(program.ptx(), foreign.ptx(), "{time}");
        assert_eq!(program.log(), foreign.log(), "{time}");
        assert!(program.log().contains("unused"), "{time}: NVRTC warns: {}", program.log());
        assert_eq!(program.cubin_size(), foreign.cubin_size(), "{time}: machine code is not kept");
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

/// What the test below runs again in processes of its own.
#[test]
#[ignore = "needs NVRTC"]
fn prints_the_ptx() {
    println!("{}", Program::compile(SOURCE, &options(&[])).1.ptx());
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
    assert!(another_process(folder.path()).contains("half_of"));
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("one program, one file: {files:?}") };
    // The kept PTX is told from a new one by a letter.
    let mut bytes = fs::read(file).unwrap();
    let place = bytes.windows(8).rposition(|window| window == b"half_of(").unwrap();
    bytes[place] = b'H';
    fs::write(file, bytes).unwrap();
    assert!(another_process(folder.path()).contains("Half_of"));
}
