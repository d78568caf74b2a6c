//! Words, numbers, texts and signs of a query.

use super::KEYWORDS;
use super::error::{QueryError, Wrong};

/// The longest number: all digits of it count.
const DIGITS_MAX: usize = 15;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token<'a> {
    /// A word that is no keyword: a key, or a text without quotes.
    Word(&'a str),
    /// Written as in [`KEYWORDS`], however it was.
    Keyword(&'static str),
    /// A key in backquotes.
    Key(&'a str),
    Text(String),
    Number(f64),
    Sign(&'a str),
    End,
}

/// Two-letter signs come first.
const SIGNS: [&str; 14] = ["==", "!=", "<=", ">=", "=~", "!~", "..", "<", ">", "(", ")", "[", "]", ","];

/// The tokens of a text, each with its place.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn error(&self, at: usize, why: Wrong) -> QueryError {
        QueryError::new(self.text, at, why)
    }

    /// The next token and where it begins.
    pub(super) fn next(&mut self) -> Result<(usize, Token<'a>), QueryError> {
        self.at += self.rest().len() - self.rest().trim_start().len();
        let at = self.at;
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok((at, Token::End)) };
        let (length, token) = match first {
            '"' | '\'' => self.quoted(first)?,
            '`' => self.key()?,
            '0'..='9' => self.number(0)?,
            '-' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => self.number(1)?,
            c if begins_word(c) => {
                let length = rest.find(|c| !continues_word(c)).unwrap_or(rest.len());
                let word = &rest[..length];
                (length, keyword(word).map_or(Token::Word(word), Token::Keyword))
            }
            // What is no sign is one that nobody expects.
            c => {
                let sign = SIGNS.into_iter().find(|s| rest.starts_with(s));
                let doubled = if rest[c.len_utf8()..].starts_with(c) && matches!(c, '&' | '|') { 2 } else { 1 };
                let length = sign.map_or(c.len_utf8() * doubled, str::len);
                (length, Token::Sign(&rest[..length]))
            }
        };
        self.at += length;
        Ok((at, token))
    }

    /// A text in quotes: `\"`, `\'` and `\\` stand for what follows the backslash, every other backslash for itself.
    fn quoted(&self, quote: char) -> Result<(usize, Token<'a>), QueryError> {
        let mut text = String::new();
        let mut chars = self.rest().char_indices().skip(1).peekable();
        while let Some((i, c)) = chars.next() {
            match c {
                c if c == quote => return Ok((i + 1, Token::Text(text))),
                '\\' => text.push(chars.next_if(|n| matches!(n.1, '"' | '\'' | '\\')).map_or('\\', |n| n.1)),
                c => text.push(c),
            }
        }
        Err(self.error(self.at, Wrong::Unclosed(quote)))
    }

    fn key(&self) -> Result<(usize, Token<'a>), QueryError> {
        let key = self.rest()[1..].split_once('`').ok_or_else(|| self.error(self.at, Wrong::Unclosed('`')))?.0;
        Ok((key.len() + 2, Token::Key(key)))
    }

    /// Digits, and perhaps a point and more of them. Two points are a range.
    fn number(&self, sign: usize) -> Result<(usize, Token<'a>), QueryError> {
        let rest = self.rest();
        let digits = |from: usize| rest[from..].bytes().take_while(u8::is_ascii_digit).count();
        let mut length = sign + digits(sign);
        if rest[length..].starts_with('.') && digits(length + 1) > 0 {
            length += 1 + digits(length + 1);
        }
        let written = &rest[..length];
        let count = written.bytes().filter(u8::is_ascii_digit).count();
        match written.parse() {
            Ok(number) if count <= DIGITS_MAX => Ok((length, Token::Number(number))),
            _ => Err(self.error(self.at, Wrong::Number)),
        }
    }
}

fn begins_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn continues_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':')
}

fn keyword(word: &str) -> Option<&'static str> {
    KEYWORDS.into_iter().find(|k| k.eq_ignore_ascii_case(word))
}

/// True when a key needs no backquotes.
pub(super) fn is_plain(key: &str) -> bool {
    key.starts_with(begins_word) && key.chars().all(continues_word) && keyword(key).is_none()
}
