//! Patterns of tensor names, as shells write them: `*` for any run of characters, `?` for one, `[a-c]` and `[!a-c]` for one of a set.

use forebay_core::{Error, ErrorKind, Result};

/// Longest pattern: several times the longest tensor name there is.
const PATTERN_BYTES_MAX: usize = 4096;

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    text: String,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// This character.
    Char(char),
    /// Any one.
    One,
    /// Any number of any.
    Many,
    /// One within the ranges, or outside of them.
    Set {
        ranges: Vec<(char, char)>,
        is_negated: bool,
    },
}

impl Glob {
    /// Check and take a pattern.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let refuse = |why: &str| {
            let message = format!("{why}: {}", text.escape_debug());
            Error::new(ErrorKind::InvalidInput, "select", message)
                .with_hint("patterns look like 'model.layers.*.weight' or 'model.layers.[0-7].*'")
        };
        if text.is_empty() {
            return Err(refuse("an empty pattern matches nothing"));
        }
        if text.len() > PATTERN_BYTES_MAX {
            return Err(refuse("the pattern is too long"));
        }
        let mut steps = Vec::new();
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            steps.push(match char {
                '*' if steps.last() == Some(&Step::Many) => continue,
                '*' => Step::Many,
                '?' => Step::One,
                '[' => set(&mut chars)
                    .ok_or_else(|| refuse("a bracket is not closed or a range runs backwards"))?,
                char => Step::Char(char),
            });
        }
        Ok(Self {
            text: text.to_owned(),
            steps,
        })
    }

    /// As it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// True when all of `name` matches. Takes time in proportion to both lengths at worst: only the last `*` is ever gone back to.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut step, mut at) = (0, 0);
        let mut back: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.steps.get(step) {
                Some(Step::Many) => {
                    back = Some((step + 1, at));
                    step += 1;
                    continue;
                }
                Some(one) if one.takes(name[at]) => {
                    step += 1;
                    at += 1;
                    continue;
                }
                _ => {}
            }
            let Some((after, from)) = back else {
                return false;
            };
            back = Some((after, from + 1));
            (step, at) = (after, from + 1);
        }
        self.steps[step.min(self.steps.len())..]
            .iter()
            .all(|step| *step == Step::Many)
    }
}

impl Step {
    fn takes(&self, char: char) -> bool {
        match self {
            Self::Char(own) => *own == char,
            Self::One => true,
            Self::Many => false,
            Self::Set { ranges, is_negated } => {
                ranges
                    .iter()
                    .any(|(first, last)| (*first..=*last).contains(&char))
                    != *is_negated
            }
        }
    }
}

/// What stands in brackets; the opening one is behind us.
fn set(chars: &mut std::str::Chars<'_>) -> Option<Step> {
    let mut inside: Vec<char> = Vec::new();
    loop {
        match chars.next()? {
            ']' if !inside.is_empty() && inside != ['!'] => break,
            char => inside.push(char),
        }
    }
    let is_negated = inside.first() == Some(&'!');
    let mut rest = &inside[usize::from(is_negated)..];
    let mut ranges = Vec::new();
    while let Some((first, behind)) = rest.split_first() {
        match behind {
            ['-', last, behind @ ..] => {
                if first > last {
                    return None;
                }
                ranges.push((*first, *last));
                rest = behind;
            }
            _ => {
                ranges.push((*first, *first));
                rest = behind;
            }
        }
    }
    Some(Step::Set { ranges, is_negated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "anything.at/all", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("a*b*c", "a-b-b-cc", true),
            ("model.layers.*.weight", "model.layers.3.mlp.weight", true),
            ("model.layers.*.weight", "model.layers.weight", false),
            ("layers.[0-3].*", "layers.2.x", true),
            ("layers.[0-3].*", "layers.4.x", false),
            ("layers.[!0-3].*", "layers.4.x", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[]]", "]", true),
            ("x", "xy", false),
            ("*a", "ba", true),
            ("*a", "ab", false),
        ] {
            assert_eq!(
                Glob::parse(pattern).unwrap().matches(name),
                expected,
                "{pattern} {name}"
            );
        }
        for pattern in ["", "[", "[a", "[z-a]", "[]", &"x".repeat(PATTERN_BYTES_MAX + 1)] {
            assert_eq!(
                Glob::parse(pattern).unwrap_err().kind(),
                ErrorKind::InvalidInput,
                "{pattern}"
            );
        }
    }

    #[test]
    fn many_stars_take_no_forever() {
        let glob = Glob::parse(&"*a".repeat(500)).unwrap();
        assert!(!glob.matches(&"a".repeat(20_000).replace('a', "b")));
        assert!(!glob.matches(&format!("{}b", "a".repeat(20_000))));
    }
}
