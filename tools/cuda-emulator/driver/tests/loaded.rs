//! The library as programs load it: by name, with functions by `cuGetProcAddress`.

use std::ffi::{CString, c_char, c_int, c_void};

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

#[test]
fn functions_are_found_by_name_and_version() {
    let test = std::env::current_exe().expect("the path of this test");
    let file = test.parent().expect("the folder of the build").join("libemulated_cuda.so");
    let file = CString::new(file.to_str().expect("a path in UTF-8")).expect("a path without zeros");
    // SAFETY: the library has the functions with these types.
    unsafe {
        let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "{file:?}");
        let symbol = |name: &str| libc::dlsym(library, CString::new(name).expect("a name").as_ptr());
        let get: GetProcAddress = std::mem::transmute(symbol("cuGetProcAddress_v2"));
        let find = |name: &str, version: c_int, flags: u64| {
            let (mut found, mut status) = (std::ptr::null_mut(), -1);
            let code = get(CString::new(name).expect("a name").as_ptr(), &mut found, version, flags, &mut status);
            (code, found)
        };
        for (name, version, flags, expected) in [
            ("cuInit", 12000, 0, "cuInit"),
            ("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"),
            ("cuCtxCreate", 11000, 0, "cuCtxCreate_v2"),
            ("cuCtxCreate", 12040, 0, "cuCtxCreate_v3"),
            ("cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags"),
            ("cuEventElapsedTime", 12000, 0, "cuEventElapsedTime"),
            ("cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2"),
            ("cuMemcpyHtoDAsync", 12000, 2, "cuMemcpyHtoDAsync_v2_ptsz"),
            ("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"),
            ("cuEventDestroy", 12000, 0, "cuEventDestroy_v2"),
            ("cuTexObjectCreate", 12000, 0, "cuTexObjectCreate"),
            ("cuGraphAddDependencies", 10000, 0, "cuGraphAddDependencies"),
            ("cuGraphAddDependencies_v2", 12030, 0, "cuGraphAddDependencies_v2"),
            ("cuGraphAddNode", 12020, 0, "cuGraphAddNode"),
            ("cuGraphAddNode", 12030, 0, "cuGraphAddNode_v2"),
            ("cuGraphKernelNodeGetParams", 11040, 0, "cuGraphKernelNodeGetParams"),
            ("cuGraphKernelNodeGetParams", 12000, 0, "cuGraphKernelNodeGetParams_v2"),
            ("cuStreamBeginCaptureToGraph", 12030, 2, "cuStreamBeginCaptureToGraph_ptsz"),
            ("cuCtxGetDevice", 12090, 0, "cuCtxGetDevice"),
            ("cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"),
            ("cuCtxGetDevice", 0, 0, "cuCtxGetDevice"),
        ] {
            assert_eq!(find(name, version, flags), (0, symbol(expected)), "{name} {version}");
        }
        // Names without a suffix: the first form where it has the same arguments, otherwise a refusal.
        let init: unsafe extern "C" fn(u32) -> c_int = std::mem::transmute(symbol("cuInit"));
        let destroy: unsafe extern "C" fn(usize) -> c_int = std::mem::transmute(symbol("cuEventDestroy"));
        let alloc: unsafe extern "C" fn(*mut u32, u32) -> c_int = std::mem::transmute(symbol("cuMemAlloc"));
        assert_eq!((init(0), destroy(3), alloc(&mut 0, 4)), (0, 400, 801));
        assert_eq!(find("cuNothing", 12000, 0), (500, std::ptr::null_mut()));
    }
}
