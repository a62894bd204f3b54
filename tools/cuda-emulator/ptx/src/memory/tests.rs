//! Memory: allocations, bounds, races, and virtual ranges.

use std::sync::Arc;

use super::*;

fn memory() -> Memory {
    Memory::new(1 << 20).unwrap()
}

#[test]
fn bytes_come_back_and_neighbours_stay_untouched() {
    let memory = memory();
    let (a, b) = (memory.alloc(100, 1, "a").unwrap(), memory.alloc(100, 512, "b").unwrap());
    assert_eq!((a % 256, b % 512), (0, 0));
    memory.fill(a, 100, &[7]).unwrap();
    memory.write(b + 3, &[1, 2, 3]).unwrap();
    memory.copy(a + 1, b + 3, 3).unwrap();
    let mut bytes = [0; 5];
    memory.read(a, &mut bytes).unwrap();
    assert_eq!(bytes, [7, 1, 2, 3, 7]);
    assert_eq!(memory.used(), 200);
}

#[test]
fn faults_name_the_nearest_allocation() {
    let memory = memory();
    let a = memory.alloc(4096, 1, "cuMemAlloc_v2").unwrap();
    let fault = memory.write(a + 4108, &[0; 4]).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::OutOfBounds);
    assert!(fault.what().contains("12 bytes behind allocation #1 of 4096 bytes"), "{fault}");
    let fault = memory.write(a + 4094, &[0; 4]).unwrap_err();
    assert!(fault.what().contains("ends 2 bytes behind allocation #1"), "{fault}");
    assert_eq!(memory.read(0, &mut [0]).unwrap_err().kind(), FaultKind::OutOfBounds);
    memory.free(a).unwrap();
    assert_eq!(memory.read(a + 8, &mut [0]).unwrap_err().kind(), FaultKind::UseAfterFree);
    assert!(memory.free(a).unwrap_err().what().contains("was freed already"));
}

#[test]
fn shadow_follows_writes_copies_and_frees() {
    let memory = memory();
    let a = memory.alloc(300, 1, "a").unwrap();
    let b = memory.alloc(300, 1, "b").unwrap();
    let region = |at| memory.region(at, 300).unwrap();
    assert!(!region(a).written(a, 1));
    memory.write(a + 60, &[1; 70]).unwrap();
    assert!(region(a).written(a + 60, 70) && !region(a).written(a + 59, 2) && !region(a).written(a + 129, 2));
    memory.fill(b, 300, &[0]).unwrap();
    memory.copy(b + 1, a, 299).unwrap();
    assert!(region(b).written(b, 1) && !region(b).written(b + 1, 1) && region(b).written(b + 61, 70));
    memory.copy(a + 100, a + 50, 100).unwrap();
    assert!(region(a).written(a + 110, 70) && !region(a).written(a + 109, 1) && !region(a).written(a + 180, 1));
    memory.free(a).unwrap();
    for _ in 0..3000 {
        let c = memory.alloc(300, 1, "c").unwrap();
        assert!(!region(c).written(c + 60, 1));
        memory.write(c, &[1; 300]).unwrap();
        memory.free(c).unwrap();
    }
}

#[test]
fn all_of_the_memory_can_be_allocated_again_and_again() {
    let memory = memory();
    for _ in 0..100 {
        let all: Vec<_> = (0..16).map(|_| memory.alloc(1 << 16, 1, "part").unwrap()).collect();
        assert_eq!(memory.alloc(1, 1, "more"), Err(OutOfMemory { size: 1, free: 0 }));
        all.into_iter().for_each(|address| memory.free(address).unwrap());
    }
    assert!(memory.live_allocations().is_empty());
}

#[test]
fn host_memory_and_other_cards_have_addresses_too() {
    let (memory, other) = (memory(), Arc::new(Memory::for_card(3, 4096).unwrap()));
    let mut host = vec![5u8; 64];
    let at = host.as_mut_ptr() as u64;
    // SAFETY: `host` outlives the registration.
    unsafe { memory.register_host(host.as_mut_ptr(), 64, "pinned") };
    let far = other.alloc(64, 1, "far").unwrap();
    assert_eq!((Memory::card_of(far), Memory::card_of(at)), (Some(3), None));
    other.copy_from(far, &memory, at, 64).unwrap();
    let mut byte = [0];
    other.read(far + 63, &mut byte).unwrap();
    assert_eq!(byte, [5]);
    memory.unregister_host(host.as_mut_ptr()).unwrap();
    assert!(memory.read(at, &mut byte).is_err());
}
