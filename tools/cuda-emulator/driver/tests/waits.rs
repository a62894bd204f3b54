//! How often the host waits, as the profile tells it. A process of its own, as the count is that of the process.

use emulated_cuda::context::{cuCtxCreate_v2, cuCtxSynchronize};
use emulated_cuda::device::cuInit;
use emulated_cuda::host::{cuMemAllocHost_v2, cuMemFreeHost, cuMemHostRegister_v2, cuMemHostUnregister};
use emulated_cuda::memory::{cuMemAlloc_v2, cuMemFree_v2};
use emulated_cuda::module::{cuModuleLoadData, cuModuleUnload};
use std::ptr::null_mut;

fn waits() -> u64 {
    let table = emulated_cuda::profile::table();
    let (_, rest) = table.split_once("the host waited ").expect("the line of waits");
    rest.split(' ').next().and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn waits_that_are_part_of_other_calls_count() {
    let (mut context, mut address, mut host, mut module) = (0, 0, null_mut(), 0);
    let registered = vec![0u8; 4096];
    // SAFETY: the arguments are what the API asks for.
    unsafe {
        assert_eq!((cuInit(0), cuCtxCreate_v2(&mut context, 0, 0)), (0, 0));
        assert_eq!((cuMemAlloc_v2(&mut address, 256), cuMemAllocHost_v2(&mut host, 4096)), (0, 0));
        assert_eq!(cuMemHostRegister_v2(registered.as_ptr() as usize, 4096, 0), 0);
        let text = c".version 8.0\n.target sm_80\n.address_size 64\n";
        assert_eq!(cuModuleLoadData(&mut module, text.as_ptr().cast()), 0);
        let calls: [(&str, &dyn Fn() -> i32); 5] = [
            ("cuCtxSynchronize", &|| cuCtxSynchronize()),
            ("cuMemFree", &|| cuMemFree_v2(address)),
            ("cuMemFreeHost", &|| cuMemFreeHost(host as usize)),
            ("cuMemHostUnregister", &|| cuMemHostUnregister(registered.as_ptr() as usize)),
            ("cuModuleUnload", &|| cuModuleUnload(module)),
        ];
        for (name, call) in calls {
            let before = waits();
            assert_eq!((call(), waits() - before), (0, 1), "{name}");
        }
    }
}
