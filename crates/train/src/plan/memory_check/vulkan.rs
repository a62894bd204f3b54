//! Free memory of a GPU according to its Vulkan driver.

use ash::vk;
use cubecl::ir::PciAddress;

/// The bytes available to this process on the card in this PCI slot; `None` if the driver does not report them.
pub fn free(slot: PciAddress) -> Option<u64> {
    // SAFETY: loads a Vulkan loader, as Burn also does.
    let entry = unsafe { ash::Entry::load() }.ok()?;
    let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
    // SAFETY: everything pointed to outlives the call.
    let instance =
        unsafe { entry.create_instance(&vk::InstanceCreateInfo::default().application_info(&application), None) }
            .ok()?;
    let bytes = free_of(&instance, slot);
    // SAFETY: nothing else was created from the instance, and nobody uses it afterwards.
    unsafe { instance.destroy_instance(None) };
    bytes
}

fn free_of(instance: &ash::Instance, slot: PciAddress) -> Option<u64> {
    // SAFETY: the instance is alive, and the devices it lists belong to it.
    let devices = unsafe { instance.enumerate_physical_devices() }.ok()?;
    let card = devices.into_iter().find(|device| {
        let mut bus = vk::PhysicalDevicePCIBusInfoPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut bus);
        // SAFETY: as above. A driver ignores structures it does not know.
        unsafe { instance.get_physical_device_properties2(*device, &mut properties) };
        [bus.pci_domain, bus.pci_bus, bus.pci_device, bus.pci_function] == numbers(slot)
    })?;
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    // SAFETY: as above.
    unsafe { instance.get_physical_device_memory_properties2(card, &mut memory) };
    let memory = memory.memory_properties;
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize).enumerate();
    let own = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    // Without a budget, the whole heap.
    own.map(|(i, heap)| match budget.heap_budget[i] {
        0 => heap.size,
        bytes => bytes.saturating_sub(budget.heap_usage[i]),
    })
    .max()
}

fn numbers(slot: PciAddress) -> [u32; 4] {
    [slot.domain, slot.bus.into(), slot.device.into(), slot.function.into()]
}
