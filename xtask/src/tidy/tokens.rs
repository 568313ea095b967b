//! Rust source as tokens: what a text search gets wrong (comments, raw strings, macros) comes out right.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Lit;

/// A string literal, or one line of a doc comment, which the language treats alike.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Literal {
    pub(super) line: usize,
    pub(super) value: String,
    /// It is the first argument of a `counter!`, `gauge!` or `histogram!`, or of their `describe_` forms.
    pub(super) names_metric: bool,
}

/// One use of the word `unsafe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsafe {
    pub(super) line: usize,
    /// A block or an impl, which must be explained; `unsafe fn` and types only pass the duty on.
    pub(super) is_claim: bool,
}

/// Everything the checks look for in one file.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) literals: Vec<Literal>,
    pub(super) unsafes: Vec<Unsafe>,
}

/// Reads the tokens of a file; `None` if it is not Rust, which the compiler will tell better than we can.
pub(super) fn scan(text: &str) -> Option<Scan> {
    let tokens: TokenStream = text.parse().ok()?;
    let mut scan = Scan::default();
    scan.walk(tokens, false);
    Some(scan)
}

impl Scan {
    /// `in_metric` says that `tokens` are the arguments of a metric macro.
    fn walk(&mut self, tokens: TokenStream, in_metric: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Literal(literal) => {
                    let line = literal.span().start().line;
                    let names_metric = in_metric && index == 0;
                    self.push_literal(Lit::new(literal.clone()), line, names_metric);
                }
                TokenTree::Ident(ident) if ident == "unsafe" => {
                    let is_claim = match tokens.get(index + 1) {
                        Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Brace,
                        Some(TokenTree::Ident(next)) => next == "impl",
                        _ => false,
                    };
                    self.unsafes.push(Unsafe {
                        line: ident.span().start().line,
                        is_claim,
                    });
                }
                TokenTree::Group(group) => {
                    let is_metric = index >= 2 && is_metric_macro(&tokens[index - 2], &tokens[index - 1]);
                    self.walk(group.stream(), is_metric);
                }
                _ => {}
            }
        }
    }

    fn push_literal(&mut self, literal: Lit, line: usize, names_metric: bool) {
        let value = match literal {
            Lit::Str(text) => text.value(),
            Lit::ByteStr(bytes) => String::from_utf8_lossy(&bytes.value()).into_owned(),
            Lit::CStr(text) => text.value().to_string_lossy().into_owned(),
            _ => return,
        };
        self.literals.push(Literal {
            line,
            value,
            names_metric,
        });
    }
}

fn is_metric_macro(name: &TokenTree, bang: &TokenTree) -> bool {
    let (TokenTree::Ident(name), TokenTree::Punct(bang)) = (name, bang) else {
        return false;
    };
    let name = name.to_string();
    let kind = name.strip_prefix("describe_").unwrap_or(&name);
    bang.as_char() == '!' && matches!(kind, "counter" | "gauge" | "histogram")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_come_with_their_lines_from_docs_macros_and_raw_strings() {
        let text = "/// In a doc.\nfn f() {\n    println!(\"in a macro\"); // \"not in a comment\"\n    g(r#\"raw\"#);\n}";
        let found: Vec<_> = scan(text)
            .unwrap()
            .literals
            .into_iter()
            .map(|lit| (lit.line, lit.value))
            .collect();
        let expected = [(1, " In a doc."), (3, "in a macro"), (4, "raw")];
        assert_eq!(found, expected.map(|(line, value)| (line, value.to_owned())));
    }

    #[test]
    fn the_first_argument_of_a_metric_macro_is_marked() {
        let scan =
            scan("fn f() { metrics::counter!(\"a\", \"b\" => \"c\"); describe_gauge!(\"d\"); vec![\"e\"]; }");
        let marked: Vec<_> = scan
            .unwrap()
            .literals
            .into_iter()
            .filter(|lit| lit.names_metric)
            .map(|lit| lit.value)
            .collect();
        assert_eq!(marked, ["a", "d"]);
    }

    #[test]
    fn unsafe_is_seen_where_it_claims_and_where_it_demands() {
        let text = "unsafe fn f() {}\nfn g() { unsafe { f() } }\nunsafe impl Send for X {}\n// unsafe { }\nm! { unsafe { } }";
        let found: Vec<_> = scan(text)
            .unwrap()
            .unsafes
            .iter()
            .map(|found| (found.line, found.is_claim))
            .collect();
        assert_eq!(found, [(1, false), (2, true), (3, true), (5, true)]);
    }

    #[test]
    fn what_is_not_rust_is_left_to_the_compiler() {
        assert!(scan("fn f( {").is_none());
    }
}
