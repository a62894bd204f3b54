//! The functions that start the driver and that ask what a card has.

use crate::abi::{CUdevice, CUuuid, copy_text};
use crate::call::{INITIALIZED, api, out, refuse, text};
use crate::card::{Card, card, cards};
use crate::errors::{Answer, Code};
use crate::say::say_once;
use crate::settings::settings;
use crate::spec::{BLOCKS_PER_SM, MAX_BLOCK, MAX_GRID, SHARED_DEFAULT, SHARED_RESERVED, THREADS_PER_SM, spec};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

/// Version of the API: CUDA 12.9.
pub const VERSION: c_int = 12090;

/// The attribute numbered as in `CUdevice_attribute`; `None` if it is not known.
pub fn attribute(card: &Card, number: c_uint) -> Option<c_int> {
    let spec = spec();
    let hopper = c_int::from(spec.capability.0 >= 9);
    Some(match number {
        1 => 1024,
        2..=4 => MAX_BLOCK[number as usize - 2] as c_int,
        5..=7 => MAX_GRID[number as usize - 5] as c_int,
        8 => SHARED_DEFAULT as c_int,
        9 => 65_536,
        10 => 32,
        11 => c_int::MAX,
        12 | 82 => 65_536,
        13 => spec.clocks.0,
        // Alignment of textures, of surfaces, of the pitch of textures.
        14 | 30 => 512,
        51 => 32,
        // Copies beside kernels, mapped host memory, concurrent kernels, ECC, unified addressing, priorities of streams,
        // caches.
        15 | 19 | 31 | 32 | 41 | 78 | 79 | 80 => 1,
        16 => spec.multiprocessors,
        17 | 18 | 20 | 35 | 84 | 86 | 88 | 100 | 101 => 0,
        21 | 22 | 23 | 42 | 45 | 46 | 52 | 53 | 55..=57 | 61 | 63 | 64 | 66 | 67 | 69 => 32_768,
        24..=26 | 47..=49 | 58..=60 => 16_384,
        27 | 28 | 54 | 70..=77 if !(75..=76).contains(&number) => 32_768,
        29 | 43 | 62 | 65 | 68 => 2_046,
        33 => 1 + card.ordinal as c_int,
        34 | 50 => 0,
        36 => spec.clocks.1,
        37 => spec.clocks.2,
        38 => spec.l2,
        39 => THREADS_PER_SM as c_int,
        40 => 3,
        44 => 1,
        75 => spec.capability.0,
        76 => spec.capability.1,
        81 => spec.shared_per_sm,
        // Managed memory, which the host may use while a kernel does.
        83 | 89 => 1,
        85 => card.ordinal as c_int,
        87 => 2,
        90 | 91 | 95 | 99 => 1,
        // Waiting for and writing values in memory.
        92 | 93 | 94 | 122 | 123 => 1,
        96 => 0,
        97 => spec.shared_optin,
        102 => 1,
        98 | 103..=105 | 107 | 110 | 112..=114 | 116..=119 | 121 | 124 | 125 | 128..=138 | 141..=143 => 0,
        106 => BLOCKS_PER_SM as c_int,
        108 => spec.l2 * 3 / 4,
        109 => 128 << 20,
        111 => SHARED_RESERVED as c_int,
        115 => 1,
        120 | 127 => hopper,
        126 => 1 + 3 * hopper,
        139 | 140 => 0,
        _ => return None,
    })
}

/// Name of a card on its bus.
pub fn bus_id(card: &Card) -> String {
    format!("0000:{:02X}:00.0", 1 + card.ordinal)
}

fn uuid(card: &Card) -> CUuuid {
    let mut bytes = *b"kiln emulated 00";
    bytes[15] = b'0' + card.ordinal as u8;
    CUuuid(bytes)
}

/// The number of a card as an index.
pub fn ordinal(device: CUdevice) -> Answer<usize> {
    card(device).map(|card| card.ordinal)
}

api! {
    early fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if settings().cards == 0 {
            return Err(Code::NO_DEVICE);
        }
        cards();
        let process = libc::getpid();
        if INITIALIZED.compare_exchange(0, process, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            crate::exit::at_exit();
        } else if INITIALIZED.load(Ordering::Acquire) != process {
            return refuse(Code::NOT_INITIALIZED, "a process that forked after cuInit cannot use CUDA");
        }
        Ok(())
    }
    early fn cuDriverGetVersion(version: *mut c_int) {
        out(version, VERSION)
    }
    fn cuDeviceGetCount(count: *mut c_int) {
        out(count, cards().len() as c_int)
    }
    fn cuDeviceGet(device: *mut CUdevice, number: c_int) {
        out(device, ordinal(number)? as CUdevice)
    }
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) {
        card(device)?;
        if name.is_null() || len <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        copy_text(spec().name, name, len as usize);
        Ok(())
    }
    fn cuDeviceGetUuid(id: *mut CUuuid, device: CUdevice) {
        out(id, uuid(card(device)?))
    }
    fn cuDeviceGetUuid_v2(id: *mut CUuuid, device: CUdevice) {
        out(id, uuid(card(device)?))
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) {
        out(bytes, card(device)?.total() as usize)
    }
    fn cuDeviceGetAttribute(value: *mut c_int, number: c_uint, device: CUdevice) {
        let card = card(device)?;
        match attribute(card, number) {
            Some(attribute) => out(value, attribute),
            None => {
                say_once(&format!("cuDeviceGetAttribute: attribute {number} is not known"));
                Err(Code::INVALID_VALUE)
            }
        }
    }
    fn cuDeviceGetProperties(properties: *mut [c_int; 14], device: CUdevice) {
        let card = card(device)?;
        // The structure has the first attributes in the order of their numbers.
        let known: [Option<c_int>; 14] = std::array::from_fn(|index| attribute(card, 1 + index as c_uint));
        out(properties, known.map(|value| value.unwrap_or(0)))
    }
    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: CUdevice) {
        card(device)?;
        out(major, spec().capability.0)?;
        out(minor, spec().capability.1)
    }
    fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice) {
        let text = bus_id(card(device)?);
        if id.is_null() || len as usize <= text.len() {
            return Err(Code::INVALID_VALUE);
        }
        copy_text(&text, id, len as usize);
        Ok(())
    }
    fn cuDeviceGetByPCIBusId(device: *mut CUdevice, id: *const c_char) {
        let id = text(id)?.to_ascii_uppercase();
        let found = cards().iter().find(|card| bus_id(card) == id || bus_id(card)[5..] == id);
        out(device, found.ok_or(Code::INVALID_DEVICE)?.ordinal as CUdevice)
    }
    fn cuDeviceGetLuid(_id: *mut c_char, _mask: *mut c_uint, device: CUdevice) {
        card(device)?;
        // Windows has such identifiers.
        Err(Code::NOT_SUPPORTED)
    }
    fn cuDeviceGetTexture1DLinearMaxWidth(width: *mut usize, _format: c_uint, _channels: c_uint, device: CUdevice) {
        card(device)?;
        out(width, 1 << 27)
    }
    fn cuDeviceGetExecAffinitySupport(supported: *mut c_int, _kind: c_uint, device: CUdevice) {
        card(device)?;
        out(supported, 0)
    }
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice) {
        out(can, c_int::from(ordinal(device)? != ordinal(peer)?))
    }
    fn cuDeviceGetP2PAttribute(value: *mut c_int, number: c_uint, device: CUdevice, peer: CUdevice) {
        if ordinal(device)? == ordinal(peer)? {
            return Err(Code::INVALID_DEVICE);
        }
        // Rank of the link, access, atomics, arrays.
        out(value, match number {
            1 => 0,
            2 | 3 => 1,
            4 => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}
