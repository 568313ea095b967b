//! A small evaluator of formulas: `+ - x / ^`, parentheses, names of inputs, and a few functions. What stands behind a colon or a
//! semicolon is explanation.

/// Rounding up forgives the last bits, as the planner does.
const WHOLE_SLACK: f64 = 1e-9;

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(f64),
    Name(String),
    Sign(char),
}

/// The value of a formula over the inputs it lists.
pub(crate) fn evaluate(formula: &str, inputs: &[(&str, f64)]) -> Result<f64, String> {
    let expression = formula.split([':', ';']).next().unwrap_or_default();
    let mut parser = Parser {
        tokens: tokens(expression)?,
        at: 0,
        inputs,
    };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(value),
        Some(token) => Err(format!("what is {token:?} here?")),
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_ascii_digit() {
            let number = number_length(rest);
            let value = rest[..number]
                .parse()
                .map_err(|error| format!("{rest}: {error}"))?;
            tokens.push(Token::Number(value));
            number
        } else if first.is_ascii_alphabetic() {
            let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let length = rest.find(|c: char| !part(c)).unwrap_or(rest.len());
            let name = &rest[..length];
            tokens.push(if name == "x" {
                Token::Sign('x')
            } else {
                Token::Name(name.to_owned())
            });
            length
        } else if "+-/^(),".contains(first) {
            tokens.push(Token::Sign(first));
            1
        } else {
            return Err(format!("what is {first:?}?"));
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Digits, a fraction, and an exponent such as e9 or e-6.
fn number_length(text: &str) -> usize {
    let digits = |text: &str| {
        text.find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len())
    };
    let mantissa = digits(text);
    let Some(exponent) = text[mantissa..].strip_prefix('e') else {
        return mantissa;
    };
    let sign = usize::from(exponent.starts_with('-'));
    mantissa + 1 + sign + digits(&exponent[sign..])
}

struct Parser<'a> {
    tokens: Vec<Token>,
    at: usize,
    inputs: &'a [(&'a str, f64)],
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    /// Goes past a sign, when it is next.
    fn take(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value += self.product()?;
            } else if self.take('-') {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.signed()?;
        loop {
            if self.take('x') {
                value *= self.signed()?;
            } else if self.take('/') {
                value /= self.signed()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn signed(&mut self) -> Result<f64, String> {
        if self.take('-') {
            return Ok(-self.signed()?);
        }
        let base = self.atom()?;
        if self.take('^') {
            return Ok(base.powf(self.signed()?));
        }
        Ok(base)
    }

    fn atom(&mut self) -> Result<f64, String> {
        if self.take('(') {
            let value = self.sum()?;
            return if self.take(')') {
                Ok(value)
            } else {
                Err("a parenthesis is not closed".to_owned())
            };
        }
        let token = self.peek().cloned();
        self.at += 1;
        match token {
            Some(Token::Number(value)) => Ok(value),
            Some(Token::Name(name)) if name == "sum" => self.all_of(),
            Some(Token::Name(name)) if self.take('(') => self.call(&name),
            Some(Token::Name(name)) => self.input(&name),
            other => Err(format!("what is {other:?} here?")),
        }
    }

    /// The values of all inputs of a name; those of items have the item's name behind a dot.
    fn values(&self, name: &str) -> Vec<f64> {
        let is_named = |input: &str| input.split('.').next() == Some(name);
        let found = self.inputs.iter().filter(|(input, _)| is_named(input));
        found.map(|(_, value)| *value).collect()
    }

    fn input(&self, name: &str) -> Result<f64, String> {
        match self.values(name)[..] {
            [value] => Ok(value),
            [] => Err(format!("{name} is no input")),
            _ => Err(format!("{name} is several inputs: use sum({name})")),
        }
    }

    /// The sum of all inputs of a name: items of a list.
    fn all_of(&mut self) -> Result<f64, String> {
        let opened = self.take('(');
        let name = match self.peek() {
            Some(Token::Name(name)) if opened => name.clone(),
            other => return Err(format!("sum of {other:?}")),
        };
        self.at += 1;
        let values = self.values(&name);
        if !self.take(')') || values.is_empty() {
            return Err(format!("sum of {name}"));
        }
        Ok(values.iter().sum())
    }

    fn call(&mut self, name: &str) -> Result<f64, String> {
        let mut values = vec![self.sum()?];
        while self.take(',') {
            values.push(self.sum()?);
        }
        if !self.take(')') {
            return Err(format!("{name}( is not closed"));
        }
        match (name, &values[..]) {
            ("min", [..]) => Ok(values.iter().copied().fold(f64::INFINITY, f64::min)),
            ("max", [..]) => Ok(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            ("sqrt", [value]) => Ok(value.sqrt()),
            ("exp", [value]) => Ok(value.exp()),
            ("abs", [value]) => Ok(value.abs()),
            ("floor", [value]) => Ok((value + WHOLE_SLACK).floor()),
            ("round", [value]) => Ok(value.round()),
            ("ceil", [value]) => {
                let near = value.round();
                let is_whole = (value - near).abs() <= WHOLE_SLACK * near.abs();
                Ok(if is_whole { near } else { value.ceil() })
            }
            _ => Err(format!("there is no function {name} of {} values", values.len())),
        }
    }
}
