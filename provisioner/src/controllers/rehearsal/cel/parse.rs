//! From the text of an expression to its tree. Of the language, this is what the shipped policies use: anything else is
//! an error, never a guess.

use serde_json::{Map, Value, json};

#[derive(Debug, Clone, PartialEq)]
pub(in super::super) enum Expr {
    Literal(Value),
    Name(String),
    /// `of.field`, or `of.?field`.
    Select {
        of: Box<Expr>,
        field: String,
        optional: bool,
    },
    /// `of[at]`, or `of[?at]`.
    Index {
        of: Box<Expr>,
        at: Box<Expr>,
        optional: bool,
    },
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    Conditional(Box<[Expr; 3]>),
    /// A function, or a method of the first.
    Call {
        of: Option<Box<Expr>>,
        name: String,
        arguments: Vec<Expr>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Operator {
    Or,
    And,
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
    In,
    Plus,
    Minus,
}

/// From the loosest to the tightest.
const OPERATORS: [&[(&str, Operator)]; 4] = [
    &[("||", Operator::Or)],
    &[("&&", Operator::And)],
    &[
        ("==", Operator::Equal),
        ("!=", Operator::Unequal),
        ("<=", Operator::AtMost),
        (">=", Operator::AtLeast),
        ("<", Operator::Less),
        (">", Operator::Greater),
        ("in", Operator::In),
    ],
    &[("+", Operator::Plus), ("-", Operator::Minus)],
];

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Literal(Value),
    Word(String),
    Sign(&'static str),
}

const SIGNS: [&str; 22] = [
    "||", "&&", "==", "!=", "<=", ">=", "<", ">", "+", "-", "!", "?", ":", ".", ",", "(", ")", "[", "]", "{", "}", "*",
];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = vec![];
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let raw = rest.strip_prefix('r').filter(|rest| rest.starts_with(['\'', '"']));
        let length = if raw.is_some() || matches!(first, '\'' | '"') {
            let (string, length) = string(raw.unwrap_or(rest), raw.is_some())?;
            tokens.push(Token::Literal(json!(string)));
            length + usize::from(raw.is_some())
        } else if first.is_ascii_digit() {
            let length = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let number: i64 = rest[..length].parse().map_err(|error| format!("{error}: {rest}"))?;
            tokens.push(Token::Literal(json!(number)));
            length
        } else if first.is_ascii_alphabetic() || first == '_' {
            let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
            let length = rest.find(is_end).unwrap_or(rest.len());
            tokens.push(match &rest[..length] {
                "true" => Token::Literal(json!(true)),
                "false" => Token::Literal(json!(false)),
                "null" => Token::Literal(Value::Null),
                word => Token::Word(word.to_owned()),
            });
            length
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| format!("unknown sign: {rest}"))?;
            tokens.push(Token::Sign(sign));
            sign.len()
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// A string literal at the start of a text, and how long it is there.
fn string(text: &str, is_raw: bool) -> Result<(String, usize), String> {
    let mut chars = text.char_indices();
    let quote = chars.next().map(|(_, quote)| quote);
    let mut string = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            _ if Some(c) == quote => return Ok((string, at + c.len_utf8())),
            '\\' if !is_raw => match chars.next() {
                Some((_, c @ ('\\' | '\'' | '"'))) => string.push(c),
                other => return Err(format!("unknown escape {other:?}: {text}")),
            },
            _ => string.push(c),
        }
    }
    Err(format!("a string does not end: {text}"))
}

pub(in super::super) fn parse(text: &str) -> Result<Expr, String> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
    };
    let expr = parser.conditional()?;
    match parser.tokens.get(parser.at) {
        None => Ok(expr),
        Some(token) => Err(format!("{token:?} follows an expression: {text}")),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn takes(&mut self, sign: &str) -> bool {
        let is_next = match self.tokens.get(self.at) {
            Some(Token::Sign(next)) => *next == sign,
            Some(Token::Word(next)) => next == sign,
            Some(Token::Literal(_)) | None => false,
        };
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) {
            return Ok(());
        }
        Err(format!("no {sign:?} before {:?}", &self.tokens[self.at..]))
    }

    fn conditional(&mut self) -> Result<Expr, String> {
        let asked = self.binary(0)?;
        if !self.takes("?") {
            return Ok(asked);
        }
        let then = self.binary(0)?;
        self.expect(":")?;
        Ok(Expr::Conditional(Box::new([asked, then, self.conditional()?])))
    }

    fn binary(&mut self, level: usize) -> Result<Expr, String> {
        let Some(operators) = OPERATORS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        while let Some((_, operator)) = operators.iter().find(|(sign, _)| self.takes(sign)) {
            let right = self.binary(level + 1)?;
            left = Expr::Binary(*operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, String> {
        if self.takes("!") {
            return Ok(Expr::Not(Box::new(self.unary()?)));
        }
        let mut expr = self.primary()?;
        loop {
            let of = |expr| Box::new(expr);
            if self.takes(".") {
                let optional = self.takes("?");
                let field = self.word()?;
                expr = if !optional && self.takes("(") {
                    Expr::Call {
                        of: Some(of(expr)),
                        name: field,
                        arguments: self.list(")")?,
                    }
                } else {
                    Expr::Select {
                        of: of(expr),
                        field,
                        optional,
                    }
                };
            } else if self.takes("[") {
                let optional = self.takes("?");
                let at = of(self.conditional()?);
                self.expect("]")?;
                expr = Expr::Index {
                    of: of(expr),
                    at,
                    optional,
                };
            } else {
                return Ok(expr);
            }
        }
    }

    fn word(&mut self) -> Result<String, String> {
        match self.tokens.get(self.at) {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word.clone())
            }
            other => Err(format!("{other:?} is no name")),
        }
    }

    fn primary(&mut self) -> Result<Expr, String> {
        if self.takes("(") {
            let expr = self.conditional()?;
            self.expect(")")?;
            return Ok(expr);
        }
        if self.takes("[") {
            return Ok(folded_list(self.list("]")?));
        }
        if self.takes("{") {
            let mut entries = vec![];
            while !self.takes("}") {
                let key = self.conditional()?;
                self.expect(":")?;
                entries.push((key, self.conditional()?));
                if !self.takes(",") {
                    self.expect("}")?;
                    break;
                }
            }
            return Ok(folded_map(entries));
        }
        if let Some(Token::Literal(value)) = self.tokens.get(self.at) {
            self.at += 1;
            return Ok(Expr::Literal(value.clone()));
        }
        let name = self.word()?;
        if self.takes("(") {
            let arguments = self.list(")")?;
            return Ok(Expr::Call {
                of: None,
                name,
                arguments,
            });
        }
        Ok(Expr::Name(name))
    }

    /// What is left of a list, up to the sign that ends it.
    fn list(&mut self, end: &str) -> Result<Vec<Expr>, String> {
        let mut all = vec![];
        while !self.takes(end) {
            all.push(self.conditional()?);
            if !self.takes(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(all)
    }
}

/// A list of literals is a literal: the tables of clients are long.
fn folded_list(all: Vec<Expr>) -> Expr {
    let values: Option<Vec<Value>> = all.iter().map(literal).collect();
    values.map_or(Expr::List(all), |values| Expr::Literal(json!(values)))
}

fn folded_map(entries: Vec<(Expr, Expr)>) -> Expr {
    let folded = |(key, value): &(Expr, Expr)| Some((literal(key)?.as_str()?.to_owned(), literal(value)?));
    let values: Option<Map<String, Value>> = entries.iter().map(folded).collect();
    values.map_or(Expr::Map(entries), |values| Expr::Literal(Value::Object(values)))
}

fn literal(expr: &Expr) -> Option<Value> {
    match expr {
        Expr::Literal(value) => Some(value.clone()),
        _ => None,
    }
}
