//! A card with a module, for tests.
#![allow(dead_code)]

use ptx::{Counts, Fault, Launch, Memory, Module, Options};

/// A value of device memory.
pub trait Value: Copy {
    fn bytes(self) -> Vec<u8>;
    fn value(bytes: &[u8]) -> Self;
}

macro_rules! values {
    ($($t:ty)+) => {$(
        impl Value for $t {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn value(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )+};
}

values!(u8 u16 i16 u32 i32 u64 i64 f32 f64);

pub struct Card {
    pub memory: Memory,
    pub module: Module,
    pub options: Options,
}

/// One parameter of a kernel.
#[derive(Clone, Copy)]
pub struct Arg(u64, usize);

impl From<u64> for Arg {
    fn from(value: u64) -> Self {
        Self(value, 8)
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Self {
        Self(value as u32 as u64, 4)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Self(value.to_bits().into(), 4)
    }
}

impl Card {
    pub fn new(text: &str) -> Self {
        let memory = Memory::new(64 << 20).unwrap();
        let module = Module::load(text, &memory).unwrap_or_else(|error| panic!("{error}"));
        Self { memory, module, options: Options { threads: 2, ..Options::default() } }
    }

    /// A card with one kernel `k` of this body, with registers declared and the parameter `p`, a pointer, in `%rd0`.
    pub fn kernel(body: &str) -> Self {
        Self::new(&format!(
            ".version 8.3\n.target sm_90a\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];\n\
             .visible .entry k(.param .u64 p) {{\n.reg .pred %p<20>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %rd<20>;\n\
             .reg .f32 %f<20>; .reg .f64 %d<20>;\nld.param.u64 %rd0, [p];\nmov.u32 %r0, %tid.x;\n{body}\n}}"
        ))
    }

    pub fn buffer<T: Value>(&self, values: &[T]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bytes()).collect();
        let address = self.memory.alloc(bytes.len() as u64, 256, "test").unwrap();
        self.memory.write(address, &bytes).unwrap();
        address
    }

    pub fn read<T: Value>(&self, address: u64, count: usize) -> Vec<T> {
        let size = size_of::<T>();
        let mut bytes = vec![0; count * size];
        self.memory.read(address, &mut bytes).unwrap();
        bytes.chunks(size).map(T::value).collect()
    }

    pub fn launch(&self, name: &str, grid: u32, block: u32, shared: u32, args: &[Arg]) -> Result<Counts, Fault> {
        self.launch_3d(name, [grid, 1, 1], [block, 1, 1], shared, args)
    }

    pub fn launch_3d(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: &[Arg],
    ) -> Result<Counts, Fault> {
        let kernel = self.module.kernel(name).expect("the kernel");
        let mut params = vec![0; kernel.param_bytes() as usize];
        for (param, Arg(value, size)) in kernel.params.iter().zip(args) {
            params[param.offset as usize..][..*size].copy_from_slice(&value.to_le_bytes()[..*size]);
        }
        let launch = Launch { grid, block, dynamic_shared: shared, params: &params, ..Launch::default() };
        ptx::launch(kernel, launch, &self.memory, &self.options)
    }

    /// Launches `k` with one block and `out` as its pointer.
    pub fn run(&self, threads: u32, out: u64) -> Result<Counts, Fault> {
        self.launch("k", 1, threads, 1024, &[out.into()])
    }
}

/// Runs lines that leave 32-bit results in `%r1`, each given with its result.
pub fn table(cases: &[(&str, u32)]) {
    let mut body = String::new();
    for (i, (code, _)) in cases.iter().enumerate() {
        body += &format!("{{ {code} }}\nst.global.u32 [%rd0+{}], %r1;\n", 4 * i);
    }
    let card = Card::kernel(&(body + "ret;"));
    let out = card.buffer(&vec![0u32; cases.len()]);
    card.run(1, out).unwrap_or_else(|fault| panic!("{fault}"));
    for ((code, expected), found) in cases.iter().zip(card.read::<u32>(out, cases.len())) {
        assert_eq!(found, *expected, "{code}: {found:#x}, not {expected:#x}");
    }
}

/// Code that leaves the low and the high half of `%rd1`.
fn halves(code: &str) -> (String, String) {
    (format!("{code} cvt.u32.u64 %r1, %rd1;"), format!("{code} shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r1, %rd1;"))
}

/// Runs lines that leave 64-bit results in `%rd1`, each given with its result.
pub fn wide(cases: &[(&str, u64)]) {
    let all: Vec<(String, u32)> = cases
        .iter()
        .flat_map(|(code, value)| {
            let (low, high) = halves(code);
            [(low, *value as u32), (high, (*value >> 32) as u32)]
        })
        .collect();
    let all: Vec<(&str, u32)> = all.iter().map(|(code, value)| (code.as_str(), *value)).collect();
    table(&all);
}

/// Numbers that look random, from 0 to 1.
pub fn random(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        })
        .collect()
}
