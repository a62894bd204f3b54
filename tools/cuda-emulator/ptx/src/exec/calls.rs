//! Calls, and the functions that a card's runtime has: `vprintf`, `__assertfail`, `malloc`, `free`.

use std::io::Write;

use super::access::Kind;
use super::machine::{Flow, Machine};
use super::span::each;
use crate::code::{Call, External, FUNCTION_BASE, LOCAL_BASE, LOCAL_TOP, Space, Target};
use crate::fault::{Fault, FaultKind};
use crate::lanes::LANES;

impl Machine<'_, '_> {
    pub fn call(&mut self, call: &Call, mask: u32) -> Result<Flow, Fault> {
        match call.target {
            Target::Function(number) => {
                self.enter(number, call, mask)?;
                self.warp.place(self.mask & !mask, self.pc + 1);
                Ok(Flow::Select)
            }
            Target::Extern(external) => {
                for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                    self.lane = lane;
                    self.external(external, call, lane)?;
                }
                Ok(Flow::Next)
            }
            Target::Register(source) => {
                let targets = *self.wide(source);
                let lane = mask.trailing_zeros() as usize;
                let target = targets[lane];
                let mut same = 0;
                each(mask, |lane| same |= u32::from(targets[lane] == target) << lane);
                let number = target.wrapping_sub(FUNCTION_BASE) / 16;
                if target < FUNCTION_BASE || number >= self.env.program.functions.len() as u64 {
                    self.lane = lane;
                    return Err(Fault::new(
                        FaultKind::OutOfBounds,
                        format!("a call of {target:#x}, which is no function"),
                    ));
                }
                self.enter(number as u32, call, same)?;
                // Lanes with other targets come here again.
                self.warp.place(mask & !same, self.pc);
                self.warp.place(self.mask & !mask, self.pc + 1);
                Ok(Flow::Select)
            }
        }
    }

    /// Copies results from where the callee's frame was.
    pub fn results(&mut self, call: &Call, mask: u32) -> Result<(), Fault> {
        let (own, tops) = (*self.row(LOCAL_BASE), self.row(LOCAL_TOP).map(|top| top.next_multiple_of(16)));
        // A callee that was reached by its address may have another frame than the call's prototype says.
        let ends = call.copies.iter().map(|&(_, source, bytes)| u64::from(source) + u64::from(bytes));
        let end = ends.max().unwrap_or(0);
        let mut most = 0;
        each(mask, |lane| most = most.max(u64::from(tops[lane]) + end));
        if !self.warp.need_local(most as usize) {
            return Err(Fault::new(FaultKind::OutOfBounds, "results of a call that no stack holds"));
        }
        each(mask, |lane| {
            let from = self.warp.local_at(lane);
            for &(target, source, bytes) in &call.copies {
                let (source, target) = (tops[lane] + source, own[lane] + target);
                self.warp.undefined.copy_local(lane, source.into(), target.into(), bytes);
                // SAFETY: the lane's local memory has been made large enough for both ranges.
                unsafe {
                    let source = (from + u64::from(source)) as *const u8;
                    let target = (from + u64::from(target)) as *mut u8;
                    std::ptr::copy(source, target, bytes as usize);
                }
            }
        });
        Ok(())
    }

    /// A `.param` variable of a call.
    fn argument(&mut self, call: &Call, lane: usize, index: usize) -> u64 {
        let Some(&(own, _, bytes)) = call.copies.get(index) else { return 0 };
        let at = self.warp.local_at(lane) + u64::from(self.row(LOCAL_BASE)[lane] + own);
        let mut value = [0; 8];
        for (byte, value) in value.iter_mut().enumerate().take(bytes.min(8) as usize) {
            // SAFETY: inside the frame's local memory.
            *value = unsafe { *((at + byte as u64) as *const u8) };
        }
        u64::from_le_bytes(value)
    }

    fn answer(&mut self, call: &Call, lane: usize, value: u64) {
        let Some(&(own, _, bytes)) = call.copies.first() else { return };
        let at = self.warp.local_at(lane) + u64::from(self.row(LOCAL_BASE)[lane] + own);
        for (byte, value) in value.to_le_bytes().iter().enumerate().take(bytes.min(8) as usize) {
            // SAFETY: inside the frame's local memory.
            unsafe { *((at + byte as u64) as *mut u8) = *value };
        }
    }

    /// Bytes at a generic address of one lane.
    pub fn peek(&mut self, lane: usize, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        for (offset, byte) in bytes.iter_mut().enumerate() {
            let mut at = [address + offset as u64; LANES];
            self.resolve(Space::Generic, &mut at, 1 << lane, 1, Kind::Read, true)?;
            // SAFETY: `resolve` has checked it.
            *byte = unsafe { *(at[lane] as *const u8) };
        }
        Ok(())
    }

    fn text(&mut self, lane: usize, address: u64) -> Result<String, Fault> {
        let mut bytes = Vec::new();
        loop {
            let mut byte = [0];
            self.peek(lane, address + bytes.len() as u64, &mut byte)?;
            if byte[0] == 0 || bytes.len() > 1 << 16 {
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
            bytes.push(byte[0]);
        }
    }

    fn external(&mut self, external: External, call: &Call, lane: usize) -> Result<(), Fault> {
        match external {
            External::Vprintf => {
                let (format, arguments) = (self.argument(call, lane, 1), self.argument(call, lane, 2));
                // It returns the number of its arguments, unlike C's function, and -1 without a format.
                let mut count = u64::MAX;
                if format != 0 {
                    let format = self.text(lane, format)?;
                    let (shown, taken) = self.format(lane, &format, arguments)?;
                    std::io::stdout().lock().write_all(shown.as_bytes()).ok();
                    count = taken;
                }
                self.answer(call, lane, count);
            }
            External::Assertfail => {
                let [message, file, function] = [0, 1, 3].map(|index| self.argument(call, lane, index));
                let line = self.argument(call, lane, 2) as u32;
                let (message, file) = (self.text(lane, message)?, self.text(lane, file)?);
                let function = self.text(lane, function)?;
                let what = format!("assertion '{message}' of '{function}' failed at line {line} of {file}");
                return Err(Fault::new(FaultKind::Assertion, what));
            }
            External::Malloc => {
                let size = self.argument(call, lane, 1);
                let address = self.env.memory.alloc(size.max(1), 16, "malloc in a kernel").unwrap_or(0);
                self.answer(call, lane, address);
            }
            External::Free => {
                let address = self.argument(call, lane, 0);
                if address != 0 {
                    self.env.memory.free(address)?;
                }
            }
        }
        Ok(())
    }

    /// `printf`: its text and the number of its arguments, which lie one after another, each at a multiple of its size.
    fn format(&mut self, lane: usize, format: &str, arguments: u64) -> Result<(String, u64), Fault> {
        let (mut shown, mut at, mut count) = (String::new(), arguments, 0);
        let mut rest = format;
        while let Some(start) = rest.find('%') {
            shown.push_str(&rest[..start]);
            rest = &rest[start + 1..];
            let Some(end) = rest.find(|c: char| c.is_ascii_alphabetic() && !"hlLqjzt".contains(c) || c == '%') else {
                break;
            };
            let (flags, kind) = (&rest[..end], rest.as_bytes()[end] as char);
            rest = &rest[end + 1..];
            if kind == '%' {
                shown.push('%');
                continue;
            }
            let long = flags.contains(['l', 'j', 'z', 't', 'q']) || "fFeEgGaAsp".contains(kind);
            let mut take = |machine: &mut Self, size: u64| -> Result<u64, Fault> {
                at = at.next_multiple_of(size);
                let mut bytes = [0; 8];
                machine.peek(lane, at, &mut bytes[..size as usize])?;
                at += size;
                count += 1;
                Ok(u64::from_le_bytes(bytes))
            };
            let mut flags = flags.trim_end_matches(|c: char| c.is_ascii_alphabetic()).to_owned();
            while flags.contains('*') {
                let width = take(self, 4)? as i32;
                flags = flags.replacen('*', &width.to_string(), 1);
            }
            let value = take(self, if long { 8 } else { 4 })?;
            let text = if kind == 's' { self.text(lane, value)? } else { String::new() };
            shown.push_str(&one(&flags, kind, value, long, text));
        }
        shown.push_str(rest);
        Ok((shown, count))
    }
}

/// One conversion of `printf`.
fn one(flags: &str, kind: char, value: u64, long: bool, text: String) -> String {
    let left = flags.contains('-');
    let digits = flags.trim_start_matches(['-', '+', ' ', '#', '0']);
    let zero = flags.trim_start_matches(['-', '+', ' ', '#']).starts_with('0') && !left;
    let (width, precision) = digits.split_once('.').unwrap_or((digits, ""));
    // No more than Rust formats, a digit before the point included.
    let number = |digits: &str| digits.parse().unwrap_or(0usize).min(usize::from(u16::MAX) - 1);
    let width = number(width);
    let precision = digits.contains('.').then(|| number(precision));
    let signed = if long { value as i64 } else { i64::from(value as i32) };
    let float = f64::from_bits(value);
    let plus = if flags.contains('+') { "+" } else { "" };
    let body = match kind {
        'd' | 'i' => format!("{}{signed}", if signed >= 0 { plus } else { "" }),
        'u' => value.to_string(),
        'x' => format!("{value:x}"),
        'X' => format!("{value:X}"),
        'o' => format!("{value:o}"),
        'c' => char::from(value as u8).to_string(),
        'p' => format!("{value:#x}"),
        's' => precision.map_or(text.clone(), |most| text.chars().take(most).collect()),
        _ if !float.is_finite() => format!("{float}").to_lowercase(),
        'f' | 'F' => format!("{}{float:.*}", if float >= 0.0 { plus } else { "" }, precision.unwrap_or(6)),
        'e' | 'E' => scientific(float, precision.unwrap_or(6)),
        _ => general(float, precision.unwrap_or(6).max(1)),
    };
    match (left, zero) {
        (true, _) => format!("{body:<width$}"),
        (_, true) if body.starts_with('-') => format!("-{:0>1$}", &body[1..], width.saturating_sub(1)),
        (_, true) => format!("{body:0>width$}"),
        _ => format!("{body:>width$}"),
    }
}

fn scientific(value: f64, precision: usize) -> String {
    let shown = format!("{value:.precision$e}");
    let (mantissa, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn general(value: f64, precision: usize) -> String {
    let exponent = if value == 0.0 {
        0
    } else {
        format!("{value:.*e}", precision - 1).split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0)
    };
    let trim = |shown: &str| {
        if shown.contains('.') {
            shown.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            shown.to_owned()
        }
    };
    if exponent < -4 || exponent >= precision as i32 {
        let shown = scientific(value, precision - 1);
        let (mantissa, exponent) = shown.split_once('e').unwrap_or((&shown, "+00"));
        return format!("{}e{exponent}", trim(mantissa));
    }
    trim(&format!("{value:.*}", (precision as i32 - 1 - exponent).max(0) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_of_printf_take_any_width() {
        let bits = 1.5f64.to_bits();
        assert_eq!(one("-5", 'd', 7, false, String::new()), "7    ");
        assert_eq!(one("08.3", 'f', bits, true, String::new()), "0001.500");
        for (flags, kind) in [("70000", 'd'), ("-70000", 'u'), ("070000", 'x')] {
            assert_eq!(one(flags, kind, 7, false, String::new()).len(), 65_534, "{flags}{kind}");
        }
        for kind in ['f', 'e', 'g'] {
            assert!(one(".70000", kind, bits, true, String::new()).starts_with("1.5"));
        }
    }
}
