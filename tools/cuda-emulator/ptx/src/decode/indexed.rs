//! `array[index]`: an element of a variable by its number, as Dr.Jit looks functions up.

use super::function::{Body, Result};
use crate::code::{Address, Space};
use crate::lanes::lanes;
use crate::options::Class;
use crate::parse::ast::{Index, Operand};

impl<'t> Body<'_, 't> {
    /// The address of the element `offset` behind the one that `index` names.
    pub(super) fn element(&mut self, array: &'t str, index: Index<'t>, offset: i64, space: Space) -> Result<Address> {
        let own = self.names.variable(self.scope, array).map(|number| self.names.variables[number].stride);
        let Some(stride) = own.or_else(|| self.builder.strides.get(array).copied()) else {
            return Err(format!("'{array}' is no array"));
        };
        let offset = offset.wrapping_mul(stride.into());
        let Index::Register(index) = index else {
            let plain = Operand::Address { base: Some(array), index: None, offset, rest: Vec::new() };
            return self.address(&plain, space);
        };
        let start = self.src(&Operand::Name(array, 0), "u64")?;
        let index = self.src(&Operand::Name(index, 0), "u64")?;
        let (base, stride) = (self.temporary(true), self.builder.constant(stride.into(), true));
        let map = lanes!(start: u64, index: u64, stride: u64 => u64: start.wrapping_add(index.wrapping_mul(stride)));
        self.map(Class::Integer, (map, 0), (base, true), &[start, index, stride]);
        Ok(Address { space, base, wide: true, offset })
    }
}
