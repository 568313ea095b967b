//! Lines per file and per function.
//!
//! The hard limits are errors unless `xtask/tidy-exceptions.txt` names the place with its present size. The list may
//! only shrink: an entry that is not needed any more, or that allows more than is there, is an error too.
//!
//! A file counts whole. A function counts from the line of its `fn` to its closing brace, tests and nested functions
//! included, doc comments and attributes not.

use std::collections::BTreeMap;

use proc_macro2::Span;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::tidy::Finding;
use crate::tidy::tree::SourceFile;

/// A file beyond this does too much.
const FILE_LINES_MAX: usize = 800;

/// Production files aim below this; a trailing test module does not count. Only noted, not refused.
const FILE_LINES_AIM: usize = 400;

/// A function beyond this does not fit on a screen.
const FUNCTION_LINES_MAX: usize = 70;

const EXCEPTIONS: &str = "xtask/tidy-exceptions.txt";

/// A file, or a function in it (`path#Type::name`), and where it begins.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    place: String,
    path: String,
    line: usize,
    lines: usize,
    lines_max: usize,
}

/// Compares every file and function with its limit or its exception.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let sizes: Vec<Size> = files
        .iter()
        .filter(|file| file.is(".rs"))
        .flat_map(measure)
        .collect();
    let list = files
        .iter()
        .find(|file| file.path == EXCEPTIONS)
        .map_or("", |file| file.text.as_str());
    let (exceptions, mut findings) = parse_exceptions(list);
    for size in &sizes {
        let allowed = exceptions.get(size.place.as_str()).map(|(_, lines)| *lines);
        if size.lines > size.lines_max && allowed.is_none_or(|lines| size.lines > lines) {
            let Size {
                lines,
                lines_max,
                place,
                ..
            } = size;
            let message = match allowed {
                None => format!("{place} has {lines} lines, more than {lines_max}: split it"),
                Some(before) => {
                    format!("{place} grew from {before} to {lines} lines: shrink it, the list only shrinks")
                }
            };
            findings.push(Finding::new(&size.path, size.line, message));
        }
    }
    for (place, (line, allowed)) in exceptions {
        let message = match sizes
            .iter()
            .filter(|size| size.place == place)
            .max_by_key(|size| size.lines)
        {
            None => format!("{place} is not there any more: remove the entry"),
            Some(size) if size.lines <= size.lines_max => {
                format!("{place} is within the limit: remove the entry")
            }
            Some(size) if size.lines < allowed => {
                format!("{place} has only {} lines: lower the entry", size.lines)
            }
            Some(_) => continue,
        };
        findings.push(Finding::new(EXCEPTIONS, line, message));
    }
    findings
}

/// How many files miss the softer aim, and which is the longest.
pub(super) fn note(files: &[SourceFile]) -> Option<String> {
    let rust = files.iter().filter(|file| file.is(".rs"));
    let over: Vec<(usize, &str)> = rust
        .map(|file| (production_lines(&file.text), file.path.as_str()))
        .filter(|(lines, _)| *lines > FILE_LINES_AIM)
        .collect();
    let (lines, path) = over.iter().max()?;
    Some(format!(
        "{} files above the aim of {FILE_LINES_AIM} production lines, most {path} with {lines}",
        over.len()
    ))
}

/// Lines before a trailing `#[cfg(test)] mod`.
fn production_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod "));
    tests.unwrap_or(lines.len())
}

/// `place lines` per line; `#` begins a comment. Gives line number and allowed size by place.
fn parse_exceptions(text: &str) -> (BTreeMap<&str, (usize, usize)>, Vec<Finding>) {
    let mut exceptions = BTreeMap::new();
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with("# ") || line == "#" {
            continue;
        }
        let entry = line
            .rsplit_once(' ')
            .and_then(|(place, lines)| Some((place.trim(), lines.parse().ok()?)));
        match entry {
            Some((place, lines)) => {
                exceptions.insert(place, (index + 1, lines));
            }
            None => findings.push(Finding::new(
                EXCEPTIONS,
                index + 1,
                "not `path LINES` or `path#function LINES`",
            )),
        }
    }
    (exceptions, findings)
}

fn measure(file: &SourceFile) -> Vec<Size> {
    let whole = Size {
        place: file.path.clone(),
        path: file.path.clone(),
        line: 1,
        lines: file.text.lines().count(),
        lines_max: FILE_LINES_MAX,
    };
    let mut functions = Functions {
        path: &file.path,
        scope: Vec::new(),
        sizes: vec![whole],
    };
    // What does not parse is reported by the compiler.
    if let Ok(parsed) = syn::parse_file(&file.text) {
        functions.visit_file(&parsed);
    }
    functions.sizes
}

/// Collects the functions of one file, remembering in which type, trait or module each one is.
struct Functions<'a> {
    path: &'a str,
    scope: Vec<String>,
    sizes: Vec<Size>,
}

impl Functions<'_> {
    fn push(&mut self, signature: &syn::Signature, end: Span) {
        let line = signature.fn_token.span.start().line;
        let scope: String = self.scope.iter().flat_map(|name| [name.as_str(), "::"]).collect();
        self.sizes.push(Size {
            place: format!("{}#{scope}{}", self.path, signature.ident),
            path: self.path.to_owned(),
            line,
            lines: end.end().line + 1 - line,
            lines_max: FUNCTION_LINES_MAX,
        });
    }

    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.scope.push(name);
        visit(self);
        self.scope.pop();
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.push(&item.sig, item.block.brace_token.span.close());
        self.within(item.sig.ident.to_string(), |this| {
            visit::visit_item_fn(this, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.push(&item.sig, item.block.brace_token.span.close());
        self.within(item.sig.ident.to_string(), |this| {
            visit::visit_impl_item_fn(this, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.push(&item.sig, block.brace_token.span.close());
        }
        self.within(item.sig.ident.to_string(), |this| {
            visit::visit_trait_item_fn(this, item);
        });
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = item
            .self_ty
            .span()
            .source_text()
            .unwrap_or_default()
            .replace(' ', "");
        self.within(name, |this| visit::visit_item_impl(this, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(item.ident.to_string(), |this| visit::visit_item_trait(this, item));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within(item.ident.to_string(), |this| visit::visit_item_mod(this, item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::file;

    /// A function of exactly so many lines.
    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    fn messages(files: &[SourceFile]) -> Vec<String> {
        check(files)
            .into_iter()
            .map(|finding| finding.to_string())
            .collect()
    }

    #[test]
    fn limits_are_inclusive() {
        assert_eq!(messages(&[file("a.rs", &function(70))]), Vec::<String>::new());
        assert_eq!(
            messages(&[file("a.rs", &function(71))]),
            ["a.rs:1: a.rs#f has 71 lines, more than 70: split it"]
        );
        assert_eq!(
            messages(&[file("a.rs", &"//! Doc.\n".repeat(800))]),
            Vec::<String>::new()
        );
        assert_eq!(messages(&[file("a.rs", &"//! Doc.\n".repeat(801))]).len(), 1);
        assert_eq!(
            messages(&[file("a.py", &"pass\n".repeat(5000))]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn functions_are_named_by_where_they_are_and_docs_do_not_count() {
        let text = format!(
            "mod m {{\nimpl<T> Buf<T> {{\n{}{}}}\n}}\n",
            "/// Doc.\n".repeat(50),
            function(71)
        );
        assert!(messages(&[file("a.rs", &text)])[0].starts_with("a.rs:53: a.rs#m::Buf<T>::f has 71 lines"));
        let default_method = format!("trait T {{\n{}}}\n", function(71));
        assert!(messages(&[file("a.rs", &default_method)])[0].starts_with("a.rs:2: a.rs#T::f has 71"));
    }

    #[test]
    fn an_exception_holds_exactly_what_is_there() {
        let list = |text| file(EXCEPTIONS, text);
        let long = || file("a.rs", &function(75));
        assert!(messages(&[long(), list("# why\na.rs#f 75\n")]).is_empty());
        assert!(messages(&[long(), list("a.rs#f 74\n")])[0].contains("grew from 74 to 75"));
        assert!(messages(&[long(), list("a.rs#f 76\n")])[0].contains("only 75 lines: lower the entry"));
    }

    #[test]
    fn an_exception_nobody_needs_is_an_error() {
        let list = |text| file(EXCEPTIONS, text);
        let short = || file("a.rs", &function(10));
        assert!(
            messages(&[short(), list("\na.rs#f 75")])[0]
                .starts_with("xtask/tidy-exceptions.txt:2: a.rs#f is within")
        );
        assert!(messages(&[short(), list("a.rs#gone 75")])[0].contains("not there any more"));
        assert!(messages(&[short(), list("a.rs#f many")])[0].contains("not `path LINES`"));
    }

    #[test]
    fn the_aim_leaves_out_trailing_tests() {
        let text = format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            "//! Doc.\n".repeat(400),
            "\n".repeat(300)
        );
        assert_eq!(note(&[file("a.rs", &text)]), None);
        assert!(
            note(&[file("a.rs", &"\n".repeat(401))])
                .unwrap()
                .contains("a.rs with 401")
        );
    }
}
