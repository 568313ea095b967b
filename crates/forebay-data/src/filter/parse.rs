//! From text to a filter: words first, then the grammar, by descent.
//!
//! ```text
//! any  = all { "or" all }
//! all  = one { "and" one }
//! one  = "not" one | "(" any ")" | column test
//! test = op literal | ["not"] "in" "(" literal { "," literal } ")" | "is" ["not"] "null"
//! ```

use std::iter::Peekable;
use std::str::CharIndices;

use forebay_core::{Error, ErrorKind, Result};

use super::{DEPTH_MAX, Expr, Literal, Op, TERMS_MAX, TEXT_BYTES_MAX};

/// What can be written, for every error.
const HINT: &str = "write conditions like: label = 3 and (split in ('train', 'extra') or not width < 224) and caption is not null";

#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// A name or a key word, as it was written.
    Word(String),
    /// A name in double quotes.
    Name(String),
    Literal(Literal),
    Op(Op),
    Open,
    Close,
    Comma,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Keyword {
    And,
    Or,
    Not,
    In,
    Is,
    Null,
    True,
    False,
}

impl Token {
    fn keyword(&self) -> Option<Keyword> {
        let Self::Word(word) = self else {
            return None;
        };
        Some(match word.to_ascii_lowercase().as_str() {
            "and" => Keyword::And,
            "or" => Keyword::Or,
            "not" => Keyword::Not,
            "in" => Keyword::In,
            "is" => Keyword::Is,
            "null" => Keyword::Null,
            "true" => Keyword::True,
            "false" => Keyword::False,
            _ => return None,
        })
    }
}

pub(super) fn parse(text: &str) -> Result<Expr<String>> {
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("a filter of {} bytes; {TEXT_BYTES_MAX} are allowed", text.len());
        return Err(Error::new(ErrorKind::LimitExceeded, "parse filter", message));
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
        terms: 0,
    };
    let expr = parser.any(0)?;
    match parser.peek() {
        Token::End => Ok(expr),
        _ => Err(parser.expected("`and`, `or` or the end")),
    }
}

struct Parser {
    /// With the number of the character each begins at, counted from 1; the last is the end.
    tokens: Vec<(usize, Token)>,
    at: usize,
    terms: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::End, |(_, token)| token)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    /// Step over the key word if it is next.
    fn take(&mut self, keyword: Keyword) -> bool {
        let is_next = self.peek().keyword() == Some(keyword);
        self.at += usize::from(is_next);
        is_next
    }

    fn any(&mut self, depth: usize) -> Result<Expr<String>> {
        let mut branches = vec![self.all(depth)?];
        while self.take(Keyword::Or) {
            branches.push(self.all(depth)?);
        }
        Ok(single(branches, Expr::Any))
    }

    fn all(&mut self, depth: usize) -> Result<Expr<String>> {
        let mut branches = vec![self.one(depth)?];
        while self.take(Keyword::And) {
            branches.push(self.one(depth)?);
        }
        Ok(single(branches, Expr::All))
    }

    fn one(&mut self, depth: usize) -> Result<Expr<String>> {
        if depth >= DEPTH_MAX {
            return Err(limit(format!("more than {DEPTH_MAX} levels of nesting")));
        }
        if self.take(Keyword::Not) {
            return Ok(Expr::Not(Box::new(self.one(depth + 1)?)));
        }
        if *self.peek() == Token::Open {
            self.at += 1;
            let expr = self.any(depth + 1)?;
            self.close()?;
            return Ok(expr);
        }
        let column = self.column()?;
        self.test(column)
    }

    fn column(&mut self) -> Result<String> {
        let is_name = self.peek().keyword().is_none();
        match self.peek() {
            Token::Word(name) if is_name => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            Token::Name(name) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.expected("a column")),
        }
    }

    fn test(&mut self, column: String) -> Result<Expr<String>> {
        if let Token::Op(op) = *self.peek() {
            self.at += 1;
            let literal = self.literal()?;
            return Ok(Expr::Compare { column, op, literal });
        }
        if self.take(Keyword::Is) {
            let negated = self.take(Keyword::Not);
            if !self.take(Keyword::Null) {
                return Err(self.expected("`null`"));
            }
            self.count()?;
            return Ok(negate(Expr::IsNull(column), negated));
        }
        let negated = self.take(Keyword::Not);
        if !self.take(Keyword::In) {
            return Err(self.expected("a comparison, `in` or `is`"));
        }
        if *self.peek() != Token::Open {
            return Err(self.expected("`(`"));
        }
        self.at += 1;
        let mut literals = vec![self.literal()?];
        while *self.peek() == Token::Comma {
            self.at += 1;
            literals.push(self.literal()?);
        }
        self.close()?;
        Ok(negate(Expr::In { column, literals }, negated))
    }

    fn literal(&mut self) -> Result<Literal> {
        self.count()?;
        let literal = match (self.peek().keyword(), self.peek()) {
            (Some(Keyword::True), _) => Literal::Bool(true),
            (Some(Keyword::False), _) => Literal::Bool(false),
            (Some(Keyword::Null), _) => {
                return Err(self
                    .expected("a value")
                    .with_hint("nulls are found by `is null` and `is not null`"));
            }
            (_, Token::Literal(literal)) => literal.clone(),
            (_, Token::Word(_) | Token::Name(_)) => {
                let error = self.expected("a value");
                return Err(
                    error.with_hint("text stands in single quotes; columns are not compared with each other")
                );
            }
            _ => return Err(self.expected("a value")),
        };
        self.at += 1;
        Ok(literal)
    }

    fn close(&mut self) -> Result<()> {
        if self.next() == Token::Close {
            return Ok(());
        }
        self.at -= 1;
        Err(self.expected("`)`"))
    }

    fn count(&mut self) -> Result<()> {
        self.terms += 1;
        if self.terms > TERMS_MAX {
            return Err(limit(format!("more than {TERMS_MAX} comparisons")));
        }
        Ok(())
    }

    fn expected(&self, what: &str) -> Error {
        let found = match self.peek() {
            Token::Word(word) => format!("`{}`", word.escape_debug()),
            Token::Name(name) => format!("the name \"{}\"", name.escape_debug()),
            Token::Literal(_) => "a value".to_owned(),
            Token::Op(_) => "a comparison".to_owned(),
            Token::Open => "`(`".to_owned(),
            Token::Close => "`)`".to_owned(),
            Token::Comma => "`,`".to_owned(),
            Token::End => "the end".to_owned(),
        };
        let at = self.tokens.get(self.at).map_or(0, |(at, _)| *at);
        invalid(at, &format!("{what} is missing, there is {found}"))
    }
}

fn single(mut branches: Vec<Expr<String>>, join: fn(Vec<Expr<String>>) -> Expr<String>) -> Expr<String> {
    match (branches.pop(), branches.is_empty()) {
        (Some(only), true) => only,
        (last, _) => {
            branches.extend(last);
            join(branches)
        }
    }
}

fn negate(expr: Expr<String>, negated: bool) -> Expr<String> {
    if negated { Expr::Not(Box::new(expr)) } else { expr }
}

fn tokens(text: &str) -> Result<Vec<(usize, Token)>> {
    let mut tokens = Vec::new();
    let mut chars = text.char_indices().peekable();
    // Places are counted in characters, as people and editors do.
    let (mut counted, mut at) = (0, 1);
    while let Some((start, first)) = chars.next() {
        at += text
            .get(counted..start)
            .map_or(0, |before| before.chars().count());
        counted = start;
        let token = match first {
            _ if first.is_whitespace() => continue,
            '(' => Token::Open,
            ')' => Token::Close,
            ',' => Token::Comma,
            '=' | '!' | '<' | '>' => Token::Op(op(first, &mut chars, at)?),
            '\'' => Token::Literal(Literal::Text(quoted(&mut chars, '\'', at)?)),
            '"' => Token::Name(quoted(&mut chars, '"', at)?),
            '0'..='9' | '-' | '+' => Token::Literal(number(text, start, &mut chars, at)?),
            _ if first.is_alphabetic() || first == '_' => Token::Word(run(text, start, &mut chars, is_name)),
            _ => {
                return Err(invalid(
                    at,
                    &format!("`{}` means nothing here", first.escape_debug()),
                ));
            }
        };
        tokens.push((at, token));
    }
    tokens.push((text.chars().count() + 1, Token::End));
    Ok(tokens)
}

type Chars<'a> = Peekable<CharIndices<'a>>;

fn is_name(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '.' | '-' | '/')
}

fn op(first: char, chars: &mut Chars<'_>, at: usize) -> Result<Op> {
    let second = chars
        .next_if(|(_, char)| matches!(char, '=' | '>'))
        .map(|(_, char)| char);
    match (first, second) {
        ('=', None | Some('=')) => Ok(Op::Eq),
        ('!', Some('=')) | ('<', Some('>')) => Ok(Op::Ne),
        ('<', None) => Ok(Op::Lt),
        ('<', Some('=')) => Ok(Op::Le),
        ('>', None) => Ok(Op::Gt),
        ('>', Some('=')) => Ok(Op::Ge),
        _ => Err(invalid(at, "no such comparison; there are = != < <= > >=")),
    }
}

/// What stands in quotes, of which two mean one.
fn quoted(chars: &mut Chars<'_>, quote: char, at: usize) -> Result<String> {
    let mut text = String::new();
    while let Some((_, char)) = chars.next() {
        if char != quote || chars.next_if(|(_, next)| *next == quote).is_some() {
            text.push(char);
        } else {
            return Ok(text);
        }
    }
    Err(invalid(at, &format!("the quote {quote} is never closed")))
}

fn run(text: &str, start: usize, chars: &mut Chars<'_>, belongs: fn(char) -> bool) -> String {
    while chars.next_if(|(_, char)| belongs(*char)).is_some() {}
    let end = chars.peek().map_or(text.len(), |(end, _)| *end);
    text.get(start..end).unwrap_or_default().to_owned()
}

fn number(text: &str, start: usize, chars: &mut Chars<'_>, at: usize) -> Result<Literal> {
    let word = run(text, start, chars, |char| {
        char.is_alphanumeric() || matches!(char, '.' | '-' | '+' | '_')
    });
    if let Some(int) = word
        .parse()
        .ok()
        .filter(|int: &i128| int.unsigned_abs() < INT_BEYOND)
    {
        return Ok(Literal::Int(int));
    }
    let is_decimal = word
        .chars()
        .all(|char| char.is_ascii_digit() || matches!(char, '.' | '-' | '+' | 'e' | 'E'));
    match word.parse::<f64>() {
        Ok(float) if is_decimal && float.is_finite() => Ok(Literal::Float(float, word)),
        _ => Err(invalid(at, &format!("`{}` is not a number", word.escape_debug()))),
    }
}

/// Integers have the digits that decimals of 128 bits have, and no more.
const INT_BEYOND: u128 = 10u128.pow(38);

fn invalid(at: usize, message: &str) -> Error {
    let message = format!("{message} (character {at} of the filter)");
    Error::new(ErrorKind::InvalidInput, "parse filter", message).with_hint(HINT)
}

fn limit(message: String) -> Error {
    Error::new(ErrorKind::LimitExceeded, "parse filter", message)
}
