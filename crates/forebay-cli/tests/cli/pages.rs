//! Generated pages: checked in as the program makes them.

use std::path::Path;

use super::sandbox::Sandbox;

fn compare(page: &str, file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/reference")
        .join(file);
    let made = Sandbox::new().run(["reference", page]).exits(0).out;
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == kept,
        "docs/reference/{file} is not what the program says; make it again: cargo run -- reference {page} > docs/reference/{file}"
    );
}

#[test]
fn the_reference_of_commands_is_up_to_date() {
    compare("cli", "cli.md");
}

#[test]
fn the_reference_of_settings_is_up_to_date() {
    compare("configuration", "configuration.md");
}

#[test]
fn the_reference_of_errors_is_up_to_date() {
    compare("errors", "errors.md");
}

#[test]
fn completions_and_the_manual_are_made() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            sandbox
                .run(["completions", shell])
                .exits(0)
                .out
                .contains("forebay"),
            "{shell}"
        );
    }
    let manual = sandbox.run(["man"]).exits(0).out;
    assert!(
        manual.contains(".TH forebay 1") && manual.contains(".SH SETTINGS"),
        "{manual}"
    );
    let manual = sandbox.run(["man", "bench", "disk"]).exits(0).out;
    assert!(
        manual.contains(".TH forebay-bench-disk 1") && manual.contains("runs"),
        "{manual}"
    );
    sandbox
        .run(["man", "nonsense"])
        .exits(2)
        .says(&["no command 'nonsense'"]);
}
