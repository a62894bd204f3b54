//! Constant expressions: numbers, and what signs make of integers.

use super::ast::Value;
use super::lexer::Token;
use super::parser::{Parser, Result};

/// Signs of an operation on two integers, and how strongly it binds.
const OPERATIONS: [(&[u8], u32); 18] = [
    (b"||", 1),
    (b"&&", 2),
    (b"==", 6),
    (b"!=", 6),
    (b"<=", 7),
    (b">=", 7),
    (b"<<", 8),
    (b">>", 8),
    (b"|", 3),
    (b"^", 4),
    (b"&", 5),
    (b"<", 7),
    (b">", 7),
    (b"+", 9),
    (b"-", 9),
    (b"*", 10),
    (b"/", 10),
    (b"%", 10),
];

impl Parser<'_> {
    /// A number, or an expression of integers, which are as wide as a `.s64`.
    pub(super) fn value(&mut self) -> Result<Value> {
        match self.within(Self::unary)? {
            Value::Int(first) => self.binary(first, 1).map(Value::Int),
            value => Ok(value),
        }
    }

    fn unary(&mut self) -> Result<Value> {
        if self.eat(b'-') {
            return Ok(match self.within(Self::unary)? {
                Value::Int(value) => Value::Int(value.wrapping_neg()),
                Value::F32(bits) => Value::F32(bits ^ 1 << 31),
                Value::F64(bits) => Value::F64(bits ^ 1 << 63),
            });
        }
        if self.eat(b'+') {
            return self.within(Self::unary);
        }
        if self.eat(b'~') {
            return Ok(Value::Int(!self.integer()?));
        }
        if self.eat(b'!') {
            return Ok(Value::Int(u64::from(self.integer()? == 0)));
        }
        if self.eat(b'(') {
            let value = self.within(Self::value)?;
            self.expect(b')')?;
            return Ok(value);
        }
        Ok(match self.next()? {
            Token::Int(value) => Value::Int(value),
            Token::F32(bits) => Value::F32(bits),
            Token::F64(bits) => Value::F64(bits),
            _ => {
                self.at -= 1;
                return self.fail(format!("expected a number, found {}", self.shown()));
            }
        })
    }

    fn integer(&mut self) -> Result<u64> {
        match self.within(Self::unary)? {
            Value::Int(value) => Ok(value),
            _ => self.fail("expected an integer, found a fraction"),
        }
    }

    /// What follows `left` and binds at least as strongly as `least`.
    fn binary(&mut self, mut left: u64, least: u32) -> Result<u64> {
        while let Some((signs, strength)) = self.operation().filter(|found| found.1 >= least) {
            self.at += signs.len();
            let right = self.integer()?;
            let right = self.binary(right, strength + 1)?;
            left = match calculate(signs, left, right) {
                Some(value) => value,
                None => return self.fail("a constant is divided by 0"),
            };
        }
        Ok(left)
    }

    /// The operation that comes next.
    fn operation(&self) -> Option<(&'static [u8], u32)> {
        let sign = |index: usize| match self.tokens.get(self.at + index)?.0 {
            Token::Sign(sign) => Some(sign),
            // Registers begin with this sign.
            Token::Word("%") => Some(b'%'),
            _ => None,
        };
        let comes = |signs: &[u8]| signs.iter().enumerate().all(|(index, &wanted)| sign(index) == Some(wanted));
        OPERATIONS.into_iter().find(|(signs, _)| comes(signs))
    }
}

fn calculate(signs: &[u8], left: u64, right: u64) -> Option<u64> {
    let (a, b) = (left as i64, right as i64);
    Some(match signs {
        b"||" => u64::from(left != 0 || right != 0),
        b"&&" => u64::from(left != 0 && right != 0),
        b"==" => u64::from(left == right),
        b"!=" => u64::from(left != right),
        b"<=" => u64::from(a <= b),
        b">=" => u64::from(a >= b),
        b"<" => u64::from(a < b),
        b">" => u64::from(a > b),
        b"<<" => left.checked_shl(right as u32).unwrap_or(0),
        b">>" => (a >> right.min(63)) as u64,
        b"|" => left | right,
        b"^" => left ^ right,
        b"&" => left & right,
        b"+" => left.wrapping_add(right),
        b"-" => left.wrapping_sub(right),
        b"*" => left.wrapping_mul(right),
        b"/" if b != 0 => a.wrapping_div(b) as u64,
        b"%" if b != 0 => a.wrapping_rem(b) as u64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::lexer::lex;

    fn value(text: &str) -> Result<Value> {
        Parser { tokens: lex(text).unwrap(), at: 0, depth: 0 }.value()
    }

    #[test]
    fn signs_bind_as_in_c() {
        for (text, expected) in [
            ("~0x2", !2),
            ("-5 + 2*3", 1),
            ("1 << 4 | 3", 19),
            ("(1 + 2) * -3", -9),
            ("7 / 2 - 7 % 4", 0),
            ("1 + 1 == 2 && !0", 1),
            ("-8 >> 1", -4),
        ] {
            assert_eq!(value(text).unwrap(), Value::Int(expected as u64), "{text}");
        }
        assert_eq!(value("-0f3F800000").unwrap(), Value::F32(0xbf80_0000));
        assert_eq!(value("1 / 0").unwrap_err().message, "a constant is divided by 0");
        assert!(value("~1.5").is_err());
    }
}
