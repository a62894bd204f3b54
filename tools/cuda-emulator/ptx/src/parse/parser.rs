//! Reading tokens one by one.

use super::lexer::Token;
use crate::module::PtxError;

/// The tokens of a text, and the next one.
pub(super) struct Parser<'t> {
    pub(super) tokens: Vec<(Token<'t>, u32)>,
    pub(super) at: usize,
    /// Operands and expressions within each other that are open.
    pub(super) depth: u32,
}

/// Most of them, so that no text exhausts the stack.
const DEPTH: u32 = 256;

pub(super) type Result<T, E = PtxError> = std::result::Result<T, E>;

impl<'t> Parser<'t> {
    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.1)
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(PtxError { line: self.line(), message: message.into() })
    }

    /// Parses what lies within something else.
    pub(super) fn within<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH {
            return self.fail("operands or brackets within each other, too many");
        }
        self.depth += 1;
        let found = parse(self);
        self.depth -= 1;
        found
    }

    pub(super) fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).map(|token| token.0)
    }

    pub(super) fn next(&mut self) -> Result<Token<'t>> {
        let Some(token) = self.peek() else { return self.fail("the text ends too soon") };
        self.at += 1;
        Ok(token)
    }

    /// Skips a sign if it comes next.
    pub(super) fn eat(&mut self, sign: u8) -> bool {
        let found = self.peek() == Some(Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(Token::Word(word));
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, sign: u8) -> Result<()> {
        if self.eat(sign) {
            return Ok(());
        }
        self.fail(format!("expected '{}', found {}", sign as char, self.shown()))
    }

    pub(super) fn shown(&self) -> String {
        match self.peek() {
            Some(Token::Word(word)) => format!("'{word}'"),
            Some(Token::Sign(sign)) => format!("'{}'", sign as char),
            Some(_) => "a literal".to_owned(),
            None => "the end".to_owned(),
        }
    }

    pub(super) fn word(&mut self) -> Result<&'t str> {
        if let Some(Token::Word(word)) = self.peek() {
            self.at += 1;
            return Ok(word);
        }
        self.fail(format!("expected a name, found {}", self.shown()))
    }

    /// An integer with an optional sign.
    pub(super) fn int(&mut self) -> Result<i64> {
        let negative = self.eat(b'-');
        match self.next()? {
            Token::Int(value) if negative => Ok((value as i64).wrapping_neg()),
            Token::Int(value) => Ok(value as i64),
            _ => {
                self.at -= 1;
                self.fail(format!("expected an integer, found {}", self.shown()))
            }
        }
    }

    /// Skips the rest of a line.
    pub(super) fn skip_line(&mut self, line: u32) {
        while self.tokens.get(self.at).is_some_and(|token| token.1 == line) {
            self.at += 1;
        }
    }

    /// Skips up to the brace that closes the one that comes next.
    pub(super) fn skip_block(&mut self) -> Result<()> {
        let mut depth = 0;
        loop {
            match self.next()? {
                Token::Sign(b'{') => depth += 1,
                Token::Sign(b'}') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }
}
