//! Links between documents, and places that exist on one machine only.
//!
//! A relative link in a Markdown file must lead to a file or folder of the checkout; code spans and fenced blocks are
//! not looked at. No text file may name an absolute path of somebody's machine or the host of a package registry.

use std::collections::BTreeSet;

use crate::tidy::Finding;
use crate::tidy::tree::SourceFile;

/// Folders that only mean something on one machine; all written in two parts, so that this file does not match.
const MACHINE_PATHS: [&str; 6] = [
    concat!("/", "home/"),
    concat!("/", "root/"),
    concat!("/", "work/"),
    concat!("/", "Users/"),
    concat!("/", "opt/wheels"),
    concat!("/", "tmp/bash_jobs"),
];

/// Names of nobody, for examples: a home folder of one of these is no machine's path.
const PLACEHOLDER_USERS: [&str; 3] = ["u", "user", "you"];

/// Hosts and products that serve packages; which one is used is the machine's business.
const REGISTRY_HOSTS: [&str; 6] = [
    concat!("arti", "factory"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("files.", "pythonhosted.org"),
    concat!("registry.", "npmjs.org"),
    concat!("pypi.", "org/simple"),
];

/// Runs both rules.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let existing = existing(files);
    let mut findings = Vec::new();
    for file in files {
        if file.is(".md") {
            findings.extend(check_links(file, &existing));
        }
        findings.extend(check_places(file));
    }
    findings
}

/// All files and the folders they are in.
fn existing(files: &[SourceFile]) -> BTreeSet<&str> {
    let mut paths = BTreeSet::from([""]);
    for file in files {
        paths.insert(&file.path);
        paths.extend(file.path.match_indices('/').map(|(end, _)| &file.path[..end]));
    }
    paths
}

fn check_links(file: &SourceFile, existing: &BTreeSet<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for target in targets(&without_code(line)) {
            let resolved = resolve(&file.path, &target);
            if !resolved.as_deref().is_some_and(|path| existing.contains(path)) {
                let message = format!("link to {target}, which is not in the checkout: correct or remove it");
                findings.push(Finding::new(&file.path, index + 1, message));
            }
        }
    }
    findings
}

/// Blanks out `code spans`.
fn without_code(line: &str) -> String {
    let mut parts = line.split('`');
    let mut text = parts.next().unwrap_or_default().to_owned();
    while let (Some(_code), Some(plain)) = (parts.next(), parts.next()) {
        text.push(' ');
        text.push_str(plain);
    }
    text
}

/// Relative targets of `[text](target)` and `[name]: target` on one line, without anchors.
fn targets(line: &str) -> Vec<String> {
    let inline = line.match_indices("](").filter_map(|(at, _)| {
        let rest = &line[at + 2..];
        rest.split_once(')').map(|(target, _)| target)
    });
    let definition = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]:"))
        .map(|(_, target)| target);
    let all = inline
        .chain(definition)
        .filter_map(|target| target.split_whitespace().next());
    all.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .map(|target| {
            target
                .split('#')
                .next()
                .unwrap_or_default()
                .trim_matches(['<', '>'])
                .to_owned()
        })
        .filter(|target| !target.is_empty())
        .collect()
}

/// The path a link leads to, relative to the checkout; `None` if it leaves the checkout.
fn resolve(from: &str, target: &str) -> Option<String> {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = if target.starts_with('/') {
        Vec::new()
    } else {
        folder.split('/').collect()
    };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.retain(|part| !part.is_empty());
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    parts.retain(|part| !part.is_empty());
    Some(parts.join("/"))
}

fn check_places(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if let Some(path) = MACHINE_PATHS.iter().find(|path| names_path(line, path)) {
            let message = format!("{path} is a path of one machine: use a relative path, a variable or `~`");
            findings.push(Finding::new(&file.path, index + 1, message));
        }
        if let Some(host) = REGISTRY_HOSTS.iter().find(|host| line.contains(**host)) {
            let message =
                format!("{host} names a package registry: that is the machine's configuration, leave it out");
            findings.push(Finding::new(&file.path, index + 1, message));
        }
    }
    findings
}

/// True if the line has the absolute path, not a longer one that merely contains it (`s3://bucket/work/x`), nor one
/// of a made-up user.
fn names_path(line: &str, path: &str) -> bool {
    let is_inside = |character: char| character.is_ascii_alphanumeric() || "._-~}$*".contains(character);
    line.match_indices(path).any(|(at, _)| {
        let next = line[at + path.len()..]
            .split(|character: char| !character.is_ascii_alphanumeric())
            .next();
        let is_placeholder = next.is_some_and(|name| PLACEHOLDER_USERS.contains(&name));
        !line[..at].ends_with(is_inside) && !is_placeholder
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::file;

    const NONE: [usize; 0] = [];

    fn lines(text: &str) -> Vec<usize> {
        let files = [
            file("README.md", ""),
            file("docs/guides/a.md", text),
            file("docs/b.md", ""),
        ];
        check(&files).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text = "[b](../b.md) [top](../../README.md#x) [here](#y) [dir](..) [self](a.md)\n\
                    [web](https://example.com/x) [r][r]\n\n[r]: ../b.md \"title\"\n";
        assert_eq!(lines(text), NONE);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        assert_eq!(lines("fine\n[b](b.md)\n[r]: ../c.md\n"), [2, 3]);
        // Climbing out of the checkout must not come back in at its top.
        assert_eq!(lines("[out](../../../README.md)"), [1]);
        assert_eq!(lines("[two](../b.md) and [bad](../d.md#x)"), [1]);
    }

    #[test]
    fn code_is_not_searched_for_links() {
        assert_eq!(lines("`[b](b.md)`\n```\n[b](b.md)\n```\n"), NONE);
        assert_eq!(lines("`code` [b](b.md)"), [1]);
    }

    #[test]
    fn machine_paths_are_found_and_lookalikes_are_not() {
        for path in MACHINE_PATHS {
            assert_eq!(lines(&format!("see {path}x for more")), [1], "{path}");
            assert_eq!(lines(&format!("`{path}x`")), [1], "{path}");
            assert_eq!(
                lines(&format!("s3://bucket{path}x and ~{path}x and $HOME{path}x")),
                NONE,
                "{path}"
            );
        }
    }

    #[test]
    fn homes_of_made_up_users_are_fine() {
        let home = MACHINE_PATHS[0];
        assert_eq!(lines(&format!("{home}user/data and {home}u")), NONE);
        assert_eq!(lines(&format!("{home}username/data")), [1]);
    }

    #[test]
    fn registry_hosts_are_found() {
        for host in REGISTRY_HOSTS {
            assert_eq!(lines(&format!("https://{host}/x")), [1], "{host}");
        }
        assert_eq!(
            lines("registry+https://github.com/rust-lang/crates.io-index"),
            NONE
        );
    }
}
