//! Environment variables and metrics are declared in one place each.
//!
//! A variable name in a string or doc comment of a crate (or anywhere in its Python files) must be one that
//! `forebay_core::env` declares; a metric name must be one of `forebay_core::metric`. So the reference pages made from
//! these two files are complete, and a name that is mistyped does not go unnoticed.

use std::collections::BTreeSet;

use crate::tidy::Finding;
use crate::tidy::tokens;
use crate::tidy::tree::SourceFile;

const ENV_REGISTRY: &str = "crates/forebay-core/src/env.rs";
const METRIC_REGISTRY: &str = "crates/forebay-core/src/metric.rs";

/// How our variables begin. Written in two parts, so that this line is not one.
const ENV_PREFIX: &str = concat!("FOREBAY", "_");

/// How our metrics begin; `forebay.toml` and the like have one part after it, metrics have two or more.
const METRIC_PREFIX: &str = "forebay.";

/// A name, with the line it is on.
type Found = (usize, String);

/// Compares the names used in crates and developer tools with the registries.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let variables = declared(files, ENV_REGISTRY, is_variable);
    let metrics = declared(files, METRIC_REGISTRY, is_metric);
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.crate_name().is_some()) {
        let (used_variables, used_metrics) = used(file);
        let mut report = |found: Vec<Found>, declared: &BTreeSet<String>, registry: &str, what: &str| {
            for (line, name) in found.into_iter().filter(|(_, name)| !declared.contains(name)) {
                let message =
                    format!("{what} {name} is not declared: add it to {registry} or correct the name");
                findings.push(Finding::new(&file.path, line, message));
            }
        };
        report(used_variables, &variables, ENV_REGISTRY, "environment variable");
        report(used_metrics, &metrics, METRIC_REGISTRY, "metric");
    }
    findings
}

/// String literals of a registry that are names as a whole.
fn declared(files: &[SourceFile], registry: &str, is_name: fn(&str) -> bool) -> BTreeSet<String> {
    let text = files
        .iter()
        .find(|file| file.path == registry)
        .map_or("", |file| file.text.as_str());
    let literals = tokens::scan(text).map(|scan| scan.literals).unwrap_or_default();
    literals
        .into_iter()
        .map(|literal| literal.value)
        .filter(|value| is_name(value))
        .collect()
}

/// Variables and metrics a file mentions.
fn used(file: &SourceFile) -> (Vec<Found>, Vec<Found>) {
    if file.is(".py") || file.is(".pyi") {
        return (words(&file.text, ENV_PREFIX), Vec::new());
    }
    if !file.is(".rs") {
        return (Vec::new(), Vec::new());
    }
    let literals = tokens::scan(&file.text)
        .map(|scan| scan.literals)
        .unwrap_or_default();
    let mut variables = Vec::new();
    let mut metrics = Vec::new();
    for literal in literals {
        let names = words(&literal.value, ENV_PREFIX).into_iter();
        variables.extend(names.map(|(line, name)| (literal.line + line - 1, name)));
        if literal.names_metric || is_metric(&literal.value) {
            metrics.push((literal.line, literal.value));
        }
    }
    (variables, metrics)
}

/// Words that begin with a prefix, with their lines; the bare prefix (`PREFIX_*`) is none.
fn words(text: &str, prefix: &str) -> Vec<Found> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = line.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
        let names = words.filter(|word| word.len() > prefix.len() && word.starts_with(prefix));
        found.extend(
            names
                .filter(|word| !word.ends_with('_'))
                .map(|word| (index + 1, word.to_owned())),
        );
    }
    found
}

fn is_variable(value: &str) -> bool {
    words(value, ENV_PREFIX)
        .first()
        .is_some_and(|(_, word)| word == value)
}

fn is_metric(value: &str) -> bool {
    let Some(rest) = value.strip_prefix(METRIC_PREFIX) else {
        return false;
    };
    let is_part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_lowercase())
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    rest.contains('.') && rest.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::file;

    /// Puts the prefix in, so that these tests do not trip over their own names.
    fn findings(path: &str, text: &str) -> Vec<Finding> {
        let registries = [
            file(
                ENV_REGISTRY,
                &format!("const A: &str = \"{ENV_PREFIX}CONFIG\"; // \"{ENV_PREFIX}COMMENTED\""),
            ),
            file(
                METRIC_REGISTRY,
                &format!("const B: &str = \"{METRIC_PREFIX}io.bytes_total\";"),
            ),
        ];
        let text = text.replace("ENV_", ENV_PREFIX).replace("METRIC.", METRIC_PREFIX);
        let mut files = registries.to_vec();
        files.push(file(path, &text));
        check(&files)
    }

    #[test]
    fn declared_names_pass() {
        let text = "/// Reads `ENV_CONFIG`, one of `ENV_*`.\nfn f() { g(\"ENV_CONFIG\"); counter!(\"METRIC.io.bytes_total\"); }";
        assert_eq!(findings("crates/a/src/b.rs", text), []);
        assert_eq!(
            findings("crates/a/python/b.py", "x = os.environ['ENV_CONFIG']"),
            []
        );
    }

    #[test]
    fn an_undeclared_variable_is_found_in_code_docs_and_python() {
        let code = findings(
            "crates/a/src/b.rs",
            "//! Doc.\nfn f() { g(\"set ENV_CONFIGG to x\") }",
        );
        assert_eq!((code.len(), code[0].line), (1, 2));
        assert_eq!(
            findings("crates/a/src/b.rs", "/// Reads `ENV_NOPE`.\nfn f() {}").len(),
            1
        );
        assert_eq!(
            findings("crates/a/python/b.py", "\n\nx = os.environ['ENV_NOPE']")[0].line,
            3
        );
        assert_eq!(
            findings("xtask/src/b.rs", "fn f() { g(\"ENV_COMMENTED\") }").len(),
            1
        );
        assert_eq!(findings("bench/b.rs", "fn f() { g(\"ENV_NOPE\") }"), []);
    }

    #[test]
    fn an_undeclared_metric_is_found_by_its_look_and_by_its_use() {
        assert_eq!(
            findings("crates/a/src/b.rs", "const A: &str = \"METRIC.io.bytes\";").len(),
            1
        );
        let by_use = findings(
            "crates/a/src/b.rs",
            "fn f() { metrics::gauge!(\"anything\").set(1); }",
        );
        assert!(
            by_use[0].message.starts_with("metric anything is not declared"),
            "{}",
            by_use[0]
        );
    }

    #[test]
    fn files_modules_and_prose_are_no_metrics() {
        let text = "const A: [&str; 4] = [\"METRIC.toml\", \"METRIC._inner\", \"METRIC.Store.read\", \"METRIC.x y.z\"];";
        assert_eq!(findings("crates/a/src/b.rs", text), []);
    }

    #[test]
    fn a_missing_registry_declares_nothing() {
        let files = [file(
            "crates/a/src/b.rs",
            &format!("const A: &str = \"{ENV_PREFIX}CONFIG\";"),
        )];
        assert_eq!(check(&files).len(), 1);
    }
}
