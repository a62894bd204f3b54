//! The syntax tree as code: registers become rows, labels step numbers, and every instruction one
//! [`Inst`](crate::code::Inst).
//!
//! An instruction that is not known becomes a step that ends the launch when it is reached, so that the module's other
//! kernels run.

mod access;
mod arithmetic;
mod asynchronous;
mod body;
mod builder;
mod control;
mod floating;
mod forms;
mod function;
mod legal;
mod moves;
mod names;
mod operands;
mod order;
mod target;
mod tensor;
mod warp;

use std::collections::HashMap;
use std::sync::Arc;

use crate::code::{Frame, Inst, NONE};
use crate::memory::Memory;
use crate::module::{Kernel, Module, Param, PtxError, Variable};
use crate::parse::ast::{Ast, Declaration, Function, Initial, Space, Value};
use body::Body;
use builder::{Builder, Symbol};
use operands::literal;

/// Decodes a module and allocates its variables.
pub(crate) fn decode(text: &str, ast: &Ast<'_>, memory: &Memory) -> Result<Module, PtxError> {
    let mut builder = Builder::new(ast);
    builder.target = target::of_name(ast.target);
    let mut variables: Vec<(String, Variable)> = Vec::new();
    let made = allocate(ast, memory, &mut builder, &mut variables).and_then(|()| fill(ast, memory, &builder));
    if let Err(error) = made {
        variables.iter().for_each(|(_, variable)| drop(memory.free(variable.address)));
        return Err(error);
    }
    let mut frames: Vec<Frame> = vec![Frame { entry: NONE, ..Frame::default() }; builder.functions.len()];
    let mut kernels: Vec<(Kernel, usize)> = Vec::new();
    for function in &ast.functions {
        let Some(&number) = builder.functions.get(function.name) else { continue };
        let frame = &mut frames[number as usize];
        function.name.clone_into(&mut frame.name);
        let Some(body) = &function.body else { continue };
        let first = builder.code.len();
        frame.entry = first as u32;
        (frame.rows, frame.local) = Body::new(&mut builder, function, body).decode(body);
        for step in &mut builder.code[first..] {
            if let Inst::Call(call) | Inst::Results(call) = &mut step.inst {
                call.rows = frame.rows;
            }
        }
        if function.entry {
            kernels.push((kernel(function, frame, &builder), number as usize));
        }
    }
    for (name, of) in &ast.aliases {
        let numbers = (builder.functions.get(name), builder.functions.get(of));
        if let (Some(&name), Some(&of)) = numbers {
            frames[name as usize] = frames[of as usize].clone();
        }
    }
    let program = Arc::new(builder.finish(frames, text));
    let kernels = kernels
        .into_iter()
        .map(|(mut kernel, number)| {
            kernel.program = Some((Arc::clone(&program), number));
            kernel
        })
        .collect();
    Ok(Module { kernels, variables })
}

fn kernel(function: &Function<'_>, frame: &Frame, builder: &Builder<'_>) -> Kernel {
    let mut offset = 0u32;
    let params = function
        .params
        .iter()
        .map(|declared| {
            let param = Param {
                size: declared.size as u32,
                align: declared.align,
                offset: offset.next_multiple_of(declared.align.max(1)),
            };
            offset = param.offset + param.size;
            param
        })
        .collect();
    let product = |sizes: [u32; 3]| sizes.iter().product::<u32>();
    Kernel {
        name: function.name.to_owned(),
        params,
        max_threads: function.required_threads.or(function.max_threads).map_or(1024, product),
        required_block: function.required_threads,
        required_cluster: function.cluster,
        static_shared: builder.statics.get(function.name).copied().unwrap_or(0),
        local: frame.local,
        program: None,
    }
}

fn allocate<'t>(
    ast: &Ast<'t>,
    memory: &Memory,
    builder: &mut Builder<'t>,
    variables: &mut Vec<(String, Variable)>,
) -> Result<(), PtxError> {
    for declared in ast.variables.iter().filter(|declared| matches!(declared.space, Space::Global | Space::Const)) {
        if declared.external {
            continue;
        }
        let address = memory
            .alloc(declared.size, declared.align.into(), &format!("module variable '{}'", declared.name))
            .map_err(|error| PtxError { line: declared.line, message: error.to_string() })?;
        variables.push((declared.name.to_owned(), Variable { address, size: declared.size }));
        builder.symbols.insert(declared.name, Symbol::Address(address));
    }
    Ok(())
}

/// Writes initial values; variables without are zero.
fn fill(ast: &Ast<'_>, memory: &Memory, builder: &Builder<'_>) -> Result<(), PtxError> {
    let mut addresses: HashMap<&str, u64> = HashMap::new();
    for declared in &ast.variables {
        if let Some(Symbol::Address(address)) = builder.symbol(declared.name) {
            addresses.insert(declared.name, address);
        }
    }
    for declared in ast.variables.iter().filter(|declared| addresses.contains_key(declared.name)) {
        let fail = |message: String| PtxError { line: declared.line, message };
        let mut bytes = vec![0; declared.size as usize];
        let size = declared.element as usize;
        for (initial, into) in declared.initial.iter().zip(bytes.chunks_mut(size.max(1))) {
            let bits = initial_bits(declared, initial, builder).map_err(fail)?;
            into.copy_from_slice(&u128::from(bits).to_le_bytes()[..into.len()]);
        }
        memory.write(addresses[declared.name], &bytes).map_err(|fault| fail(fault.to_string()))?;
    }
    Ok(())
}

fn initial_bits(declared: &Declaration<'_>, initial: &Initial<'_>, builder: &Builder<'_>) -> Result<u64, String> {
    match initial {
        Initial::Value(value) => {
            let of = match (declared.element, value) {
                (8, Value::F32(_) | Value::F64(_)) => "f64",
                (4, Value::F64(_)) => "f32",
                (8, _) => "b64",
                _ => "b32",
            };
            literal(*value, of)
        }
        Initial::Address { name, offset, mask, .. } => {
            let Some(Symbol::Address(address)) = builder.symbol(name) else {
                return Err(format!("'{name}' has no address that is known here"));
            };
            let address = address.wrapping_add_signed(*offset);
            // `0xFF00(name)` is the byte that the mask picks.
            Ok(mask.map_or(address, |mask| (address & mask) >> mask.trailing_zeros()))
        }
    }
}
