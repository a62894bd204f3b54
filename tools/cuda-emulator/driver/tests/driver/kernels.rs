//! Modules and launches.

use crate::{Client, code, launch, ok};
use emulated_cuda::abi::{CUlaunchAttribute, CUlaunchConfig};
use emulated_cuda::context::{cuCtxCreate_v2, cuCtxSynchronize};
use emulated_cuda::fill::cuMemsetD8_v2;
use emulated_cuda::function::{cuFuncGetAttribute, cuFuncSetAttribute};
use emulated_cuda::launch::{cuLaunchCooperativeKernel, cuLaunchKernel, cuLaunchKernelEx};
use emulated_cuda::library::{
    cuKernelGetName, cuLibraryEnumerateKernels, cuLibraryGetKernel, cuLibraryGetKernelCount, cuLibraryLoadData,
    cuLibraryUnload,
};
use emulated_cuda::link::{cuLinkAddData_v2, cuLinkComplete, cuLinkCreate_v2, cuLinkDestroy};
use emulated_cuda::memory::cuMemAlloc_v2;
use emulated_cuda::module::{cuModuleGetGlobal_v2, cuModuleLoadData, cuModuleLoadDataEx, cuModuleUnload};
use emulated_cuda::occupancy::cuOccupancyMaxActiveBlocksPerMultiprocessor;
use emulated_cuda::tensor_map::{cuTensorMapEncodeIm2col, cuTensorMapEncodeTiled};
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut, without_provenance};

/// `add(out, n)`: adds the variable `step` and the index to each of `n` values.
pub const ADD: &str = "
.version 8.3
.target sm_80
.address_size 64
.global .align 4 .u32 step = 100;
.extern .shared .align 16 .b8 room[];
.visible .entry add(.param .u64 out, .param .u64 n)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<6>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd3, %r4;
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 bra done;
    shl.b64 %rd4, %rd3, 2;
    add.u64 %rd5, %rd1, %rd4;
    ld.global.u32 %r5, [%rd5];
    ld.global.u32 %r6, [step];
    add.u32 %r5, %r5, %r6;
    add.u32 %r5, %r5, %r4;
    st.global.u32 [%rd5], %r5;
done:
    ret;
}";

#[test]
fn a_kernel_reads_its_arguments_and_its_module_s_variables() {
    let client = Client::new();
    let module = client.load(ADD);
    let (values, add) = (client.put(&[10; 100]), client.function(module, "add"));
    assert_eq!(add, client.function(module, "add"));
    assert_eq!(launch(add, 4, 32, 0, 0, &[values, 100]), 0);
    let expected: Vec<u32> = (0..100).map(|index| 110 + index).collect();
    assert_eq!(client.get(values, 100), expected);
    let (mut step, mut size) = (0, 0);
    ok!(cuModuleGetGlobal_v2(&mut step, &mut size, module, c"step".as_ptr()));
    assert_eq!((client.get(step, 1), size), (vec![100], 4));
    ok!(cuMemsetD8_v2(step, 0, 4));
    // The arguments in one buffer.
    let (buffer, mut bytes) = ([values, 100], 16usize);
    let extra = [without_provenance(1), buffer.as_ptr().cast(), without_provenance(2), (&raw mut bytes).cast(), null()];
    ok!(cuLaunchKernel(add, 4, 1, 1, 32, 1, 1, 0, 0, null(), extra.as_ptr()));
    assert_eq!(client.get(values, 2), [110, 112]);
    ok!(cuModuleUnload(module));
    assert_eq!(launch(add, 4, 32, 0, 0, &[values, 100]), 400);
}

#[test]
fn a_launch_that_a_card_cannot_take_is_refused_at_the_call() {
    let client = Client::new();
    let add = client.function(client.load(ADD), "add");
    let values = client.put(&[1; 32]);
    let arguments = [values, 32];
    for (blocks, threads, shared, code) in
        [(0, 32, 0, 1), (1, 1025, 0, 1), (1, 0, 0, 1), (1, 32, 49_153, 1), (1, 32, 49_152, 0)]
    {
        assert_eq!(launch(add, blocks, threads, shared, 0, &arguments), code, "{blocks} {threads} {shared}");
    }
    assert_eq!(code!(cuFuncSetAttribute(add, 8, 232_449)), 1);
    ok!(cuFuncSetAttribute(add, 8, 232_448));
    assert_eq!(launch(add, 1, 32, 232_448, 0, &arguments), 0);
    assert_eq!(code!(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, 0, null(), null())), 1);
    let (mut most, mut resident) = (0, 0);
    ok!(cuFuncGetAttribute(&mut most, 0, add));
    assert_eq!(most, 1024);
    ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut resident, add, 512, 0));
    assert_eq!(resident, 4);
    ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut resident, add, 128, 100 << 10));
    assert_eq!(resident, 2);
    let pointers = arguments.each_ref().map(|value| std::ptr::from_ref(value).cast());
    ok!(cuLaunchCooperativeKernel(add, 132, 1, 1, 32, 1, 1, 0, 0, pointers.as_ptr()));
    assert_eq!(code!(cuLaunchCooperativeKernel(add, 132 * 2 + 1, 1, 1, 1024, 1, 1, 0, 0, pointers.as_ptr())), 720);
    client.synchronize();
}

#[test]
fn clusters_divide_the_grid() {
    let client = Client::new();
    let add = client.function(client.load(ADD), "add");
    let arguments = [client.put(&[1; 32]), 32];
    let pointers = arguments.each_ref().map(|value| std::ptr::from_ref(value).cast::<c_void>());
    let run = |grid: u32, cluster: u32| {
        let mut value = [0; 16];
        value[..3].copy_from_slice(&[cluster, 1, 1]);
        let attribute = CUlaunchAttribute { id: 4, pad: [0; 4], value };
        let config = CUlaunchConfig {
            gridDimX: grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: 0,
            attrs: &attribute,
            numAttrs: 1,
        };
        code!(cuLaunchKernelEx(&config, add, pointers.as_ptr(), null()))
    };
    assert_eq!([run(4, 2), run(3, 2), run(16, 16), run(0, 1)], [0, 1, 912, 1]);
    ok!(cuFuncSetAttribute(add, 14, 1));
    assert_eq!(run(16, 16), 0);
    client.synchronize();
}

#[test]
fn a_fault_ends_its_context_and_no_other() {
    let other = Client::new();
    let kept = other.put(&[1]);
    let client = Client::new();
    let add = client.function(client.load(ADD), "add");
    let values = client.put(&[1; 32]);
    assert_eq!(launch(add, 1, 64, 0, 0, &[values, 64]), 0);
    assert_eq!(code!(cuCtxSynchronize()), 700);
    let mut address = 0;
    assert_eq!(code!(cuMemAlloc_v2(&mut address, 4)), 700);
    drop(client);
    assert_eq!(other.get(kept, 1), [1]);
    let mut fresh = 0;
    ok!(cuCtxCreate_v2(&mut fresh, 0, 0));
    ok!(cuMemAlloc_v2(&mut address, 4));
    drop(Client(fresh));
}

#[test]
fn a_trap_and_a_failed_assertion_have_codes_of_their_own() {
    let module = "
.version 8.3
.target sm_80
.address_size 64
.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 g, .param .b64 s);
.global .b8 text[2] = {120, 0};
.visible .entry stop() { trap; }
.visible .entry fail()
{
    .reg .b64 %rd<2>;
    mov.u64 %rd1, text;
    {
        .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 g; .param .b64 s;
        st.param.b64 [m], %rd1; st.param.b64 [f], %rd1; st.param.b32 [l], 7; st.param.b64 [g], %rd1; st.param.b64 [s], 1;
        call.uni __assertfail, (m, f, l, g, s);
    }
    ret;
}";
    for (name, code) in [("stop", 719), ("fail", 710)] {
        let client = Client::new();
        let kernel = client.function(client.load(module), name);
        assert_eq!(launch(kernel, 1, 1, 0, 0, &[]), 0);
        assert_eq!(code!(cuCtxSynchronize()), code, "{name}");
    }
}

#[test]
fn what_is_no_ptx_for_this_card_is_refused_with_a_reason() {
    let _client = Client::new();
    let mut module = 0;
    assert_eq!(code!(cuModuleLoadData(&mut module, c"\x7fELF, machine code".as_ptr().cast())), 209);
    assert_eq!(code!(cuModuleLoadData(&mut module, c"no module".as_ptr().cast())), 200);
    assert_eq!(code!(cuModuleLoadData(&mut module, c".version 99.0\n.target sm_80\n".as_ptr().cast())), 222);
    let mut log = [0u8; 200];
    let text = c".version 8.0\n.target sm_100\n.address_size 64\n";
    let (options, values) = ([5u32, 6], [log.as_mut_ptr() as usize, log.len()]);
    let load = code!(cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 2, options.as_ptr(), values.as_ptr()));
    assert_eq!(load, 218);
    let message = std::ffi::CStr::from_bytes_until_nul(&log).expect("a text that ends").to_string_lossy();
    assert!(message.contains("sm_100"), "{message}");
}

#[test]
fn the_version_and_the_target_of_a_module_are_read_wherever_they_stand() {
    let _client = Client::new();
    for (text, code) in [
        (c".version 8.6 .target sm_100a .address_size 64", 218),
        (c".version 8.0 .target sm_90a .address_size 64", 0),
        (c"// .target sm_100\n/* .version 99.0\n*/.version 8.0\n.target // sm_100\n\tsm_80\n.address_size 64", 0),
        (c".version 8.0\n.target debug, sm_80\n.address_size 64", 0),
        (c".version 8.0\n.target debug,sm_100,texmode_independent\n.address_size 64", 218),
        (c".version 8.0\n.target debug\n.address_size 64", 218),
        (c".version 8.0\n.address_size 64", 218),
        (c".version\n99.0\n.target sm_80", 222),
        (c".version", 200),
    ] {
        assert_eq!(code!(cuModuleLoadData(&mut 0, text.as_ptr().cast())), code, "{text:?}");
    }
}

#[test]
fn a_linked_text_is_a_module_and_a_library_has_kernels() {
    let client = Client::new();
    let (mut link, mut result, mut size) = (0, null(), 0);
    ok!(cuLinkCreate_v2(0, null(), null(), &mut link));
    ok!(cuLinkAddData_v2(link, 1, ADD.as_ptr().cast(), ADD.len(), c"add".as_ptr(), 0, null(), null()));
    assert_eq!(code!(cuLinkAddData_v2(link, 0, ADD.as_ptr().cast(), 4, c"add".as_ptr(), 0, null(), null())), 209);
    ok!(cuLinkComplete(link, &mut result, &mut size));
    let mut module = 0;
    ok!(cuModuleLoadData(&mut module, result));
    ok!(cuLinkDestroy(link));
    let values = client.put(&[0]);
    assert_eq!(launch(client.function(module, "add"), 1, 1, 0, 0, &[values, 1]), 0);
    let (text, mut library, mut kernel) = (CString::new(ADD).expect("a text without zeros"), 0, 0);
    ok!(cuLibraryLoadData(&mut library, text.as_ptr().cast(), null(), null(), 0, null(), null(), 0));
    assert_eq!(code!(cuLibraryGetKernel(&mut kernel, library, c"sub".as_ptr())), 500);
    ok!(cuLibraryGetKernel(&mut kernel, library, c"add".as_ptr()));
    assert_eq!(launch(kernel, 1, 1, 0, 0, &[values, 1]), 0);
    assert_eq!(client.get(values, 1), [200]);
    ok!(cuLibraryUnload(library));
    assert_eq!(launch(kernel, 1, 1, 0, 0, &[values, 1]), 400);
}

#[test]
fn a_library_lists_its_kernels_under_the_handles_that_it_gives_by_name() {
    let _client = Client::new();
    let text =
        ".version 8.3\n.target sm_80\n.address_size 64\n.visible .entry one() { ret; }\n.visible .entry two() { ret; }";
    let (text, mut library, mut count) = (CString::new(text).expect("a text without zeros"), 0, 0);
    ok!(cuLibraryLoadData(&mut library, text.as_ptr().cast(), null(), null(), 0, null(), null(), 0));
    ok!(cuLibraryGetKernelCount(&mut count, library));
    assert_eq!(count, 2);
    let (mut kernels, mut one, mut name) = ([7; 3], 0, null());
    ok!(cuLibraryEnumerateKernels(kernels.as_mut_ptr(), 1, library));
    assert_eq!(kernels[1..], [7, 7]);
    ok!(cuLibraryEnumerateKernels(kernels.as_mut_ptr(), 3, library));
    assert_eq!(kernels[2], 7);
    ok!(cuLibraryGetKernel(&mut one, library, c"one".as_ptr()));
    assert!(kernels[..2].contains(&one) && kernels[0] != kernels[1]);
    let mut names = kernels[..2].iter().map(|&kernel| {
        ok!(cuKernelGetName(&mut name, kernel));
        // SAFETY: the driver wrote a text that lives as long as the library.
        unsafe { std::ffi::CStr::from_ptr(name) }.to_owned()
    });
    assert!(names.any(|name| name.as_c_str() == c"two"));
    assert_eq!(code!(cuLibraryEnumerateKernels(null_mut(), 1, library)), 1);
    ok!(cuLibraryUnload(library));
    assert_eq!(code!(cuLibraryEnumerateKernels(kernels.as_mut_ptr(), 1, library)), 400);
}

#[test]
fn a_tensor_map_is_checked_where_it_is_made() {
    #[repr(align(64))]
    struct Map([u8; 128]);
    let client = Client::new();
    let (address, mut map) = (client.alloc(64 * 64 * 2), Map([0; 128]));
    let to: *mut c_void = map.0.as_mut_ptr().cast();
    let encode = |to, address, stride: u64, width: u32, swizzle| {
        let (sizes, strides, counts, steps) = ([64u64, 64], [stride], [width, 16], [1u32, 1]);
        let pointers = (sizes.as_ptr(), strides.as_ptr(), counts.as_ptr(), steps.as_ptr());
        code!(cuTensorMapEncodeTiled(
            to, 6, 2, address, pointers.0, pointers.1, pointers.2, pointers.3, 0, swizzle, 0, 0
        ))
    };
    assert_eq!(encode(to, address, 128, 64, 3), 0);
    assert_eq!(encode(null_mut(), address, 128, 64, 3), 1);
    assert_eq!(encode(to, address + 8, 128, 64, 3), 1);
    assert_eq!(encode(to, address, 130, 64, 3), 1);
    assert_eq!(encode(to, address, 128, 65, 0), 1);
    assert_eq!(encode(to, address, 128, 64, 2), 1, "128 bytes in a swizzle of 64");
}

#[test]
fn an_im2col_map_has_channels_and_pixels() {
    let _client = Client::new();
    #[repr(align(64))]
    struct Map([u8; 128]);
    let mut map = Map([0; 128]);
    let (sizes, strides, steps, corner) = ([16u64, 8, 8, 2], [32u64, 256, 2048], [1u32; 4], [0i32; 2]);
    let mut encode = |channels, pixels| {
        let (to, low) = ((&raw mut map.0).cast(), corner.as_ptr());
        code!(cuTensorMapEncodeIm2col(
            to,
            6,
            4,
            4096,
            sizes.as_ptr(),
            strides.as_ptr(),
            low,
            low,
            channels,
            pixels,
            steps.as_ptr(),
            0,
            0,
            0,
            0
        ))
    };
    assert_eq!([encode(16, 64), encode(0, 64), encode(16, 0), encode(257, 64), encode(16, 1025)], [0, 1, 1, 1, 1]);
}
