//! The grammar.
//!
//! ```text
//!   or     = and { "or" and }
//!   and    = unary { "and" unary }
//!   unary  = "not" unary | "(" or ")" | "has" key | key test
//!   test   = ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) value | ( "=~" | "!~" ) value
//!          | [ "not" ] "in" ( range | "[" choice { "," choice } "]" )
//!   choice = value | range        range = number ".." number        value = text | word | number
//! ```
//!
//! A list may stand in round brackets, too.

use super::error::{QueryError, Wrong};
use super::lex::{Lexer, Token};
use super::names::Names;
use super::{Choice, Compare, DEPTH_MAX, Expr, KEY_MAX, LENGTH_MAX, Literal, NUMBERS, PATTERN_MAX, Pattern, Query};
use regex_lite::RegexBuilder;

const CONDITION: &str = "a key (name, port, partition, tag, node, or any other), `has`, `not` or `(`";
const TEST: &str = "`==`, `!=`, `<`, `<=`, `>`, `>=`, `=~`, `!~`, `in` or `not in`";
const VALUE: &str = "a text in quotes, a word or a number";
const CHOICES: &str = "a range such as 3..5, or a list such as [\"a\", \"b\", 7..9]";
const JOINT: &str = "`and`, `or` or the end";
const CLOSED: &str = "`and`, `or` or `)`";

pub(super) fn parse(text: &str) -> Result<Query, QueryError> {
    if text.len() > LENGTH_MAX {
        let at = (0..=LENGTH_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        return Err(QueryError::new(text, at, Wrong::TooLong(text.len())));
    }
    let mut lexer = Lexer::new(text);
    let (at, token) = lexer.next()?;
    let mut parser = Parser { text, lexer, at, token, depth: 0 };
    let root = parser.or()?;
    match parser.token {
        Token::End => Ok(Query { names: Names::of(&root), root }),
        _ => Err(parser.expected(JOINT)),
    }
}

struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    /// The token that is looked at, and where it begins.
    at: usize,
    token: Token<'a>,
    depth: usize,
}

impl<'a> Parser<'a> {
    /// Takes the token.
    fn take(&mut self) -> Result<Token<'a>, QueryError> {
        let (at, next) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, next))
    }

    /// Takes this keyword, if it is there.
    fn keyword(&mut self, word: &str) -> Result<bool, QueryError> {
        let there = matches!(self.token, Token::Keyword(found) if found == word);
        if there {
            self.take()?;
        }
        Ok(there)
    }

    fn sign(&mut self, sign: &str) -> Result<bool, QueryError> {
        let there = self.token == Token::Sign(sign);
        if there {
            self.take()?;
        }
        Ok(there)
    }

    fn wrong(&self, why: Wrong) -> QueryError {
        self.lexer.error(self.at, why)
    }

    fn expected(&self, what: &'static str) -> QueryError {
        let found = match &self.token {
            Token::End => String::new(),
            Token::Word(word) | Token::Keyword(word) | Token::Sign(word) => (*word).into(),
            Token::Key(key) => (*key).into(),
            Token::Text(text) => format!("\"{}\"", text.chars().take(20).collect::<String>()),
            Token::Number(number) => number.to_string(),
        };
        self.wrong(Wrong::Expected { what, found })
    }

    fn or(&mut self) -> Result<Expr, QueryError> {
        let mut any = vec![self.and()?];
        while self.keyword("or")? {
            any.push(self.and()?);
        }
        let inner = |e| match e {
            Expr::Or(any) => any,
            e => vec![e],
        };
        let any: Vec<Expr> = any.into_iter().flat_map(inner).collect();
        Ok(one(any, Expr::Or))
    }

    fn and(&mut self) -> Result<Expr, QueryError> {
        let mut all = vec![self.unary()?];
        while self.keyword("and")? {
            all.push(self.unary()?);
        }
        let inner = |e| match e {
            Expr::And(all) => all,
            e => vec![e],
        };
        let all: Vec<Expr> = all.into_iter().flat_map(inner).collect();
        Ok(one(all, Expr::And))
    }

    fn unary(&mut self) -> Result<Expr, QueryError> {
        if self.depth == DEPTH_MAX {
            return Err(self.wrong(Wrong::TooDeep));
        }
        self.depth += 1;
        let expr = if self.keyword("not")? {
            Expr::Not(Box::new(self.unary()?))
        } else if self.sign("(")? {
            let inner = self.or()?;
            if !self.sign(")")? {
                return Err(self.expected(CLOSED));
            }
            inner
        } else if self.keyword("has")? {
            Expr::Has(self.key("the key that must be there")?)
        } else {
            let key = self.key(CONDITION)?;
            self.test(key)?
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn key(&mut self, what: &'static str) -> Result<Box<str>, QueryError> {
        let (Token::Word(key) | Token::Key(key)) = self.token else { return Err(self.expected(what)) };
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(self.wrong(Wrong::Key(key.len())));
        }
        self.take()?;
        Ok(key.into())
    }

    fn test(&mut self, key: Box<str>) -> Result<Expr, QueryError> {
        let number = NUMBERS.contains(&&*key);
        let compare = match self.token {
            Token::Sign("==") => Compare::Equal,
            Token::Sign("!=") => Compare::Differs,
            Token::Sign("<") => Compare::Less,
            Token::Sign("<=") => Compare::AtMost,
            Token::Sign(">") => Compare::Greater,
            Token::Sign(">=") => Compare::AtLeast,
            Token::Sign(sign @ ("=~" | "!~")) => {
                if number {
                    return Err(self.wrong(Wrong::NeedsNumber(key.into())));
                }
                self.take()?;
                return Ok(Expr::Like(key, sign == "!~", self.pattern()?));
            }
            Token::Keyword("in") => {
                self.take()?;
                let choices = self.choices(&key)?;
                return Ok(Expr::In(key, false, choices));
            }
            Token::Keyword("not") => {
                self.take()?;
                if !self.keyword("in")? {
                    return Err(self.expected("`in`"));
                }
                let choices = self.choices(&key)?;
                return Ok(Expr::In(key, true, choices));
            }
            _ => return Err(self.expected(TEST)),
        };
        self.take()?;
        let at = self.at;
        let literal = self.literal(VALUE)?;
        if number && matches!(literal, Literal::Text(_)) {
            return Err(self.lexer.error(at, Wrong::NeedsNumber(key.into())));
        }
        Ok(Expr::Compare(key, compare, literal))
    }

    fn literal(&mut self, what: &'static str) -> Result<Literal, QueryError> {
        let literal = match &self.token {
            Token::Number(number) => Literal::Number(*number),
            Token::Text(text) => Literal::Text(text.as_str().into()),
            Token::Word(word) => Literal::Text((*word).into()),
            Token::Keyword(_) | Token::Key(_) | Token::Sign(_) | Token::End => return Err(self.expected(what)),
        };
        self.take()?;
        Ok(literal)
    }

    fn pattern(&mut self) -> Result<Pattern, QueryError> {
        let at = self.at;
        let source = match self.literal("a regular expression in quotes")? {
            Literal::Text(source) => source,
            // As it is written, not as it is counted.
            Literal::Number(_) => self.text[at..self.at].trim().into(),
        };
        whole(&source).map_err(|why| self.lexer.error(at, Wrong::Pattern(why)))
    }

    fn choices(&mut self, key: &str) -> Result<Vec<Choice>, QueryError> {
        let close = match self.token {
            Token::Sign("[") => "]",
            Token::Sign("(") => ")",
            _ => {
                let at = self.at;
                let choice = match self.token {
                    Token::Number(_) => self.choice(key)?,
                    _ => return Err(self.expected(CHOICES)),
                };
                return match choice {
                    Choice::Range(..) => Ok(vec![choice]),
                    Choice::One(one) => {
                        let found = one.to_string();
                        Err(self.lexer.error(at, Wrong::Expected { what: CHOICES, found }))
                    }
                };
            }
        };
        self.take()?;
        let mut choices = vec![self.choice(key)?];
        while self.sign(",")? {
            choices.push(self.choice(key)?);
        }
        if !self.sign(close)? {
            return Err(self.expected(if close == "]" { "`,` or `]`" } else { "`,` or `)`" }));
        }
        Ok(choices)
    }

    fn choice(&mut self, key: &str) -> Result<Choice, QueryError> {
        let at = self.at;
        let first = self.literal(VALUE)?;
        if NUMBERS.contains(&key) && matches!(first, Literal::Text(_)) {
            return Err(self.lexer.error(at, Wrong::NeedsNumber(key.into())));
        }
        let Literal::Number(from) = first else { return Ok(Choice::One(first)) };
        if !self.sign("..")? {
            return Ok(Choice::One(first));
        }
        let Token::Number(to) = self.token else { return Err(self.expected("the last number of the range")) };
        if to < from {
            return Err(self.wrong(Wrong::Range));
        }
        self.take()?;
        Ok(Choice::Range(from, to))
    }
}

/// Alone, or as one of several.
fn one(mut exprs: Vec<Expr>, several: fn(Vec<Expr>) -> Expr) -> Expr {
    if exprs.len() == 1 { exprs.remove(0) } else { several(exprs) }
}

/// A pattern that fits whole values. What it says must make sense alone: `a)(b` does not.
fn whole(source: &str) -> Result<Pattern, String> {
    let build = |pattern: &str| RegexBuilder::new(pattern).size_limit(PATTERN_MAX).build().map_err(|e| e.to_string());
    build(source)?;
    Ok(Pattern { source: source.into(), whole: build(&format!("^(?:{source})$"))? })
}
