//! Data sets with pickles: refused, or given as the bytes they are.

use std::path::Path;

use super::sandbox::Sandbox;

/// Formats that can hold pickles, each with the one in the field `thing` of its fixture: `{"a": (1, 2)}`, and `None`.
const FORMATS: [(&str, &[u8]); 2] = [
    (
        "mds",
        b"\x80\x04\x95\x0e\0\0\0\0\0\0\0}\x94\x8c\x01a\x94K\x01K\x02\x86\x94s.",
    ),
    ("litdata", b"\x80\x04N."),
];

/// A data set of theirs with a pickle in it, at `d`.
fn pickled(sandbox: &Sandbox, format: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(format)
        .join("pickle");
    std::fs::create_dir_all(sandbox.path("d")).unwrap();
    for entry in std::fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "expected.json" {
            std::fs::copy(entry.path(), sandbox.path("d").join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn pickles_are_refused_unless_they_are_asked_for() {
    for (format, pickle) in FORMATS {
        let sandbox = Sandbox::new();
        pickled(&sandbox, format);
        let flag = format!("--format {format} --allow-pickle");
        let python = format!("{{'name': '{format}', 'pickle': True}}");
        for command in [
            &["stream", "d"][..],
            &["index", "d"],
            &["pack", "d", "to", "--to", "wds"],
        ] {
            let ran = sandbox.run(command);
            assert_ne!(ran.code, Some(0), "{command:?}");
            ran.says(&["thing", "holds pickles", &flag, &python]);
        }
        let words = ["stream", "d", "--format", format, "--allow-pickle", "--json"];
        assert_eq!(sandbox.run(words).exits(0).json()["samples"], 1, "{format}");
        let words = [
            "pack",
            "d",
            "to",
            "--to",
            "wds",
            "--format",
            format,
            "--allow-pickle",
        ];
        sandbox.run(words).exits(0);
        let tar = sandbox.read("to/shard-000000.tar");
        assert!(tar.windows(pickle.len()).any(|part| part == pickle), "{format}");
        sandbox
            .run(["index", "d", "--format", format, "--allow-pickle"])
            .exits(0);
        // As the index says, which was made with permission.
        sandbox.run(["stream", "d"]).exits(0);
        sandbox.run(["verify", "d"]).exits(0);
    }
}

#[test]
fn the_permission_goes_with_formats_that_have_pickles() {
    let sandbox = Sandbox::new();
    pickled(&sandbox, "mds");
    for words in [
        &["stream", "d", "--allow-pickle"][..],
        &["stream", "d", "--format", "wds", "--allow-pickle"],
    ] {
        sandbox.run(words).exits(2).says(&["pickle", "--format mds"]);
    }
}
