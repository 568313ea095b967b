//! `load`: weights into memory, parts of them, checksums, and files that are no weights.

use super::sandbox::Sandbox;

/// A file of tensors of bytes: name, rows and columns.
pub(crate) fn weights(sandbox: &Sandbox, file: &str, tensors: &[(&str, usize, usize)]) {
    let mut at = 0;
    let rows: Vec<String> = tensors
        .iter()
        .map(|(name, rows, columns)| {
            let end = at + rows * columns;
            let row = format!(
                r#""{name}":{{"dtype":"U8","shape":[{rows},{columns}],"data_offsets":[{at},{end}]}}"#
            );
            at = end;
            row
        })
        .collect();
    with_header(sandbox, file, &format!("{{{}}}", rows.join(",")), at);
}

fn with_header(sandbox: &Sandbox, file: &str, header: &str, data_len: usize) {
    let data = sandbox.file(file, data_len);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&data);
    std::fs::write(sandbox.path(file), bytes).unwrap();
}

pub(crate) const MODEL: &[(&str, usize, usize)] = &[("a.w", 1024, 3000), ("a.b", 1, 100), ("b.w", 512, 2048)];

#[test]
fn a_file_is_loaded_and_accounted_for() {
    let sandbox = Sandbox::new();
    weights(&sandbox, "m.safetensors", MODEL);
    let json = sandbox
        .run(["load", "m.safetensors", "--repeat", "2", "--json"])
        .exits(0)
        .json();
    let bytes = 1024 * 3000 + 100 + 512 * 2048;
    assert_eq!(json["tensors"], 3);
    assert_eq!(json["tensor_bytes"], bytes);
    assert_eq!(json["runs"].as_array().unwrap().len(), 2);
    let paths = json["ledger"]["paths"].as_object().unwrap();
    let moved: u64 = paths.values().map(|path| path["bytes"].as_u64().unwrap()).sum();
    assert!(moved >= 2 * bytes, "{json}");
    let out = sandbox.run(["load", "m.safetensors", "--direct"]).exits(0).out;
    for words in [
        "forebay",
        "plain direct read",
        "share of limit",
        "CPU s/GB",
        "path ",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
}

#[test]
fn tensors_are_listed() {
    let sandbox = Sandbox::new();
    weights(&sandbox, "m.safetensors", MODEL);
    let out = sandbox.run(["load", "m.safetensors", "--list"]).exits(0).out;
    assert!(
        out.contains("a.w") && out.contains("[1024, 3000]") && out.contains("U8"),
        "{out}"
    );
    let rows = sandbox
        .run(["load", "m.safetensors", "--list", "--select", "*.b", "--json"])
        .exits(0)
        .json_lines();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (&rows[0]["name"], &rows[0]["bytes"]),
        (&"a.b".into(), &100.into())
    );
}

#[test]
fn parts_read_no_more_than_they_need() {
    let sandbox = Sandbox::new();
    weights(&sandbox, "m.safetensors", MODEL);
    let read = |args: &[&str]| {
        let args = ["load", "m.safetensors", "--json"].iter().chain(args);
        let json = sandbox.run(args).exits(0).json();
        (
            json["tensor_bytes"].as_u64().unwrap(),
            json["read_bytes"].as_u64().unwrap(),
        )
    };
    let (bytes, moved) = read(&["--select", "b.*"]);
    assert!(bytes == 512 * 2048 && moved < bytes + 8192, "{moved}");
    let (bytes, moved) = read(&["--select", "a.w", "--shard", "1/4", "--shard-dim", "*.w=0"]);
    assert!(bytes == 256 * 3000 && moved < bytes + 8192, "{moved}");
    sandbox
        .run(["load", "m.safetensors", "--select", "c.*"])
        .exits(2)
        .says(&["no tensor matches 'c.*'"]);
    sandbox
        .run(["load", "m.safetensors", "--shard", "4/4"])
        .exits(2)
        .says(&["no rank 4 of 4"]);
    sandbox
        .run(["load", "m.safetensors", "--shard", "x"])
        .exits(2)
        .says(&["not R/W"]);
    sandbox
        .run(["load", "m.safetensors", "--memory", "1MiB"])
        .exits(2)
        .says(&["needs", "of memory"]);
}

#[test]
fn checksums_are_made_and_find_a_flipped_bit() {
    let sandbox = Sandbox::new();
    weights(&sandbox, "m.safetensors", MODEL);
    sandbox
        .run(["load", "m.safetensors", "--verify", "require"])
        .exits(2)
        .says(&["there are no checksums of this file", "--write-hashes"]);
    let out = sandbox
        .run(["load", "m.safetensors", "--write-hashes"])
        .exits(0)
        .out;
    assert!(out.contains("m.safetensors.forebay-hashes"), "{out}");
    let json = sandbox
        .run(["load", "m.safetensors", "--verify", "require", "--json"])
        .exits(0)
        .json();
    assert!(json["ledger"]["verified_bytes"].as_u64() >= json["tensor_bytes"].as_u64());
    let mut bytes = sandbox.read("m.safetensors");
    let at = bytes.len() - 5;
    bytes[at] ^= 1;
    std::fs::write(sandbox.path("m.safetensors"), bytes).unwrap();
    sandbox
        .run(["load", "m.safetensors"])
        .exits(2)
        .says(&["not as they were written", "tensor 'b.w'"]);
    sandbox.run(["load", "m.safetensors", "--verify", "off"]).exits(0);
}

#[test]
fn what_is_no_weights_says_why() {
    let sandbox = Sandbox::new();
    weights(&sandbox, "m.safetensors", MODEL);
    let whole = sandbox.read("m.safetensors");
    std::fs::write(sandbox.path("cut.safetensors"), &whole[..whole.len() - 1]).unwrap();
    let t = r#"{"t":{"dtype":"F3","shape":[1],"data_offsets":[0,1]}}"#;
    with_header(&sandbox, "odd.safetensors", t, 1);
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    for (args, words) in [
        (&["missing.safetensors"][..], "not found"),
        (&["cut.safetensors"], "cut.safetensors: tensor 'b.w'"),
        (&["odd.safetensors"], "unknown dtype 'F3'"),
        (&["empty"], "no *.safetensors file"),
        (&["m.safetensors", "--device", "tpu"], "unknown device 'tpu'"),
        (&["m.safetensors", "--verify", "maybe"], "no way 'maybe'"),
    ] {
        let args = ["load"].iter().chain(args);
        sandbox.run(args).exits(2).says(&[words]);
    }
}
