//! PTX text as tokens.

use crate::module::PtxError;

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'t> {
    /// An opcode, name, label, directive or register, with its dots.
    Word(&'t str),
    /// An integer's bits.
    Int(u64),
    /// `0f...`: the bits of an `f32`.
    F32(u32),
    /// `0d...` or a decimal fraction: the bits of an `f64`.
    F64(u64),
    Text,
    Sign(u8),
}

/// Tokens of a text, each with its line.
pub(crate) fn lex(text: &str) -> Result<Vec<(Token<'_>, u32)>, PtxError> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at, mut line) = (Vec::with_capacity(bytes.len() / 4), 0, 1);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.');
    while at < bytes.len() {
        let byte = bytes[at];
        let rest = &bytes[at..];
        if byte == b'\n' {
            line += 1;
            at += 1;
        } else if byte.is_ascii_whitespace() || byte == 0 {
            at += 1;
        } else if rest.starts_with(b"//") || byte == b'#' {
            // `# 1 "name"` is from a preprocessor.
            at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            let end = rest.windows(2).position(|pair| pair == b"*/").map_or(rest.len(), |end| end + 2);
            line += rest[..end].iter().filter(|&&byte| byte == b'\n').count() as u32;
            at += end;
        } else if byte == b'"' {
            let end = rest[1..].iter().position(|&byte| byte == b'"').map_or(rest.len(), |end| end + 2);
            tokens.push((Token::Text, line));
            at += end;
        } else if byte.is_ascii_digit() {
            let mut len = rest.iter().position(|&byte| !is_word(byte)).unwrap_or(rest.len());
            // The sign of a decimal exponent.
            let has_sign = matches!(rest[len - 1], b'e' | b'E') && matches!(rest.get(len), Some(b'+' | b'-'));
            if has_sign && is_decimal(&rest[..len - 1]) {
                let exponent = &rest[len + 1..];
                len += 1 + exponent.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(exponent.len());
            }
            let word = &text[at..at + len];
            let token = number(word)
                .ok_or_else(|| PtxError { line, message: format!("'{word}' is no number that PTX has") })?;
            tokens.push((token, line));
            at += len;
        } else if is_word(byte) {
            let mut len = 1;
            // `.reg.b32` is two directives.
            while len < rest.len() && (is_word(rest[len]) && (byte != b'.' || rest[len] != b'.') || is_scope(rest, len))
            {
                len += if rest[len] == b':' { 2 } else { 1 };
            }
            tokens.push((Token::Word(&text[at..at + len]), line));
            at += len;
        } else if b",;[]{}()<>|!@+-=:*~&^/".contains(&byte) {
            tokens.push((Token::Sign(byte), line));
            at += 1;
        } else {
            let shown = text[at..].chars().next().unwrap_or('?');
            return Err(PtxError { line, message: format!("unexpected character '{shown}'") });
        }
    }
    Ok(tokens)
}

/// Whether `::` of a name such as `shared::cta` starts here.
fn is_scope(bytes: &[u8], at: usize) -> bool {
    bytes[at..].starts_with(b"::") && bytes.get(at + 2).is_some_and(u8::is_ascii_alphanumeric)
}

fn is_decimal(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| byte.is_ascii_digit() || byte == b'.')
}

fn number(word: &str) -> Option<Token<'static>> {
    let lower = word.to_ascii_lowercase();
    if let Some(bits) = lower.strip_prefix("0f").filter(|bits| bits.len() == 8) {
        return u32::from_str_radix(bits, 16).ok().map(Token::F32);
    }
    if let Some(bits) = lower.strip_prefix("0d").filter(|bits| bits.len() == 16) {
        return u64::from_str_radix(bits, 16).ok().map(Token::F64);
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let (digits, radix) = if let Some(digits) = digits.strip_prefix("0x") {
        (digits, 16)
    } else if let Some(digits) = digits.strip_prefix("0b") {
        (digits, 2)
    } else if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        (digits, 8)
    } else {
        (digits, 10)
    };
    if let Ok(value) = u64::from_str_radix(digits, radix) {
        return Some(Token::Int(value));
    }
    lower.parse::<f64>().ok().map(|value| Token::F64(value.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_comments() {
        let text = "0f3F800000 0d3FF0000000000000 0xFFu 1.5e-3 -7 07 // x\n/* \n */ # 1 x.cu\n%tid.x ld.shared::cta.b32 L: a::b";
        let tokens = lex(text).unwrap();
        let expected = [
            (Token::F32(0x3f80_0000), 1),
            (Token::F64(0x3ff0_0000_0000_0000), 1),
            (Token::Int(255), 1),
            (Token::F64(1.5e-3f64.to_bits()), 1),
            (Token::Sign(b'-'), 1),
            (Token::Int(7), 1),
            (Token::Int(7), 1),
            (Token::Word("%tid.x"), 4),
            (Token::Word("ld.shared::cta.b32"), 4),
            (Token::Word("L"), 4),
            (Token::Sign(b':'), 4),
            (Token::Word("a::b"), 4),
        ];
        assert_eq!(tokens, expected);
        assert_eq!(lex("a\n`").unwrap_err().line, 2);
    }
}
