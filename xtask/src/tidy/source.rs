//! Rules about single source files: a module doc first, ASCII only, `unsafe` in its perimeter and explained.

use crate::tidy::Finding;
use crate::tidy::tokens::{self, Unsafe};
use crate::tidy::tree::SourceFile;

/// The crates that may contain `unsafe`: the machine and the foreign function interface.
const UNSAFE_CRATES: [&str; 2] = ["forebay-io", "forebay-python"];

/// Runs the rules on every file they apply to.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        if file.is(".rs") {
            findings.extend(check_doc(file));
            findings.extend(check_unsafe(file));
        }
        if file.is(".rs") || file.is(".toml") {
            findings.extend(check_ascii(file));
        }
    }
    findings
}

fn check_doc(file: &SourceFile) -> Option<Finding> {
    if file.text.starts_with("//!") {
        return None;
    }
    let message =
        "no module doc: open the file with `//!` and say what it does, its parts, and how data moves";
    Some(Finding::new(&file.path, 1, message))
}

fn check_ascii(file: &SourceFile) -> Option<Finding> {
    file.text.lines().enumerate().find_map(|(index, line)| {
        let odd = line.chars().find(|character| !character.is_ascii())?;
        let message = format!(
            "{} is not ASCII: write it in ASCII or as an escape",
            odd.escape_unicode()
        );
        Some(Finding::new(&file.path, index + 1, message))
    })
}

fn check_unsafe(file: &SourceFile) -> Option<Finding> {
    let unsafes = tokens::scan(&file.text)?.unsafes;
    let first = unsafes.first()?;
    if !file
        .crate_name()
        .is_some_and(|name| UNSAFE_CRATES.contains(&name))
    {
        let message = format!(
            "`unsafe` outside {}: move it there behind a safe function",
            UNSAFE_CRATES.join(" and ")
        );
        return Some(Finding::new(&file.path, first.line, message));
    }
    let claims: Vec<&Unsafe> = unsafes.iter().filter(|found| found.is_claim).collect();
    let explained = file
        .text
        .lines()
        .filter(|line| line.trim_start().starts_with("// SAFETY:"))
        .count();
    let unexplained = claims.get(explained)?;
    let message = format!(
        "{} unsafe blocks and impls but {explained} `// SAFETY:` comments: say why each is sound",
        claims.len()
    );
    Some(Finding::new(&file.path, unexplained.line, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::file;

    #[test]
    fn a_rust_file_opens_with_its_doc() {
        assert!(check(&[file("crates/a/src/b.rs", "//! What it does.\nfn f() {}\n")]).is_empty());
        let findings = check(&[file("crates/a/src/b.rs", "use std::fs;\n//! Too late.\n")]);
        assert_eq!((findings.len(), findings[0].line), (1, 1));
        assert!(check(&[file("a.toml", "[package]")]).is_empty());
    }

    #[test]
    fn rust_and_toml_are_ascii_and_prose_need_not_be() {
        let text = "//! Doc.\n// \u{2192}\n";
        let findings = check(&[
            file("a.rs", text),
            file("a.toml", "# \u{e9}"),
            file("a.md", "\u{2192}"),
        ]);
        let places: Vec<_> = findings
            .iter()
            .map(|found| (found.path.as_str(), found.line))
            .collect();
        assert_eq!(places, [("a.rs", 2), ("a.toml", 1)]);
    }

    #[test]
    fn unsafe_stays_in_its_crates() {
        let text = "//! Doc.\nfn f() {\n    // SAFETY: sound.\n    unsafe { g() }\n}\n";
        assert!(check(&[file("crates/forebay-io/src/a.rs", text)]).is_empty());
        let findings = check(&[file("crates/forebay-store/src/a.rs", text)]);
        assert_eq!((findings.len(), findings[0].line), (1, 4));
        // The word in comments, strings and lint names is not the keyword.
        let harmless = "//! No unsafe here.\n#![deny(unsafe_code)]\nconst A: &str = \"unsafe { }\";\n";
        assert!(check(&[file("crates/forebay-store/src/a.rs", harmless)]).is_empty());
    }

    #[test]
    fn every_unsafe_claim_is_explained() {
        let text = "//! Doc.\nfn f() {\n    // SAFETY: sound.\n    unsafe { g() };\n    unsafe { h() };\n}\n";
        let findings = check(&[file("crates/forebay-io/src/a.rs", text)]);
        assert_eq!((findings.len(), findings[0].line), (1, 5));
        assert!(
            findings[0]
                .message
                .starts_with("2 unsafe blocks and impls but 1 "),
            "{}",
            findings[0]
        );
    }
}
